"""How many threads numpy's BLAS may use. Read by BLAS when numpy is first imported, so it is set before."""

import os
from collections.abc import MutableMapping

from turbospark_chat.errors import SettingError

VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def default_threads() -> int:
    """Return all cores this process may use but one.

    BLAS threads wait for each other by spinning. With one for every core, whatever else runs stops them all, and
    a token takes several times as long as with one thread fewer.
    """
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, n_cores - 1)


def set_blas_threads(text: str | None, environment: MutableMapping[str, str] = os.environ) -> None:
    """Let BLAS use so many threads; without a number the default, unless the environment says otherwise.

    Raises:
        SettingError: not a whole number above 0.
    """
    if text is not None and not (text.isdecimal() and 0 < len(text) < 5 and int(text)):
        raise SettingError(f"threads is {text[:20]!r}: give a whole number from 1 to 9999")
    if text is None and any(name in environment for name in VARIABLES):
        return
    for name in VARIABLES:
        environment[name] = text or str(default_threads())
