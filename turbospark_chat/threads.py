"""How many threads compute. BLAS reads its own number when numpy is first imported, so it is set before."""

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

from turbospark_chat.errors import SettingError

BLAS_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_QUOTA = (
    "sys/fs/cgroup/cpu.max"  # microseconds of each period: https://docs.kernel.org/admin-guide/cgroup-v2.html
)
_TOPOLOGY = "sys/devices/system/cpu/cpu{number}/topology/{name}"


def read_threads(text: str | None) -> int | None:
    """Return the number of threads that a user asks for, None where the default is meant.

    Raises:
        SettingError: not a whole number above 0.
    """
    if text is None:
        return None
    if not (text.isdecimal() and len(text) < 5 and int(text)):
        raise SettingError(f"threads is {text[:20]!r}: give a whole number from 1 to 9999")
    return int(text)


def physical_cores(root: Path = Path("/")) -> int:
    """Return the cores this process may use: two threads of one core would only wait for each other.

    Where the system does not tell cores from their threads, every processor counts. A container's share of processor
    time counts too.
    """
    n_cores = len({_core_of(number, root) for number in _processors()})
    return max(1, math.floor(min(n_cores, _share_of_time(root))))


def set_blas_threads(n_threads: int | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let BLAS use so many threads; without a number all cores but one, unless the environment says otherwise.

    BLAS threads wait for each other by spinning. With one for every core, whatever else runs stops them all, and
    a token takes several times as long as with one thread fewer.
    """
    if n_threads is None and any(name in environment for name in BLAS_VARIABLES):
        return
    for name in BLAS_VARIABLES:
        environment[name] = str(n_threads or max(1, len(_processors()) - 1))


def _processors() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _core_of(number: int, root: Path) -> tuple[str, ...]:
    try:
        names = ("physical_package_id", "core_id")
        return tuple(
            (root / _TOPOLOGY.format(number=number, name=name)).read_text().strip() for name in names
        )
    except OSError:
        return (str(number),)


def _share_of_time(root: Path) -> float:
    """Return how many processors' time this process gets, infinity where nothing limits it."""
    try:
        quota, period = (root / _QUOTA).read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):  # "max" is no number
        return math.inf
