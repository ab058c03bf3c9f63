"""When the next token may be produced: the power profiles, the pressure ladder and the pacer.

Reads no clock and never sleeps: the decode loop gives the time and does the waiting. Knows no token.
"""

import math
from enum import StrEnum

from turbospark_chat.engine.pressure import (
    MemoryPressure,
    PressureProbe,
    Reading,
    ThermalState,
    read_pressure,
)
from turbospark_chat.errors import SettingError

_EFFICIENCY_CAP = 10.0  # tok/s
_THERMAL_CAPS = {ThermalState.SERIOUS: 10.0, ThermalState.CRITICAL: 5.0}  # tok/s
_MEMORY_CAPS = {MemoryPressure.WARN: 10.0, MemoryPressure.CRITICAL: 5.0}  # tok/s
_TOKENS_PER_POLL = 16


class PowerProfile(StrEnum):
    """How much of the machine a reply may take.

    PERFORMANCE has no cap and reads no sensor; BALANCED slows down under pressure; EFFICIENCY does too, and
    never exceeds 10 tok/s.
    """

    PERFORMANCE = "performance"
    BALANCED = "balanced"
    EFFICIENCY = "efficiency"


def pressure_cap(reading: Reading) -> float | None:
    """Return the ladder's cap in tok/s: the lower of the two levels' caps, None where neither has one."""
    return _lowest(_THERMAL_CAPS.get(reading.thermal), _MEMORY_CAPS.get(reading.memory))


def _lowest(*caps: float | None) -> float | None:
    return min((cap for cap in caps if cap is not None), default=None)


class Pacer:
    """Deadlines for the tokens of one reply, on a grid one interval (1 / cap) apart.

    Deadlines are absolute: point n of the grid is `anchor + n * interval`. The grid starts at the first
    token, and anew, from the token before, only when the cap changes. A token that comes before its point
    waits for it; one that comes after goes at once, and the next waits for the next point of the same grid.
    So a slow token delays no other, and points missed are lost, never made up.

    Guaranteed under one cap, if the caller waits as told: at most one token in each interval of the grid, so
    any n tokens in a row take more than n - 2 intervals. A single gap may be shorter than an interval, after
    a late token; the alternative, waiting for the next point, would halve the speed of a model just below the
    cap.
    """

    def __init__(
        self,
        profile: PowerProfile,
        *,
        max_tokens_per_sec: float | None = None,
        probe: PressureProbe | None = None,
    ) -> None:
        """Take the lower of the profile's cap and `max_tokens_per_sec`; pressure can only lower it.

        Raises:
            SettingError: `max_tokens_per_sec` is not a finite number above 0.
        """
        if max_tokens_per_sec is not None and not 0 < max_tokens_per_sec < math.inf:
            raise SettingError(
                f"max tokens per second is {max_tokens_per_sec}; give a number above 0, or none for no cap"
            )
        efficiency_cap = _EFFICIENCY_CAP if profile is PowerProfile.EFFICIENCY else None
        self._base_cap = _lowest(efficiency_cap, max_tokens_per_sec)
        self._probe = None if profile is PowerProfile.PERFORMANCE else probe
        self._cap = self._base_cap
        self._peak_memory_pressure = MemoryPressure.NORMAL
        self._n_tokens = 0
        self._anchor: float | None = None  # seconds, as `now`
        self._point = 0  # the grid point that the latest token used
        self._released: float | None = None  # when the latest token was allowed to go

    @property
    def cap(self) -> float | None:
        """The cap in force, in tok/s; None for no cap."""
        return self._cap

    @property
    def peak_memory_pressure(self) -> MemoryPressure:
        """The worst memory pressure read so far; NORMAL before any reading."""
        return self._peak_memory_pressure

    def next_delay(self, now: float) -> float:
        """Return the seconds to wait before the next token may be produced, 0.0 to go on at once.

        Call once a token, after the decision to go on. Polls the probe before the first token and every 16
        tokens.

        Args:
            now: seconds on a clock that never goes back.
        """
        if self._n_tokens % _TOKENS_PER_POLL == 0:
            self.poll()
        self._n_tokens += 1
        self._released = max(now, self._deadline(now))
        return self._released - now

    def poll(self) -> None:
        """Read memory and heat together and set the cap; `next_delay` does so when it is due."""
        reading = read_pressure(self._probe)
        self._peak_memory_pressure = max(self._peak_memory_pressure, reading.memory)
        cap = _lowest(self._base_cap, pressure_cap(reading))
        if cap != self._cap:
            self._cap = cap
            self._anchor = self._released
            self._point = 0

    def _deadline(self, now: float) -> float:
        """Move to the next token's grid point and return its time, which is past when the token is late."""
        if self._cap is None:
            return now
        if self._anchor is None:
            self._anchor = now
            return now
        latest_point = math.floor((now - self._anchor) * self._cap)
        self._point = max(self._point + 1, latest_point)
        return self._anchor + self._point / self._cap
