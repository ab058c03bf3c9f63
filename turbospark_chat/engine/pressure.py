"""How short of memory and how hot the machine is: the levels, the probe protocol and a safe reading.

Knows no operating system (`system_probe` chooses one) and draws no conclusion (`pacing` does).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, TypeVar


class MemoryPressure(IntEnum):
    """How short the system is of memory; NORMAL is also the absence of a reading."""

    NORMAL = 0
    WARN = 1
    CRITICAL = 2

    @property
    def label(self) -> str:
        """The level as users see it: `normal`, `warn` or `critical`."""
        return self.name.lower()


class ThermalState(IntEnum):
    """How hot the system is; NOMINAL is also the absence of a reading.

    The four steps are those of Apple's `ProcessInfo.ThermalState`: fans at FAIR, the system slowing itself at
    SERIOUS, in need of rest at CRITICAL.
    """

    NOMINAL = 0
    FAIR = 1
    SERIOUS = 2
    CRITICAL = 3


class PressureProbe(Protocol):
    """What reads one system's sensors. A sensor it cannot read is nominal."""

    def memory(self) -> MemoryPressure:
        """Read how short of memory the system is now."""

    def thermal(self) -> ThermalState:
        """Read how hot the system is now."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Both levels at one moment."""

    memory: MemoryPressure = MemoryPressure.NORMAL
    thermal: ThermalState = ThermalState.NOMINAL


_Level = TypeVar("_Level", MemoryPressure, ThermalState)


def read_pressure(probe: PressureProbe | None) -> Reading:
    """Read both levels; without a probe, and where it raises or answers no level, that level is nominal."""
    if probe is None:
        return Reading()
    return Reading(_read_level(MemoryPressure, probe.memory), _read_level(ThermalState, probe.thermal))


def _read_level(level: type[_Level], read: Callable[[], _Level]) -> _Level:
    try:
        return level(read())
    except Exception:  # whatever a sensor does, a reply must not end for it
        return level(0)
