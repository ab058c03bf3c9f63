"""The choice of a probe, and the memory left on any system."""

import sys

import psutil
import pytest

from turbospark_chat.engine.linux_probe import LinuxProbe
from turbospark_chat.engine.macos_probe import MacosProbe
from turbospark_chat.engine.system_probe import available_memory, make_probe


@pytest.mark.parametrize(
    ("platform", "kind"), [("linux", LinuxProbe), ("darwin", MacosProbe), ("win32", type(None))]
)
def test_the_platform_chooses_the_probe(platform, kind):
    assert type(make_probe(platform)) is kind


def test_the_control_groups_limit_is_the_memory_left(tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("1000\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("400\n")
    assert available_memory(tmp_path) == 600


def test_without_linux_files_psutil_says_what_is_left(tmp_path):
    left = available_memory(tmp_path)
    assert left == pytest.approx(psutil.virtual_memory().available, rel=0.5)


def test_where_nothing_says_nothing_is_refused(tmp_path, monkeypatch):
    def fail() -> None:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(psutil, "virtual_memory", fail)
    assert available_memory(tmp_path) == sys.maxsize
