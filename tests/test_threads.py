"""How many threads compute: what a user asks for, the cores there are, and what numpy's BLAS is told."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from turbospark_chat.errors import SettingError
from turbospark_chat.threads import BLAS_VARIABLES, physical_cores, read_threads, set_blas_threads

# --- what a user asks for ---


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), ("1", 1), ("12", 12), ("007", 7), ("9999", 9999)]
)
def test_a_count_is_read(text: str | None, expected: int | None) -> None:
    assert read_threads(text) == expected


@pytest.mark.parametrize("text", ["0", "0000", "-1", "two", "1.5", "", " 2", "²", "10000", "9" * 5000])
def test_what_is_no_count_is_refused_in_one_short_line(text: str) -> None:
    with pytest.raises(SettingError, match="threads is .*: give a whole number from 1 to 9999") as caught:
        read_threads(text)
    assert len(str(caught.value)) < 80


# --- the cores there are ---

Topology = Mapping[int, tuple[int, int]]  # of a processor's number: its package and its core

PLAIN = {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (0, 3)}
SIBLINGS = {0: (0, 0), 1: (0, 1), 2: (0, 0), 3: (0, 1)}  # as most systems number them: siblings last
NEIGHBOURS = {0: (0, 0), 1: (0, 0), 2: (0, 1), 3: (0, 1)}
PACKAGES = {0: (0, 0), 1: (0, 1), 2: (1, 0), 3: (1, 1)}  # core numbers begin again in each


def write_topology(root: Path, topology: Topology) -> Path:
    for number, values in topology.items():
        folder = root / f"sys/devices/system/cpu/cpu{number}/topology"
        folder.mkdir(parents=True)
        for name, value in zip(("physical_package_id", "core_id"), values, strict=True):
            (folder / name).write_text(f"{value}\n")
    return root


def allow(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> None:
    """Let this process use only these processors."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(numbers), raising=False)


@pytest.mark.parametrize(
    ("topology", "allowed", "expected"),
    [
        pytest.param(PLAIN, (0, 1, 2, 3), 4, id="no siblings"),
        pytest.param(SIBLINGS, (0, 1, 2, 3), 2, id="siblings last"),
        pytest.param(NEIGHBOURS, (0, 1, 2, 3), 2, id="siblings beside each other"),
        pytest.param(PACKAGES, (0, 1, 2, 3), 4, id="two packages"),
        pytest.param(SIBLINGS, (0, 2), 1, id="one core's two threads are allowed"),
        pytest.param(SIBLINGS, (1, 2), 2, id="a thread of each core is allowed"),
        pytest.param(PLAIN, (3,), 1, id="one processor is allowed"),
        pytest.param({}, (0, 1, 2), 3, id="the system does not tell"),
        pytest.param({0: (0, 0), 1: (0, 0)}, (0, 1, 5), 2, id="the system tells of some"),
    ],
)
def test_threads_of_one_core_count_once_and_only_what_the_process_may_use_counts(
    topology: Topology,
    allowed: tuple[int, ...],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow(monkeypatch, *allowed)
    assert physical_cores(write_topology(tmp_path, topology)) == expected


def test_where_the_system_has_no_affinity_every_processor_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    for count, expected in ((6, 6), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda count=count: count)
        assert physical_cores(tmp_path) == expected


def test_this_machine_has_a_core() -> None:
    assert 1 <= physical_cores() <= (os.cpu_count() or 1)


# --- what BLAS is told ---


@pytest.mark.parametrize(
    ("n_processors", "asked", "before", "after"),
    [
        (4, None, {}, dict.fromkeys(BLAS_VARIABLES, "3")),
        (1, None, {}, dict.fromkeys(BLAS_VARIABLES, "1")),
        (4, 3, {}, dict.fromkeys(BLAS_VARIABLES, "3")),
        (4, 4, {}, dict.fromkeys(BLAS_VARIABLES, "4")),
        (4, None, {"OMP_NUM_THREADS": "5"}, {"OMP_NUM_THREADS": "5"}),
        (4, 2, {"OMP_NUM_THREADS": "5"}, dict.fromkeys(BLAS_VARIABLES, "2")),
    ],
    ids=[
        "one core is left to others",
        "the only core is used",
        "asked",
        "asked for every core",
        "the environment's own",
        "asked beats the environment",
    ],
)
def test_blas_is_told(
    n_processors: int,
    asked: int | None,
    before: dict[str, str],
    after: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allow(monkeypatch, *range(n_processors))
    environment = dict(before)
    set_blas_threads(asked, environment)
    assert environment == after


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 4), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("800000 100000", 4),
     ("", 4), ("nonsense", 4)],
)  # fmt: skip
def test_a_containers_share_of_time_limits_the_cores(
    quota: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)), raising=False)
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/cpu.max").write_text(quota)
    assert physical_cores(tmp_path) == expected
