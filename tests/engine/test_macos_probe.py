"""Decoding of macOS's pressure mask; the kernel call itself can only be tried on macOS."""

import sys

import pytest

from turbospark_chat.engine.macos_probe import MacosProbe, read_sysctl
from turbospark_chat.engine.pressure import MemoryPressure, ThermalState


@pytest.mark.parametrize(
    ("mask", "level"),
    [
        (1, MemoryPressure.NORMAL),
        (2, MemoryPressure.WARN),
        (4, MemoryPressure.CRITICAL),
        (3, MemoryPressure.WARN),
        (6, MemoryPressure.CRITICAL),
        (7, MemoryPressure.CRITICAL),
        (0, MemoryPressure.NORMAL),
        (8, MemoryPressure.NORMAL),
        (None, MemoryPressure.NORMAL),
    ],
)
def test_the_highest_bit_of_the_mask_counts(mask, level):
    asked = []

    def read(name: str) -> int | None:
        asked.append(name)
        return mask

    assert MacosProbe(read).memory() is level
    assert asked == ["kern.memorystatus_vm_pressure_level"]


def test_heat_is_not_read():
    assert MacosProbe(lambda name: 4).thermal() is ThermalState.NOMINAL


def test_an_unknown_variable_has_no_value():
    assert read_sysctl("kern.no_such_variable") is None


@pytest.mark.skipif(sys.platform == "darwin", reason="there the kernel answers")
def test_elsewhere_than_on_macos_memory_is_normal():
    assert MacosProbe().memory() is MemoryPressure.NORMAL


@pytest.mark.skipif(sys.platform != "darwin", reason="asks the running kernel")
def test_the_running_kernel_answers_a_known_mask():
    assert read_sysctl("kern.memorystatus_vm_pressure_level") in (1, 2, 4)
