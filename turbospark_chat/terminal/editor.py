"""A text opened in the user's editor, in a file of its own that nobody else can read and that is gone afterwards."""

import asyncio
import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from turbospark_chat.chat.attachment import MOST_BYTES
from turbospark_chat.errors import UsageError
from turbospark_chat.regular_file import read_regular_file

_FALLBACKS = ("editor", "nano", "vim", "vi")
_SECONDS_TO_END = 2.0  # that an editor gets when the chat has to end


async def edit_text(text: str, environment: Mapping[str, str], *, terminal: int | None = None) -> str:
    """Return what the user made of `text` in `$VISUAL` or `$EDITOR`; cancelled, it ends the editor.

    The editor writes to `terminal`, a descriptor, where stdout goes elsewhere.

    Raises:
        UsageError: there is no editor, it failed, or what it left is no file to be read. The text is as it was.
    """
    command = _editor_command(environment)
    with tempfile.TemporaryDirectory(
        prefix="ts-"
    ) as folder:  # with the backups that editors leave beside a file
        path = Path(folder) / "message.md"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))  # what was typed may have been no UTF-8
        await _run([*command, str(path)], environment, terminal=terminal)
        try:  # an editor may have put anything in the file's place
            edited = read_regular_file(path, most_bytes=MOST_BYTES).decode("utf-8", "surrogateescape")
        except OSError as error:
            raise UsageError(
                f"cannot read what the editor left: {error.strerror}; the text is as it was"
            ) from error
    added_newline = edited.endswith("\n") and not text.endswith("\n")  # most editors end the last line
    return edited[:-1] if added_newline else edited


def _editor_command(environment: Mapping[str, str]) -> list[str]:
    for name in ("VISUAL", "EDITOR"):
        value = environment.get(name, "").strip()
        if not value:
            continue
        try:
            return shlex.split(value)
        except ValueError as error:
            raise UsageError(
                f"${name} is {value!r}: {error}; set it as in `export {name}='code -w'`"
            ) from error
    for fallback in _FALLBACKS:
        if found := shutil.which(fallback, path=environment.get("PATH")):
            return [found]
    raise UsageError("there is no editor: set $VISUAL or $EDITOR, as in `export EDITOR=nano`")


async def _run(command: list[str], environment: Mapping[str, str], *, terminal: int | None) -> None:
    name = command[0]
    try:
        editor = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=terminal, stderr=terminal
        )
    except OSError as error:
        raise UsageError(
            f"cannot run the editor `{name}`: {error.strerror}; set $VISUAL or $EDITOR"
        ) from error
    try:
        code = await editor.wait()
    except asyncio.CancelledError:
        await _end(editor)
        raise
    if code != 0:
        raise UsageError(f"the editor `{name}` ended with {code}: the text is as it was")


async def _end(editor: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        editor.terminate()
        try:
            await asyncio.wait_for(editor.wait(), _SECONDS_TO_END)
        except TimeoutError:
            editor.kill()
            await editor.wait()
