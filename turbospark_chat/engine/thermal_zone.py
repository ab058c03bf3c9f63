"""Linux's thermal zones against their trip points: how hot the hottest is.

Source: the kernel's driver-api/thermal/sysfs-api.rst, ABI/testing/sysfs-class-thermal and the device-tree
binding thermal-zones, which says what each type of trip point is for.
"""

from pathlib import Path

from turbospark_chat.engine.kernel_file import read_int, read_text
from turbospark_chat.engine.pressure import ThermalState

# Type of trip point: the state at it, and how far below it (millidegrees Celsius) that state begins.
_TRIPS = {
    "active": (ThermalState.FAIR, 0),  # the fans go on
    "passive": (ThermalState.SERIOUS, 0),  # the kernel slows the processor itself
    "hot": (ThermalState.CRITICAL, 0),  # "notify emergency"; ACPI's _HOT asks for hibernation
    "critical": (ThermalState.CRITICAL, 5_000),  # the kernel powers the machine off at it
}
_HOTTEST = 200_000  # millidegrees Celsius; beyond it the sensor is broken


def read_thermal_state(root: Path) -> ThermalState:
    """Return the worst state of all zones; NOMINAL where there is none to read."""
    zones = root.glob("sys/class/thermal/thermal_zone*")
    return max((_zone_state(zone) for zone in zones), default=ThermalState.NOMINAL)


def _zone_state(zone: Path) -> ThermalState:
    state = ThermalState.NOMINAL
    temperature = _read_temperature(zone / "temp")
    if temperature is None:
        return state
    for type_file in zone.glob("trip_point_*_type"):
        kind = read_text(type_file).strip().rstrip("0123456789")  # ACPI numbers some: active0, active1
        trip = _read_temperature(type_file.with_name(type_file.name.removesuffix("type") + "temp"))
        if kind in _TRIPS and trip is not None:
            state_at_trip, margin = _TRIPS[kind]
            if temperature >= trip - margin:
                state = max(state, state_at_trip)
    return state


def _read_temperature(path: Path) -> int | None:
    """Return millidegrees Celsius, or None for no reading.

    NOTE: trip points that nobody set read 0 (x86_pkg_temp_thermal) or -274000 (THERMAL_TEMP_INVALID), and
    taken for temperatures they would be exceeded always.
    """
    value = read_int(path)
    return value if value is not None and 0 < value <= _HOTTEST else None
