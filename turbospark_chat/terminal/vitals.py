"""The machine's state for the status bar, read on a thread of its own so that drawing never waits for it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from turbospark_chat.engine.pressure import MemoryPressure, PressureProbe, read_pressure


@dataclass(frozen=True, slots=True)
class Vitals:
    """One reading: pressure, this program's resident memory in bytes, and whether a battery runs the machine."""

    memory_pressure: MemoryPressure
    resident_bytes: int
    is_on_battery: bool = False


class VitalsMonitor:
    """Reads every second while it runs; `latest` is only ever swapped whole."""

    def __init__(
        self, probe: PressureProbe | None, *, on_change: Callable[[], None], interval: float = 1.0
    ) -> None:
        import psutil

        self._process = psutil.Process()
        self._read_battery = getattr(psutil, "sensors_battery", lambda: None)  # not on every system
        self._probe, self._on_change, self._interval = probe, on_change, interval
        self._closing = threading.Event()
        self.latest = self._read()
        self._thread = threading.Thread(target=self._watch, name="vitals", daemon=True)

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        self._closing.set()

    def _watch(self) -> None:
        while not self._closing.wait(self._interval):
            reading = self._read()
            if reading != self.latest:
                self.latest = reading
                self._on_change()

    def _read(self) -> Vitals:
        pressure = read_pressure(self._probe).memory
        return Vitals(pressure, self._process.memory_info().rss, self._is_on_battery())

    def _is_on_battery(self) -> bool:
        try:
            battery = self._read_battery()
        except Exception:  # a sensor that cannot be read, in whatever way, says nothing
            return False
        return battery is not None and battery.power_plugged is False
