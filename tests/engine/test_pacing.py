"""The pacer under a fake clock: what it lets pass, when it reads the probe, what pressure does to the cap."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.pacing import Pacer, PowerProfile, pressure_cap
from turbospark_chat.engine.pressure import MemoryPressure, Reading, ThermalState
from turbospark_chat.errors import SettingError

NORMAL, WARN, MEMORY_CRITICAL = MemoryPressure
NOMINAL, FAIR, SERIOUS, THERMAL_CRITICAL = ThermalState

# Powers of two keep the arithmetic of the properties exact: a test may then ask for equality.
CAP = 8.0  # tok/s
INTERVAL = 1 / CAP  # seconds


class FakeProbe:
    """Answers the readings in order, the last one for ever, and counts what was asked."""

    def __init__(self, *readings: Reading) -> None:
        self._readings = list(readings)
        self._reading = Reading()
        self.asked: list[str] = []

    def memory(self) -> MemoryPressure:
        self.asked.append("memory")
        if self._readings:
            self._reading = self._readings.pop(0)
        return self._reading.memory

    def thermal(self) -> ThermalState:
        self.asked.append("thermal")
        return self._reading.thermal


def run(pacer: Pacer, seconds_per_token, *, start: float = 0.0) -> list[float]:
    """Play a decode loop on a fake clock: wait as told, produce. Returns when each token was released."""
    now = start
    released = []
    for seconds in seconds_per_token:
        now += pacer.next_delay(now)
        released.append(now)
        now += seconds
    return released


def capped(cap: float = CAP) -> Pacer:
    return Pacer(PowerProfile.PERFORMANCE, max_tokens_per_sec=cap)


# The grid


def test_the_first_token_goes_at_once_and_the_next_an_interval_later():
    pacer = capped(10.0)
    assert pacer.next_delay(100.0) == 0.0
    assert pacer.next_delay(100.02) == pytest.approx(0.08)
    assert pacer.next_delay(100.15) == pytest.approx(0.05)


@pytest.mark.parametrize("cap", [0.5, 5.0, 10.0, 33.0])
@pytest.mark.parametrize("jitter", [0.0, 0.4], ids=["steady", "jitter"])
def test_the_long_run_rate_is_the_cap(cap, jitter):  # G10
    factors = itertools.cycle([0.5 - jitter, 0.5 + jitter])
    released = run(capped(cap), [next(factors) / cap for _ in range(1001)], start=12345.678)
    assert 1000 / (released[-1] - released[0]) == pytest.approx(cap, rel=0.01)


def test_a_clock_that_oversleeps_does_not_lower_the_rate():
    pacer = capped()
    now = 0.0
    for _ in range(1001):
        now += pacer.next_delay(now) + INTERVAL / 4  # every wait ends late; producing takes no time
    assert now == pytest.approx(1000 * INTERVAL, rel=0.01)


def test_one_slow_token_does_not_add_up():
    released = run(capped(), [INTERVAL / 4] * 3 + [3.5 * INTERVAL] + [INTERVAL / 4] * 4)
    points = [time / INTERVAL for time in released]
    #                             the token after the slow one is late and goes at once, off the grid
    assert points == [0, 1, 2, 3, 6.5, 7, 8, 9]


def test_points_missed_are_not_made_up():
    released = run(capped(), [10 * INTERVAL] + [0.0] * 9)
    assert [time / INTERVAL for time in released] == [0, 10, 11, 12, 13, 14, 15, 16, 17, 18]


@given(st.lists(st.integers(64, 1000), max_size=50))
def test_a_model_slower_than_the_cap_is_never_delayed(sixty_fourths):
    durations = [n * INTERVAL / 64 for n in sixty_fourths]
    expected = [0.0, *itertools.accumulate(durations)][: len(durations)]
    assert run(capped(), durations) == expected


@given(st.lists(st.integers(0, 200), min_size=3, max_size=60), st.integers(0, 2**20))
def test_no_interval_of_the_grid_has_two_tokens(sixty_fourths, start):
    released = run(capped(), [n * INTERVAL / 64 for n in sixty_fourths], start=float(start))
    cells = [math.floor((time - start) / INTERVAL) for time in released]
    assert cells == sorted(set(cells))
    # Which is to say that any n tokens in a row take more than n - 2 intervals.
    for n in range(2, len(released) + 1):
        assert all(b - a > (n - 2) * INTERVAL for a, b in zip(released, released[n - 1 :], strict=False))


def test_without_a_cap_nothing_waits():
    pacer = Pacer(PowerProfile.BALANCED, probe=FakeProbe())
    assert [pacer.next_delay(now) for now in (0.0, 0.0, 0.001, 7.0)] == [0.0] * 4


# Profiles and settings


@pytest.mark.parametrize(
    ("profile", "max_tokens_per_sec", "cap"),
    [
        (PowerProfile.PERFORMANCE, None, None),
        (PowerProfile.PERFORMANCE, 30, 30),
        (PowerProfile.BALANCED, None, None),
        (PowerProfile.BALANCED, 7.5, 7.5),
        (PowerProfile.EFFICIENCY, None, 10),
        (PowerProfile.EFFICIENCY, 30, 10),
        (PowerProfile.EFFICIENCY, 3, 3),
    ],
)
def test_the_lower_of_profile_and_setting_is_the_base_cap(profile, max_tokens_per_sec, cap):
    pacer = Pacer(profile, max_tokens_per_sec=max_tokens_per_sec)
    assert pacer.cap == cap
    pacer.next_delay(0.0)
    assert pacer.cap == cap


@pytest.mark.parametrize("rate", [0, -1, -0.0, math.nan, math.inf, -math.inf])
def test_a_rate_that_is_not_above_zero_is_refused_with_its_value(rate):
    with pytest.raises(SettingError, match=str(rate)):
        Pacer(PowerProfile.PERFORMANCE, max_tokens_per_sec=rate)


def test_performance_never_asks_the_probe():
    probe = FakeProbe(Reading(MEMORY_CRITICAL, THERMAL_CRITICAL))
    pacer = Pacer(PowerProfile.PERFORMANCE, probe=probe)
    assert run(pacer, [0.0] * 100) == [0.0] * 100
    pacer.poll()
    assert probe.asked == []
    assert pacer.peak_memory_pressure is NORMAL


# The ladder


@pytest.mark.parametrize(
    ("memory", "thermal", "cap"),
    [
        (NORMAL, NOMINAL, None),
        (NORMAL, FAIR, None),
        (NORMAL, SERIOUS, 10),
        (NORMAL, THERMAL_CRITICAL, 5),
        (WARN, NOMINAL, 10),
        (WARN, FAIR, 10),
        (WARN, SERIOUS, 10),
        (WARN, THERMAL_CRITICAL, 5),
        (MEMORY_CRITICAL, NOMINAL, 5),
        (MEMORY_CRITICAL, FAIR, 5),
        (MEMORY_CRITICAL, SERIOUS, 5),
        (MEMORY_CRITICAL, THERMAL_CRITICAL, 5),
    ],
)
def test_the_ladder(memory, thermal, cap):
    assert pressure_cap(Reading(memory, thermal)) == cap


@pytest.mark.parametrize("profile", [PowerProfile.BALANCED, PowerProfile.EFFICIENCY])
@pytest.mark.parametrize("base", [None, 2.0, 7.0, 40.0])
@pytest.mark.parametrize("memory", MemoryPressure)
@pytest.mark.parametrize("thermal", ThermalState)
def test_pressure_never_raises_a_cap(profile, base, memory, thermal):
    pacer = Pacer(profile, max_tokens_per_sec=base, probe=FakeProbe(Reading(memory, thermal)))
    before = pacer.cap
    pacer.next_delay(0.0)
    caps = [cap for cap in (before, pressure_cap(Reading(memory, thermal))) if cap is not None]
    assert pacer.cap == (min(caps) if caps else None)


@pytest.mark.parametrize(
    ("thermal", "rate"), [(NOMINAL, 50.0), (FAIR, 50.0), (SERIOUS, 10.0), (THERMAL_CRITICAL, 5.0)]
)
def test_heat_paces_a_fast_model_to_the_target(thermal, rate):  # G10
    pacer = Pacer(PowerProfile.BALANCED, probe=FakeProbe(Reading(thermal=thermal)))
    released = run(pacer, [0.02] * 201)
    assert 200 / released[-1] == pytest.approx(rate, rel=0.01)


class BrokenProbe:
    """Raises, or answers None, as a machine without the sensor might."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    def memory(self) -> MemoryPressure:
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[return-value]

    thermal = memory  # type: ignore[assignment]


@pytest.mark.parametrize(
    "probe", [None, BrokenProbe(None), BrokenProbe(OSError("no sensor"))], ids=["missing", "none", "raises"]
)
def test_without_a_reading_nothing_is_paced(probe):  # G10
    pacer = Pacer(PowerProfile.BALANCED, probe=probe)
    assert run(pacer, [0.0] * 40) == [0.0] * 40
    assert pacer.peak_memory_pressure is NORMAL


# Polling


def test_the_probe_is_polled_at_tokens_0_16_32_both_sensors_together():
    probe = FakeProbe()
    pacer = Pacer(PowerProfile.BALANCED, probe=probe)
    polled_at = []
    for token in range(100):
        asked_before = len(probe.asked)
        pacer.next_delay(float(token))
        if len(probe.asked) > asked_before:
            assert probe.asked[asked_before:] == ["memory", "thermal"]
            polled_at.append(token)
    assert polled_at == [0, 16, 32, 48, 64, 80, 96]


def test_a_poll_before_the_first_token_counts_for_a_reply_that_has_none():
    pacer = Pacer(PowerProfile.BALANCED, probe=FakeProbe(Reading(memory=WARN), Reading()))
    assert pacer.peak_memory_pressure is NORMAL
    pacer.poll()
    assert pacer.peak_memory_pressure is WARN
    assert pacer.cap == 10


def test_the_peak_is_the_worst_memory_pressure_not_the_latest():
    pressures = [NORMAL, WARN, MEMORY_CRITICAL, WARN, NORMAL]
    pacer = Pacer(PowerProfile.EFFICIENCY, probe=FakeProbe(*map(Reading, pressures)))
    peaks = []
    for token in range(16 * len(pressures)):
        pacer.next_delay(float(token))
        if token % 16 == 0:
            peaks.append(pacer.peak_memory_pressure)
    assert peaks == [NORMAL, WARN, MEMORY_CRITICAL, MEMORY_CRITICAL, MEMORY_CRITICAL]


def test_critical_pressure_slows_the_reply_and_its_end_frees_it():  # G6
    probe = FakeProbe(Reading(), Reading(MEMORY_CRITICAL), Reading())
    pacer = Pacer(PowerProfile.BALANCED, probe=probe)
    released = run(pacer, [0.01] * 48)
    gaps = [b - a for a, b in itertools.pairwise(released)]
    assert gaps == pytest.approx([0.01] * 15 + [0.2] * 16 + [0.01] * 16)
    assert pacer.cap is None


def test_a_new_cap_counts_from_the_token_before():
    # Token 15 leaves at 15 intervals of the efficiency cap; token 16 is the first under critical heat.
    pacer = Pacer(PowerProfile.EFFICIENCY, probe=FakeProbe(Reading(), Reading(thermal=THERMAL_CRITICAL)))
    released = run(pacer, [0.01] * 20)
    assert released[15:] == pytest.approx([1.5, 1.7, 1.9, 2.1, 2.3])


def test_an_unchanged_cap_keeps_its_grid():
    # Another reading with the same cap, at a token that is off the grid: the grid must not move to it.
    pacer = Pacer(PowerProfile.BALANCED, probe=FakeProbe(Reading(WARN), Reading(thermal=SERIOUS)))
    released = run(pacer, [0.01] * 14 + [0.17] + [0.01] * 5)
    assert released[14:] == pytest.approx([1.4, 1.57, 1.6, 1.7, 1.8, 1.9])
