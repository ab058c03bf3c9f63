"""The memory limits of the control groups (cgroups) this process runs in, versions 1 and 2.

Knows where Linux shows them and what counts as used; the caller says which share left is too little.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turbospark_chat.engine.kernel_file import read_int, read_table, read_text


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """A limit on memory and what is left below it, in bytes."""

    limit: int
    available: int


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """Where one version of the interface keeps its numbers.

    `reclaimable` is the row of memory.stat that counts the groups below as well, as `usage` does.
    """

    mount: str
    limits: tuple[str, ...]
    usage: str
    reclaimable: str


# Kernel documentation: admin-guide/cgroup-v2.rst "Memory Interface Files" and
# admin-guide/cgroup-v1/memory.rst. Above memory.high a group is not killed but throttled to a crawl, so it
# limits as much as memory.max does.
_V2 = _Hierarchy("sys/fs/cgroup", ("memory.max", "memory.high"), "memory.current", "inactive_file")
_V1 = _Hierarchy(
    "sys/fs/cgroup/memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"
)


def read_memory_limits(root: Path) -> list[MemoryLimit]:
    """Return every limit on this process: its own group's and its ancestors', each of which binds as well."""
    return [
        limit
        for hierarchy, directory in _own_groups(root)
        for limit in _limits_of_group(hierarchy, directory)
    ]


def _own_groups(root: Path) -> Iterator[tuple[_Hierarchy, Path]]:
    """Walk from the process's group up to the mount, for each hierarchy that counts memory."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")  # cgroups(7): hierarchy-id:controllers:path
        controllers, _, path = rest.partition(":")
        if not path.startswith("/"):
            continue
        if not controllers:
            hierarchy = _V2
        elif "memory" in controllers.split(","):
            hierarchy = _V1
        else:
            continue
        names = [name for name in path.split("/") if name]
        # In a container the path may be the host's, or lead out of the namespace, and the mount be its own:
        # levels that are not there hold no files, and the walk ends at the container's group.
        for depth in range(len(names), -1, -1):
            yield hierarchy, root.joinpath(hierarchy.mount, *names[:depth])


def _limits_of_group(hierarchy: _Hierarchy, directory: Path) -> Iterator[MemoryLimit]:
    usage = read_int(directory / hierarchy.usage)
    if usage is None:
        return
    # As `docker stats` and the kubelet count: file cache not used lately is given back before anything fails.
    # Cache in use stays counted, for a mapped model's weights are among it.
    reclaimable = read_table(directory / "memory.stat").get(hierarchy.reclaimable, 0)
    used = max(usage - reclaimable, 0)
    for name in hierarchy.limits:
        limit = read_int(directory / name)
        if limit is not None and limit >= 0:
            yield MemoryLimit(limit, max(limit - used, 0))
