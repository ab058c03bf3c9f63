"""`ts verify`: a sound model passes, and each way of going wrong that reuse has is found in the step that shows it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_model import COMPILED_SIZES, write_tiny_model

from turbospark_chat.engine.model_thread import Job
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.runner import Runner
from turbospark_chat.settings import ARITHMETIC_VARIABLE

Run = Callable[..., tuple[int, str, str]]
STEPS = [
    "first turn", "second turn", "stopped turn", "retry", "another message after an undo", "on a branch",
    "back from it",
]  # fmt: skip


@pytest.fixture(scope="module")
def kernels_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a tiny model that kernels take."""
    path = tmp_path_factory.mktemp("models") / "kernels.gguf"
    return write_tiny_model(path, kind="Q4_1", sizes=COMPILED_SIZES, context_length=4096)


@pytest.fixture(params=["numpy", "compiled"])
def path(request: pytest.FixtureRequest, kernels_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the same model's file, to be computed in either arithmetic."""
    if request.param == "numpy":
        monkeypatch.setenv(ARITHMETIC_VARIABLE, "numpy")
    return kernels_path


def steps_of(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_every_step_of_a_sound_model_is_sound_and_most_reuse(ts: Run, path: Path) -> None:
    code, out, err = ts("verify", "-m", path, "--json")
    steps = steps_of(out)
    assert (code, err, [step["step"] for step in steps]) == (0, "", STEPS)
    assert all(step["is_sound"] and step["are_ids_same"] and step["is_same_token"] for step in steps)
    assert steps[2]["reason"] == "cancelled" and steps[2]["is_sound"]
    reused = [step["reused_prefix_tokens"] for step in steps]
    assert reused[0] == 0 and all(reused[1:])
    assert reused[1] >= steps[0]["n_positions"] - 1  # nothing of the first turn is computed again
    assert reused[3] == steps[3]["prompt_tokens"] - 1  # a retry computes the last token alone


def test_it_is_a_table_for_people(ts: Run, path: Path) -> None:
    code, out, _ = ts("verify", "--model", path)
    heading, *rows = out.splitlines()
    assert code == 0
    assert heading.split() == "step positions reused cache differs logits differ sound".split()
    assert [row.split("  ")[0] for row in rows] == STEPS
    assert all(row.endswith("  yes") for row in rows)


def a_rewind_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record claims one more position than is common, so that one id of the old prompt stays in the cache."""
    reuse = Runner.try_reuse_prefix

    def try_reuse_prefix(self: Any, prompt_ids: Any) -> int:
        held = self.record.ids
        kept = reuse(self, prompt_ids)
        if 0 < kept < min(len(held), len(prompt_ids) - 1) and held[kept] != prompt_ids[kept]:
            self.produce_chunk(held[kept : kept + 1], kept, need_logits=False)
            self.record.rewind_to(kept)
            self.record.record(prompt_ids[kept : kept + 1], kept)
            return kept + 1
        return kept

    monkeypatch.setattr(Runner, "try_reuse_prefix", try_reuse_prefix)


def a_fork_shares_its_memory_shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch goes on from a copy that begins one position late."""
    for cache in (KvCache, PackedKvCache):

        def export(self: Any, export: Any = cache.export) -> Any:
            return {name: array.copy() for name, array in export(self).items()}

        def fork(self: Any, length: int, fork: Any = cache.fork, export: Any = export) -> Any:
            other = fork(self, length)
            if length < len(self) and len(other):
                arrays = export(other)
                for array in arrays.values():
                    array[:, :-1] = array[:, 1:]
                other.restore(len(other), arrays)
            return other

        monkeypatch.setattr(cache, "fork", fork)


@pytest.mark.parametrize("fault", [a_rewind_is_not_recorded, a_fork_shares_its_memory_shifted])
def test_a_fault_in_reuse_is_found(
    fault: Callable[[pytest.MonkeyPatch], None], ts: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault(monkeypatch)
    code, out, _ = ts("verify", "-m", path, "--json")
    steps = steps_of(out)
    assert code == 1
    assert steps[0]["is_sound"]  # nothing is reused yet
    assert not all(step["is_sound"] for step in steps)
    _, out, _ = ts("verify", "-m", path)
    assert [row.endswith("  NO") for row in out.splitlines()[1:]] == [not step["is_sound"] for step in steps]


def test_a_record_that_is_not_what_the_turn_reported_is_found(
    ts: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turbospark_chat.models.model_states.ModelStates.held_ids", (1, 2, 3))
    code, out, _ = ts("verify", "-m", path, "--json")
    assert code == 1
    assert [step["are_ids_same"] or step["is_sound"] for step in steps_of(out)] == [False] * len(STEPS)


def test_an_interrupt_ends_it_without_a_verdict(ts: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = []

    def interrupted(self: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "events", interrupted)
    monkeypatch.setattr(Job, "cancel", lambda self, cancel=Job.cancel: (cancelled.append(self), cancel(self)))
    code, out, err = ts("verify", "-m", path)
    assert (code, out, err, len(cancelled)) == (130, "", "", 1)


def test_a_model_that_is_not_there_is_an_error(ts: Run, tmp_path: Path) -> None:
    code, out, err = ts("verify", "-m", tmp_path / "none.gguf")
    assert (code, out) == (3, "") and err.startswith("error: ") and "none.gguf" in err
