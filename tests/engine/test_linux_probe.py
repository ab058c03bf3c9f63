"""Linux's sources together, over recorded files and over garbage."""

import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.linux_probe import LinuxProbe
from turbospark_chat.engine.pressure import MemoryPressure, ThermalState

NORMAL, WARN, CRITICAL = MemoryPressure
MB = 1_000_000

STALLS = """\
some avg10={some} avg60=77.00 avg300=77.00 total=1234
full avg10={full} avg60=77.00 avg300=77.00 total=567
"""
MEMINFO = """\
MemTotal:       16000000 kB
MemFree:          100000 kB
MemAvailable:   {available} kB
Buffers:             900 kB
Cached:          9000000 kB
SwapTotal:             0 kB
Active(file):      12345 kB
HugePages_Total:       0
"""
CALM = {
    "proc/pressure/memory": STALLS.format(some="0.00", full="0.00"),
    "proc/meminfo": MEMINFO.format(available=12_000_000),
    "proc/self/cgroup": "0::/app\n",
    "sys/fs/cgroup/app/memory.max": f"{1000 * MB}\n",
    "sys/fs/cgroup/app/memory.current": f"{600 * MB}\n",
    "sys/fs/cgroup/app/memory.stat": f"anon 1\ninactive_file {100 * MB}\n",
    "sys/class/thermal/thermal_zone0/temp": "50000\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_type": "passive\n",
    "sys/class/thermal/thermal_zone0/trip_point_0_temp": "90000\n",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_calm_machine_is_nominal(tmp_path):
    write(tmp_path, CALM)
    probe = LinuxProbe(tmp_path)
    assert probe.memory() is NORMAL
    assert probe.thermal() is ThermalState.NOMINAL


def test_heat_is_read(tmp_path):
    write(tmp_path, CALM | {"sys/class/thermal/thermal_zone0/temp": "90000\n"})
    assert LinuxProbe(tmp_path).thermal() is ThermalState.SERIOUS


@pytest.mark.parametrize(
    ("some", "full", "level"),
    [
        ("0.00", "0.00", NORMAL),
        ("9.99", "4.99", NORMAL),
        ("10.00", "0.00", WARN),
        ("100.00", "4.99", WARN),
        ("10.00", "5.00", CRITICAL),
        ("100.00", "100.00", CRITICAL),
    ],
)
def test_stall_times(tmp_path, some, full, level):
    write(tmp_path, CALM | {"proc/pressure/memory": STALLS.format(some=some, full=full)})
    assert LinuxProbe(tmp_path).memory() is level


@pytest.mark.parametrize(
    ("available", "level"),
    [(1_600_000, NORMAL), (1_599_999, WARN), (800_000, WARN), (799_999, CRITICAL), (0, CRITICAL)],
)
def test_available_memory_of_the_system(tmp_path, available, level):
    write(tmp_path, CALM | {"proc/meminfo": MEMINFO.format(available=available)})
    assert LinuxProbe(tmp_path).memory() is level


@pytest.mark.parametrize(
    ("usage", "level"),
    [(1000, NORMAL), (1001, WARN), (1050, WARN), (1051, CRITICAL), (1100, CRITICAL), (2000, CRITICAL)],
)
def test_room_below_the_control_groups_limit(tmp_path, usage, level):  # 100 MB of the usage are reclaimable
    write(tmp_path, CALM | {"sys/fs/cgroup/app/memory.current": f"{usage * MB}\n"})
    assert LinuxProbe(tmp_path).memory() is level


def test_the_worst_source_counts(tmp_path):
    files = CALM | {
        "proc/pressure/memory": STALLS.format(some="20.00", full="0.00"),
        "sys/fs/cgroup/app/memory.current": f"{1100 * MB}\n",
    }
    write(tmp_path, files)
    assert LinuxProbe(tmp_path).memory() is CRITICAL


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, 500 * MB),
        ({"sys/fs/cgroup/app/memory.current": f"{1200 * MB}\n"}, 0),
        ({"sys/fs/cgroup/app/memory.max": "max\n"}, 12_000_000 * 1024),
        ({"proc/meminfo": MEMINFO.format(available=1000)}, 1000 * 1024),
        ({"proc/meminfo": "MemTotal: 16000000 kB\n"}, 500 * MB),
        ({"proc/meminfo": "", "proc/self/cgroup": ""}, None),
    ],
    ids=["group", "group full", "no limit", "system", "old kernel", "nothing"],
)
def test_available_memory_is_the_least_left(tmp_path, changes, left):
    write(tmp_path, CALM | changes)
    assert LinuxProbe(tmp_path).available_memory() == left


def test_an_empty_root_is_nominal(tmp_path):
    probe = LinuxProbe(tmp_path / "absent")
    assert probe.memory() is NORMAL
    assert probe.thermal() is ThermalState.NOMINAL
    assert probe.available_memory() is None


@pytest.mark.parametrize("name", CALM)
def test_a_directory_where_a_file_should_be_is_nominal(tmp_path, name):
    write(tmp_path, CALM)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    assert LinuxProbe(tmp_path).memory() is NORMAL
    assert LinuxProbe(tmp_path).thermal() is ThermalState.NOMINAL


@pytest.mark.parametrize(
    "text",
    [
        "some avg10=nan avg60=0.00\n",
        "some avg10=inf \nfull avg10=1e9 \n",
        "some avg10= avg60=99.00\n",
        "some\nfull\n",
        "xsome avg10=99.00 avg60=0\n",
        "\0\0\0",
    ],
)
def test_garbage_stall_times_are_nominal(tmp_path, text):
    write(tmp_path, CALM | {"proc/pressure/memory": text})
    assert LinuxProbe(tmp_path).memory() is NORMAL


@given(st.dictionaries(st.sampled_from(sorted(CALM)), st.binary(max_size=60)))
def test_no_content_makes_the_probe_raise(contents):
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        write(root, CALM)
        for name, content in contents.items():
            (root / name).write_bytes(content)
        probe = LinuxProbe(root)
        assert probe.memory() in MemoryPressure
        assert probe.thermal() in ThermalState
        left = probe.available_memory()
        assert left is None or left >= 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads the running system")
def test_the_running_system_is_read():
    probe = LinuxProbe()
    left = probe.available_memory()
    assert left is not None and 0 < left < 2**50
    assert probe.memory() in MemoryPressure
    assert probe.thermal() in ThermalState
