"""Linux's memory pressure and heat, from /proc and /sys below a root that tests can set.

Owns which sources count and where each becomes pressure. The worst source counts; one that is missing,
unreadable or garbage says nothing.
"""

import re
from pathlib import Path

from turbospark_chat.engine.control_group import MemoryLimit, read_memory_limits
from turbospark_chat.engine.kernel_file import read_table, read_text
from turbospark_chat.engine.pressure import MemoryPressure, ThermalState
from turbospark_chat.engine.thermal_zone import read_thermal_state

# Percent of the last 10 s. Some task stalled: systemd asks its services to give memory back at 200 ms in 2 s
# (systemd.resource-control(5), MemoryPressureThresholdSec=). Every task stalled: GLib's GMemoryMonitor calls
# 100 ms in 2 s critical.
_SOME_STALLED_WARN = 10.0
_ALL_STALLED_CRITICAL = 5.0
# Share of the memory that is left: where earlyoom(1) starts to end processes, and where it insists.
_LEFT_WARN = 0.10
_LEFT_CRITICAL = 0.05

_STALLS = re.compile(r"^(some|full) avg10=(\d{1,3}\.\d+) ", re.MULTILINE)


class LinuxProbe:
    """A PressureProbe for Linux. Reads afresh at each call and keeps nothing."""

    def __init__(self, root: Path = Path("/")) -> None:
        """Read below `root`, the root of the file system or a recorded one."""
        self._root = root

    def memory(self) -> MemoryPressure:
        """Return the worst of the stall times, the system's memory and each control group's limit."""
        return max([self._level_of_stalls(), *(_level_of_limit(limit) for limit in self._limits())])

    def thermal(self) -> ThermalState:
        """Return the state of the hottest thermal zone."""
        return read_thermal_state(self._root)

    def available_memory(self) -> int | None:
        """Return the bytes this process can still take: the least that the system or a group has left.

        None where neither says.
        """
        return min((limit.available for limit in self._limits()), default=None)

    def _limits(self) -> list[MemoryLimit]:
        """Return the control groups' limits and the system's memory, which is one more."""
        limits = read_memory_limits(self._root)
        rows = read_table(self._root / "proc/meminfo")  # proc_meminfo(5), in KiB
        if "MemTotal" in rows and "MemAvailable" in rows:
            limits.append(MemoryLimit(rows["MemTotal"] * 1024, rows["MemAvailable"] * 1024))
        return limits

    def _level_of_stalls(self) -> MemoryPressure:
        """Judge the kernel's accounting/psi.rst file; a kernel without it says nothing."""
        shares = {
            who: float(share)
            for who, share in _STALLS.findall(read_text(self._root / "proc/pressure/memory"))
        }
        if shares.get("full", 0.0) >= _ALL_STALLED_CRITICAL:
            return MemoryPressure.CRITICAL
        if shares.get("some", 0.0) >= _SOME_STALLED_WARN:
            return MemoryPressure.WARN
        return MemoryPressure.NORMAL


def _level_of_limit(limit: MemoryLimit) -> MemoryPressure:
    if limit.available < limit.limit * _LEFT_CRITICAL:
        return MemoryPressure.CRITICAL
    if limit.available < limit.limit * _LEFT_WARN:
        return MemoryPressure.WARN
    return MemoryPressure.NORMAL
