"""What reads this machine: the probe for its operating system, and the memory it has left.

The one place that knows which systems there are.
"""

import sys
from pathlib import Path

from turbospark_chat.engine.linux_probe import LinuxProbe
from turbospark_chat.engine.macos_probe import MacosProbe
from turbospark_chat.engine.pressure import PressureProbe


def make_probe(platform: str = sys.platform) -> PressureProbe | None:
    """Return the probe for `platform`, None where there is none: memory then counts as NORMAL."""
    if platform == "linux":
        return LinuxProbe()
    if platform == "darwin":
        return MacosProbe()
    return None


def available_memory(root: Path = Path("/")) -> int:
    """Return the bytes this process can still take; on Linux the control groups' limits count.

    `sys.maxsize` where the system does not say, so that nothing is refused for want of a reading.
    """
    left = LinuxProbe(root).available_memory()
    if left is not None:
        return left
    import psutil  # here, because Linux does without it

    try:
        return psutil.virtual_memory().available
    except OSError:  # Linux without /proc
        return sys.maxsize
