"""Folders of compiled kernels side by side, one for each version of the code and each processor: the unused ones go.

A folder's own time says when a run used it last. Knows of kernels only what their folders and files are called.
"""

import os
import re
import time
from contextlib import suppress
from pathlib import Path

from turbospark_chat.models.sealed_file import is_own

DAY = 86_400  # seconds
UNUSED_DAYS = 90
_FOLDER_NAME = re.compile(r"[0-9a-f]{32}")  # as `digest_of` gives them
_FILE_NAME = re.compile(r"\w+\.o|tmp\w+")  # a kernel, or what a writer that was killed left of one


def note_use(folder: Path) -> None:
    """Note that a run uses a folder, and remove the one beside it that none has used for the longest time.

    Both once a day, and one folder at a time, so that no start waits for it. Whatever fails is left for another day.
    """
    with suppress(OSError):
        if time.time() - folder.stat().st_mtime > DAY:
            os.utime(folder)
            remove_unused(folder)


def remove_unused(in_use: Path) -> None:
    """Remove one of the folders beside `in_use` that no run has used for UNUSED_DAYS, the longest unused first.

    Raises:
        OSError: what is there cannot be listed.
    """
    unused_since = time.time() - UNUSED_DAYS * DAY
    with os.scandir(in_use.parent) as entries:
        folders = [
            (entry.stat(follow_symlinks=False).st_mtime, Path(entry.path))
            for entry in entries
            if entry.name != in_use.name
            and _FOLDER_NAME.fullmatch(entry.name)
            and entry.is_dir(follow_symlinks=False)
        ]
    for used, folder in sorted(folders):
        if used < unused_since and _remove(folder):
            return


def _remove(folder: Path) -> bool:
    """Remove a folder if it is this user's and has nothing but kernels in it; return whether it is gone."""
    try:
        files = list(os.scandir(folder))
        if not is_own(folder.stat()) or not all(_is_kernel(file) for file in files):
            return False
        for file in files:
            os.unlink(file)
        folder.rmdir()
    except OSError:
        return False
    return True


def _is_kernel(file: os.DirEntry[str]) -> bool:
    return _FILE_NAME.fullmatch(file.name) is not None and file.is_file(follow_symlinks=False)
