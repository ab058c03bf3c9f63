"""macOS's memory pressure, from the kernel's own judgement of it.

Reads no heat: what macOS says about it without privileges comes through Objective-C or an undocumented
notification, and neither is worth a dependency for one level, so the thermal state is NOMINAL.
"""

import ctypes
from collections.abc import Callable

from turbospark_chat.engine.pressure import MemoryPressure, ThermalState

_PRESSURE_LEVEL = "kern.memorystatus_vm_pressure_level"
# Not 0, 1, 2: the kernel answers with dispatch's flags (XNU, bsd/kern/kern_memorystatus_notify.c), urgent as
# warn.
_WARN_BIT = 2
_CRITICAL_BIT = 4


def read_sysctl(name: str) -> int | None:
    """Return a kernel variable that is a C int, or None where there is no such variable, or no macOS."""
    value = ctypes.c_int(0)
    size = ctypes.c_size_t(ctypes.sizeof(value))
    try:
        sysctlbyname = ctypes.CDLL(None).sysctlbyname
    except (OSError, AttributeError):
        return None
    failed = sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0))
    return None if failed else value.value


class MacosProbe:
    """A PressureProbe for macOS."""

    def __init__(self, read_sysctl: Callable[[str], int | None] = read_sysctl) -> None:
        """Read kernel variables with `read_sysctl`."""
        self._read_sysctl = read_sysctl

    def memory(self) -> MemoryPressure:
        """Decode the kernel's bit mask, the highest bit winning: 1 normal, 2 warn, 4 critical."""
        mask = self._read_sysctl(_PRESSURE_LEVEL) or 0
        if mask & _CRITICAL_BIT:
            return MemoryPressure.CRITICAL
        if mask & _WARN_BIT:
            return MemoryPressure.WARN
        return MemoryPressure.NORMAL

    def thermal(self) -> ThermalState:
        """Return NOMINAL: there is no reading."""
        return ThermalState.NOMINAL
