"""Transcripts and other texts as files: the form by the name's ending, and never half a file under that name.

A text is written beside its place and renamed into it, so a full disk or a crash leaves the old file, or none.
"""

import os
import shutil
import tempfile
from pathlib import Path

from turbospark_chat.chat.transcript import Transcript
from turbospark_chat.chat.transcript_json import from_json, to_json
from turbospark_chat.chat.transcript_markdown import from_markdown, to_markdown
from turbospark_chat.errors import TranscriptError, UsageError

FORMS = ("md", "json", "html")


def render_transcript(transcript: Transcript, form: str) -> str:
    """Return the transcript as `md`, `json` or `html`.

    Raises:
        UsageError: another form.
    """
    match form:
        case "md":
            return to_markdown(transcript)
        case "json":
            return to_json(transcript)
        case "html":
            # Here, because its Markdown reader would slow the start of every chat.
            from turbospark_chat.chat.transcript_html import to_html

            return to_html(transcript)
    raise UsageError(f"unknown form {form!r}: expected one of {', '.join(FORMS)}")


def write_transcript(path: Path | str, transcript: Transcript, *, overwrite: bool = False) -> Path:
    """Write a transcript in the form that the name's ending says, and return where it is.

    Raises:
        UsageError: another ending, a file that is there already, or no folder to put it in.
        TranscriptError: it could not be written; what was there before still is.
    """
    form = _ending(path)
    if form not in FORMS:
        raise UsageError(f"{path}: the name must end in .md, .json or .html, which says the form")
    return write_text_file(path, render_transcript(transcript, form), overwrite=overwrite)


def read_transcript(path: Path | str) -> Transcript:
    """Read a transcript from a `.md` or `.json` file.

    Raises:
        UsageError: another ending, or no file there.
        TranscriptError: it cannot be read, or is no transcript.
    """
    reader = {"md": from_markdown, "json": from_json}.get(_ending(path))
    if reader is None:
        raise UsageError(f"{path}: only .md and .json files can be read back")
    place = _place(path)
    try:
        if not place.is_file():  # a FIFO or a device may never end
            raise UsageError(f"{path}: {'not a file' if place.exists() else 'no such file'}")
        return reader(place.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise TranscriptError(f"{path}: not UTF-8 text: byte {error.start} is none") from error
    except TranscriptError as error:
        raise TranscriptError(f"{path}: {error}") from error


def write_text_file(path: Path | str, text: str, *, overwrite: bool = False) -> Path:
    """Write a text as UTF-8, whole or not at all, and return where it is; line ends stay as they are.

    A new file is for this user alone; one that is replaced keeps its permissions, and its place behind a link.

    Raises:
        UsageError: a file that is there already, unless `overwrite`, or no folder to put it in.
        TranscriptError: it could not be written; what was there before still is.
    """
    place = _place(path)
    try:
        if place.exists() and not place.is_file():
            raise UsageError(f"{path}: not a file; name another")
        if place.exists() and not overwrite:
            raise UsageError(f"{path}: there is a file already; name another, or add `--force` to replace it")
        if not place.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {place.parent}; make it, or name another")
        _replace(place, text.encode("utf-8"))
    except OSError as error:
        raise TranscriptError(f"{path}: cannot be written: {error.strerror}") from error
    return place


def _replace(place: Path, content: bytes) -> None:
    """Put content in a file's place in one step, once all of it is on the disk."""
    with tempfile.NamedTemporaryFile(dir=place.parent, prefix=".turbospark_chat-", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if place.exists():
                shutil.copymode(place, file.name)
            os.replace(file.name, place)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def _ending(path: Path | str) -> str:
    return Path(path).suffix.lower().removeprefix(".")


def _place(path: Path | str) -> Path:
    """Return the file that is meant, wherever links lead."""
    try:
        return Path(path).expanduser().resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a user who is not there, links in a circle, a NUL
        raise UsageError(f"{str(path)!r} cannot be the name of a file: {error}") from error
