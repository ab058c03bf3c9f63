"""What a long day of conversations leaves in memory: nothing that grows."""

import gc
import json
import subprocess
from pathlib import Path

import psutil
import pytest
from terminal_driver import TS, environment
from tiny_model import write_tiny_model

N_TURNS = 1000
TURNS_A_CONVERSATION = 5
FIRST_READING = 300  # turns after which every buffer, cache and slot has its size
MOST_GROWTH = 4_000_000  # bytes over the other 700; one conversation kept alive each would be more


@pytest.fixture
def lines() -> list[str]:
    return [
        line
        for number in range(N_TURNS // TURNS_A_CONVERSATION)
        for line in (
            *(f"message {turn} of {number}, with words in it" for turn in range(TURNS_A_CONVERSATION)),
            "/clear",
        )
    ]


def test_resident_memory_is_flat_over_a_thousand_turns_with_new_conversations_between(
    lines: list[str], tmp_path: Path
) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    readings: list[int] = []
    with subprocess.Popen(
        [TS, "chat", "-m", str(model), "--json", "--max-tokens", "8", "--slots", "3", "-q"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(tmp_path, TS_ARITHMETIC="numpy"), text=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        watched, n_turns = psutil.Process(process.pid), 0
        for line in lines:
            print(line, file=process.stdin, flush=True)
            event = json.loads(process.stdout.readline())
            assert event["event"] == ("command" if line == "/clear" else "turn"), event
            n_turns += event["event"] == "turn"
            if n_turns >= FIRST_READING and n_turns % 50 == 0:
                readings.append(watched.memory_info().rss)
        process.stdin.close()
        assert process.wait() == 0
    gc.collect()
    assert n_turns == N_TURNS
    assert max(readings[1:]) - readings[0] < MOST_GROWTH, [reading // 1000 for reading in readings]
