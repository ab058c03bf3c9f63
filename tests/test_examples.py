"""Every file in examples/ runs as its first lines say."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
EXPECTED = {
    "chat_from_python.py": r"\[reused [1-9]\d+ of \d+ prompt tokens\]",
    "custom_producer.py": r"4 5 6 7 8 9 \[eos, reused 0\]",
    "scripted_conversation.py": r"(?s)Paris.*reused [1-9]\d+ of \d+.*reused [1-9]\d+ of \d+.*/undo: taking back 1 turn",
    "pipeline.sh": r"reused [1-9]\d+ of \d+ prompt tokens",
}


@pytest.mark.weights
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_example_runs(name: str, smollm2_path: Path) -> None:
    interpreter = [sys.executable] if name.endswith(".py") else ["bash"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = subprocess.run(
        [*interpreter, str(EXAMPLES / name)],
        cwd=EXAMPLES.parent, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert re.search(EXPECTED[name], run.stdout + run.stderr)


def test_every_script_is_run_and_every_picture_is_in_the_readme() -> None:
    names = {path.name for path in EXAMPLES.iterdir()}
    pictures = {name for name in names if name.endswith(".svg")}
    readme = (EXAMPLES.parent / "README.md").read_text()
    assert names - pictures == EXPECTED.keys()
    assert {name for name in pictures if f"examples/{name}" not in readme} == set()


def test_a_second_prompt_reuses_what_the_first_left() -> None:
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "custom_producer.py")], capture_output=True, text=True, timeout=60
    )
    assert "[1, 2, 3, 4, 5] -> 6 7 8 9 [eos, reused 4]" in run.stdout
