"""Memory limits of recorded control groups."""

from pathlib import Path

import pytest

from turbospark_chat.engine.control_group import MemoryLimit, read_memory_limits

MB = 1_000_000
V1_UNLIMITED = 9223372036854771712


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def v2(path: str, limit: object, usage: object, *, inactive: int = 0, high: object = "max") -> dict[str, str]:
    group = f"sys/fs/cgroup{path}"
    return {
        f"{group}/memory.max": f"{limit}\n",
        f"{group}/memory.high": f"{high}\n",
        f"{group}/memory.current": f"{usage}\n",
        f"{group}/memory.stat": f"anon 1\nfile 2\nactive_file 999\ninactive_file {inactive}\n",
    }


def v1(path: str, limit: object, usage: object, *, inactive: int = 0) -> dict[str, str]:
    group = f"sys/fs/cgroup/memory{path}"
    return {
        f"{group}/memory.limit_in_bytes": f"{limit}\n",
        f"{group}/memory.usage_in_bytes": f"{usage}\n",
        f"{group}/memory.stat": f"inactive_file 7\ntotal_inactive_file {inactive}\n",
    }


CASES = {
    # A container: its group is the root of its namespace.
    "v2 container": (
        {"proc/self/cgroup": "0::/\n", **v2("", 512 * MB, 100 * MB)},
        [MemoryLimit(512 * MB, 412 * MB)],
    ),
    "v2 no limit": ({"proc/self/cgroup": "0::/a\n", **v2("/a", "max", 100 * MB)}, []),
    # systemd: the limit is on the slice, the process two levels below it.
    "v2 limit on an ancestor": (
        {
            "proc/self/cgroup": "0::/user.slice/user-1000.slice/app.scope\n",
            **v2("/user.slice/user-1000.slice/app.scope", "max", 10 * MB),
            **v2("/user.slice/user-1000.slice", 900 * MB, 850 * MB),
        },
        [MemoryLimit(900 * MB, 50 * MB)],
    ),
    "v2 own and ancestor": (
        {
            "proc/self/cgroup": "0::/a/b\n",
            **v2("/a/b", 100 * MB, 40 * MB),
            **v2("/a", 200 * MB, 190 * MB),
        },
        [MemoryLimit(100 * MB, 60 * MB), MemoryLimit(200 * MB, 10 * MB)],
    ),
    "v2 inactive file cache is not used": (
        {"proc/self/cgroup": "0::/\n", **v2("", 512 * MB, 500 * MB, inactive=300 * MB)},
        [MemoryLimit(512 * MB, 312 * MB)],
    ),
    "v2 throttled before the limit": (
        {"proc/self/cgroup": "0::/a\n", **v2("/a", 512 * MB, 100 * MB, high=200 * MB)},
        [MemoryLimit(512 * MB, 412 * MB), MemoryLimit(200 * MB, 100 * MB)],
    ),
    "v2 over the throttle": (
        {"proc/self/cgroup": "0::/a\n", **v2("/a", "max", 300 * MB, high=200 * MB)},
        [MemoryLimit(200 * MB, 0)],
    ),
    "v2 outside the namespace": (
        {"proc/self/cgroup": "0::/../other\n", **v2("", 512 * MB, 100 * MB)},
        [MemoryLimit(512 * MB, 412 * MB)],
    ),
    "v2 of a sibling": (
        {"proc/self/cgroup": "0::/a\n", **v2("/b", 512 * MB, 500 * MB)},
        [],
    ),
    "v1 own group": (
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:cpu,memory:/job\n1:cpuacct:/\n",
            **v1("/job", 64 * MB, 50 * MB, inactive=20 * MB),
        },
        [MemoryLimit(64 * MB, 34 * MB)],
    ),
    # Without a group namespace the path is the host's, the mount the container's.
    "v1 container with the host's path": (
        {"proc/self/cgroup": "4:memory:/docker/0123abc\n", **v1("", 64 * MB, 50 * MB)},
        [MemoryLimit(64 * MB, 14 * MB)],
    ),
    "v1 no limit": (
        {"proc/self/cgroup": "4:memory:/\n", **v1("", V1_UNLIMITED, 8982528)},
        [MemoryLimit(V1_UNLIMITED, V1_UNLIMITED - 8982528)],
    ),
    # Both versions mounted: memory belongs to version 1, the version 2 group has no memory files.
    "hybrid": (
        {"proc/self/cgroup": "4:memory:/job\n0::/job\n", **v1("/job", 64 * MB, 50 * MB)},
        [MemoryLimit(64 * MB, 14 * MB)],
    ),
    "a colon in the path": (
        {"proc/self/cgroup": "0::/a:b\n", **v2("/a:b", 512 * MB, 100 * MB)},
        [MemoryLimit(512 * MB, 412 * MB)],
    ),
    "no groups at all": ({}, []),
    "no memory.stat": (
        {
            "proc/self/cgroup": "0::/\n",
            "sys/fs/cgroup/memory.max": "100\n",
            "sys/fs/cgroup/memory.current": "30\n",
        },
        [MemoryLimit(100, 70)],
    ),
    "no usage": ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "100\n"}, []),
    "a name that is not ASCII": (
        {"proc/self/cgroup": "0::/größe\n", **v2("/größe", 512 * MB, 100 * MB)},
        [MemoryLimit(512 * MB, 412 * MB)],
    ),
    "a name that cannot be": (
        {"proc/self/cgroup": "0::/a\0b\n", **v2("", 512 * MB, 100 * MB)},
        [MemoryLimit(512 * MB, 412 * MB)],
    ),
    "garbage groups": (
        {"proc/self/cgroup": "\0\nx\n0:\n0::\n0::a\nmemory\n", **v2("", 512 * MB, 100 * MB)},
        [],
    ),
    "garbage numbers": (
        {"proc/self/cgroup": "0::/\n", **v2("", -5, 3, high="1e9")},
        [],
    ),
}


@pytest.mark.parametrize(("files", "limits"), CASES.values(), ids=CASES.keys())
def test_limits_of_recorded_groups(tmp_path, files, limits):
    write(tmp_path, files)
    assert read_memory_limits(tmp_path) == limits
