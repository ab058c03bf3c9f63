"""The levels and the safe reading of a probe."""

import pytest

from turbospark_chat.engine.pressure import MemoryPressure, Reading, ThermalState, read_pressure


class FakeProbe:
    """Answers, or raises, what it is given."""

    def __init__(self, memory: object, thermal: object) -> None:
        self._memory = memory
        self._thermal = thermal

    def memory(self) -> object:
        return self._answer(self._memory)

    def thermal(self) -> object:
        return self._answer(self._thermal)

    @staticmethod
    def _answer(value: object) -> object:
        if isinstance(value, Exception):
            raise value
        return value


def test_labels_are_what_users_see():
    assert [level.label for level in MemoryPressure] == ["normal", "warn", "critical"]


def test_levels_compare_by_severity():
    assert max(MemoryPressure) is MemoryPressure.CRITICAL and min(MemoryPressure) is MemoryPressure.NORMAL
    assert max(ThermalState) is ThermalState.CRITICAL and min(ThermalState) is ThermalState.NOMINAL


def test_both_levels_are_read():
    probe = FakeProbe(MemoryPressure.WARN, ThermalState.SERIOUS)
    assert read_pressure(probe) == Reading(MemoryPressure.WARN, ThermalState.SERIOUS)


def test_no_probe_reads_as_nominal():
    assert read_pressure(None) == Reading(MemoryPressure.NORMAL, ThermalState.NOMINAL)


@pytest.mark.parametrize(
    "unreadable",
    [None, 99, -1, "hot", OSError("gone"), RuntimeError("driver"), NotImplementedError()],
    ids=repr,
)
def test_a_sensor_that_cannot_answer_is_nominal_and_the_other_still_counts(unreadable):  # G10
    no_memory = read_pressure(FakeProbe(unreadable, ThermalState.CRITICAL))
    assert no_memory == Reading(MemoryPressure.NORMAL, ThermalState.CRITICAL)
    no_thermal = read_pressure(FakeProbe(MemoryPressure.CRITICAL, unreadable))
    assert no_thermal == Reading(MemoryPressure.CRITICAL, ThermalState.NOMINAL)


def test_an_interrupt_is_not_swallowed():
    class Interrupted(FakeProbe):
        def memory(self) -> object:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_pressure(Interrupted(None, None))
