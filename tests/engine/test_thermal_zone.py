"""Thermal zones against their trip points."""

from pathlib import Path

import pytest

from turbospark_chat.engine.pressure import ThermalState
from turbospark_chat.engine.thermal_zone import read_thermal_state

NOMINAL, FAIR, SERIOUS, CRITICAL = ThermalState

# The zone that the kernel's sysfs-api.rst shows.
ACPI = [("critical", 100_000), ("passive", 80_000), ("active0", 70_000), ("active1", 60_000)]


def write_zone(root: Path, number: int, temperature: object, trips: list[tuple[str, object]]) -> None:
    zone = root / f"sys/class/thermal/thermal_zone{number}"
    zone.mkdir(parents=True)
    (zone / "type").write_text("acpitz\n")
    (zone / "mode").write_text("enabled\n")
    (zone / "temp").write_text(f"{temperature}\n")
    for i, (kind, trip) in enumerate(trips):
        (zone / f"trip_point_{i}_type").write_text(f"{kind}\n")
        (zone / f"trip_point_{i}_temp").write_text(f"{trip}\n")
        (zone / f"trip_point_{i}_hyst").write_text("2000\n")


@pytest.mark.parametrize(
    ("temperature", "trips", "state"),
    [
        (37_000, ACPI, NOMINAL),
        (59_999, ACPI, NOMINAL),
        (60_000, ACPI, FAIR),
        (79_999, ACPI, FAIR),
        (80_000, ACPI, SERIOUS),
        (94_999, ACPI, SERIOUS),
        (95_000, ACPI, CRITICAL),
        (101_000, ACPI, CRITICAL),
        (85_000, [("critical", 110_000), ("hot", 85_000)], CRITICAL),
        (84_999, [("critical", 110_000), ("hot", 85_000)], NOMINAL),
        (-5_000, ACPI, NOMINAL),
        (90_000, [], NOMINAL),
        (90_000, [("cold", 10_000), ("unheard-of", 20_000)], NOMINAL),
    ],
)
def test_the_trip_points_reached_decide(tmp_path, temperature, trips, state):
    write_zone(tmp_path, 0, temperature, trips)
    assert read_thermal_state(tmp_path) is state


@pytest.mark.parametrize("unset", [0, -274_000, -32_768_000, 2_147_483_647, "", "max", "4_0"])
@pytest.mark.parametrize("kind", ["passive", "hot", "critical"])
def test_a_trip_point_nobody_set_is_never_reached(tmp_path, kind, unset):
    write_zone(tmp_path, 0, 45_000, [(kind, unset), ("passive", 99_000)])
    assert read_thermal_state(tmp_path) is NOMINAL


@pytest.mark.parametrize("reading", ["", "hot", "2147483647", "99.5"])
def test_a_zone_without_a_reading_leaves_the_others(tmp_path, reading):
    write_zone(tmp_path, 0, reading, [("critical", 100_000)])
    assert read_thermal_state(tmp_path) is NOMINAL
    write_zone(tmp_path, 1, 65_000, ACPI)
    assert read_thermal_state(tmp_path) is FAIR


def test_the_hottest_zone_counts(tmp_path):
    write_zone(tmp_path, 0, 40_000, ACPI)
    write_zone(tmp_path, 1, 82_000, ACPI)
    write_zone(tmp_path, 10, 61_000, ACPI)
    assert read_thermal_state(tmp_path) is SERIOUS


def test_no_zones(tmp_path):
    assert read_thermal_state(tmp_path) is NOMINAL
    (tmp_path / "sys/class/thermal/thermal_zone0").mkdir(parents=True)
    assert read_thermal_state(tmp_path) is NOMINAL


def test_a_trip_point_without_a_temperature_is_skipped(tmp_path):
    write_zone(tmp_path, 0, 90_000, ACPI)
    (tmp_path / "sys/class/thermal/thermal_zone0/trip_point_1_temp").unlink()
    assert read_thermal_state(tmp_path) is FAIR
