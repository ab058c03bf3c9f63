"""The thread that reads the machine's state for the bar."""

import os
import threading
import time
from types import SimpleNamespace

import psutil
import pytest

from turbospark_chat.engine.pressure import MemoryPressure, ThermalState
from turbospark_chat.terminal.vitals import VitalsMonitor


class Probe:
    """Answers the next of `levels`; the last one stays. An exception is raised."""

    def __init__(self, *levels):
        self._levels = list(levels)
        self.n_reads = 0

    def memory(self):
        self.n_reads += 1
        level = self._levels.pop(0) if len(self._levels) > 1 else self._levels[0]
        if isinstance(level, Exception):
            raise level
        return level

    def thermal(self):
        return ThermalState.NOMINAL


def vitals_threads():
    return [thread for thread in threading.enumerate() if thread.name == "vitals"]


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.fixture
def watch():
    """Start a monitor that reads all the time; it is closed at the end."""
    monitors = []

    def start(probe, *, on_change=lambda: None):
        monitors.append(VitalsMonitor(probe, on_change=on_change, interval=0.001))
        monitors[-1].start()
        return monitors[-1]

    yield start
    for monitor in monitors:
        monitor.close()
    wait_until(lambda: not vitals_threads())


def test_there_is_a_reading_before_it_starts():
    monitor = VitalsMonitor(Probe(MemoryPressure.WARN), on_change=lambda: None)
    assert monitor.latest.memory_pressure is MemoryPressure.WARN
    assert monitor.latest.resident_bytes == pytest.approx(
        psutil.Process(os.getpid()).memory_info().rss, rel=0.2
    )
    assert not vitals_threads()


def test_without_a_probe_pressure_is_normal():
    assert VitalsMonitor(None, on_change=lambda: None).latest.memory_pressure is MemoryPressure.NORMAL


def test_a_change_is_told_once_it_can_be_read(watch):
    told = []
    monitor = watch(
        Probe(MemoryPressure.NORMAL, MemoryPressure.CRITICAL), on_change=lambda: told.append(monitor.latest)
    )
    wait_until(lambda: monitor.latest.memory_pressure is MemoryPressure.CRITICAL and told)
    assert told[0].memory_pressure is MemoryPressure.CRITICAL


def test_a_probe_that_raises_does_not_end_it(watch):
    probe = Probe(MemoryPressure.WARN, OSError("no such file"), ValueError("what"), MemoryPressure.CRITICAL)
    monitor = watch(probe)
    wait_until(lambda: monitor.latest.memory_pressure is MemoryPressure.CRITICAL)
    assert probe.n_reads >= 4


def test_closed_its_thread_ends(watch):
    monitor = watch(Probe(MemoryPressure.NORMAL))
    assert len(vitals_threads()) == 1
    monitor.close()
    wait_until(lambda: not vitals_threads())


@pytest.mark.parametrize(
    ("sensor", "is_on_battery"),
    [
        (lambda: SimpleNamespace(power_plugged=False), True),
        (lambda: SimpleNamespace(power_plugged=True), False),
        (lambda: SimpleNamespace(power_plugged=None), False),  # nobody knows
        (lambda: None, False),  # there is no battery
        (lambda: 1 / 0, False),
    ],
)
def test_a_battery_is_noted_where_it_surely_runs_the_machine(monkeypatch, sensor, is_on_battery):
    monkeypatch.setattr(psutil, "sensors_battery", sensor, raising=False)
    assert VitalsMonitor(None, on_change=lambda: None).latest.is_on_battery is is_on_battery


def test_a_system_without_battery_sensors_is_taken_to_be_plugged_in(monkeypatch):
    monkeypatch.delattr(psutil, "sensors_battery", raising=False)
    assert VitalsMonitor(None, on_change=lambda: None).latest.is_on_battery is False
