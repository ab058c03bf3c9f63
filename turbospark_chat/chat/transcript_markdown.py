"""A transcript as Markdown that any forge shows well, and back.

What is read back stands between marks, which are HTML comments on lines of their own and not seen:

    <!-- turbospark_chat reply {"complete": true} -->
    (blank)
    the reply's lines
    (blank)
    <!-- turbospark_chat end -->

Everything outside them is for the eye. A line that looks like a mark gets a backslash in front, which also shows it
as text; the blank lines beside the marks are not part of the text. A code fence that a text leaves open is closed
by a line that the end mark names. Lines end with LF; other line ends are characters of the text.
Text comes back exactly, but for what UTF-8 cannot hold: a surrogate that stands alone is written as U+FFFD.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turbospark_chat.chat.transcript import Transcript, encodable
from turbospark_chat.chat.transcript_json import FORMAT, Record, from_record, json_text, to_record
from turbospark_chat.errors import TranscriptError

_PREFIX = f"<!-- {FORMAT} "
_MARK = re.compile(re.escape(_PREFIX) + r"(\w+)(?: (\{.*\}))? -->\s*")
_LOOKS_LIKE_A_MARK = re.compile(r"\\*" + re.escape(_PREFIX))
_PUNCTUATION = re.compile(r"[\\`*\[\]<>&#|~]|\b_|_\b")  # within a word, `_` means nothing

_FOLLOWS = {
    "": ("transcript",),
    "transcript": ("system", "user"),
    "system": ("user",),
    "user": ("reasoning", "reply"),
    "reasoning": ("reply",),
    "reply": ("user",),
}
"""Which section may come after which, the first after none."""


@dataclass(frozen=True, slots=True)
class _Section:
    """Text between marks, and what the mark above it says. `line` is that mark's, counted from 1."""

    kind: str
    fields: Record
    text: str
    line: int


def to_markdown(transcript: Transcript) -> str:
    """Return the transcript as Markdown."""
    record = to_record(transcript)
    turns, system = record.pop("turns"), record.pop("system")
    blocks = [_mark("transcript", record), f"# {_plain(transcript.heading)}", _plain(transcript.byline)]
    if system is not None:
        blocks += ["## System", _section("system", system)]
    for turn in turns:
        reply, reasoning = turn.pop("reply"), turn.pop("reasoning")
        blocks += ["## User", _section("user", turn.pop("user")), "## Assistant"]
        if reasoning is not None:
            blocks += [
                "<details>\n<summary>Reasoning</summary>",
                _section("reasoning", reasoning),
                "</details>",
            ]
        blocks.append(_section("reply", reply, turn))
        if not turn["complete"]:
            blocks.append("*The reply was cut short.*")
    return encodable("\n\n".join(filter(None, blocks)) + "\n")


def from_markdown(text: str) -> Transcript:
    """Read what `to_markdown` wrote, also after something on its way made every line end CRLF.

    Raises:
        TranscriptError: the marks are not there or not in order, or what they say is not a transcript.
    """
    header = next((line for line in text.split("\n") if line.startswith(_PREFIX)), "")
    if header.endswith("\r"):
        text = text.replace("\r\n", "\n")
    sections = list(_sections(text.split("\n")))
    if not sections:
        raise TranscriptError(f"no transcript: it has no {_PREFIX}marks, as files that were exported have")
    _check_order(sections)
    record: Record = {**sections[0].fields, "turns": []}
    said: Record = {}
    for section in sections[1:]:
        if section.kind == "system":
            record["system"] = section.text
            continue
        said[section.kind] = section.text
        if section.kind == "reply":
            record["turns"].append({**section.fields, **said})
            said = {}
    return from_record(record)


def _section(kind: str, text: str, fields: Record | None = None) -> str:
    """Return a text between its marks."""
    lines = [f"\\{line}" if _LOOKS_LIKE_A_MARK.match(line) else line for line in text.split("\n")]
    fence = _open_fence(text)
    if fence:
        lines.append(fence)
    end = _mark("end", {"fence": fence} if fence else None)
    return "\n".join([_mark(kind, fields), "", *lines, "", end])


def _mark(kind: str, fields: Record | None = None) -> str:
    """Return a comment that cannot end early: JSON has `--` in its strings alone, where it is escaped."""
    if not fields:
        return f"{_PREFIX}{kind} -->"
    says = json_text(fields).replace("--", "-\\u002d")
    return f"{_PREFIX}{kind} {says} -->"


def _plain(text: str) -> str:
    """Return text in which no character is Markdown."""
    return _PUNCTUATION.sub(r"\\\g<0>", text)


def _open_fence(text: str) -> str:
    """Return the fence that closes the code still open after the text, or nothing."""
    # Here, because it would slow the start of every chat.
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark")
    blocks = markdown.parse(text)
    if not blocks or blocks[-1].type != "fence":  # one that a list leaves open ends with the list
        return ""
    fence = blocks[-1].markup
    return fence if len(markdown.parse(f"{text}\n{fence}")) == len(blocks) else ""  # else it opens another


def _sections(lines: Sequence[str]) -> Iterator[_Section]:
    """Yield the sections in order; the first mark is one without a text."""
    started: tuple[str, Record, int] | None = None
    for number, line in enumerate(lines, start=1):
        if not line.startswith(_PREFIX):
            continue
        kind, fields = _read_mark(line, number)
        if kind == "transcript":
            yield _Section(kind, fields, "", number)
        elif (kind == "end") != (started is not None):
            raise TranscriptError(f"line {number}: the mark `{kind}` is out of place")
        elif started is None:
            started = kind, fields, number
        else:
            yield _Section(
                *started[:2], _text(lines[started[2] : number - 1], fields.get("fence")), started[2]
            )
            started = None
    if started:
        raise TranscriptError(f"line {started[2]}: `{started[0]}` has no end: the file was cut short")


def _read_mark(line: str, number: int) -> tuple[str, Record]:
    match = _MARK.fullmatch(line)
    try:
        if match:
            return match[1], json.loads(match[2] or "{}")
    except (ValueError, RecursionError):
        pass
    raise TranscriptError(f"line {number}: a damaged mark: {line.rstrip()}")


def _text(lines: Sequence[str], fence: object) -> str:
    """Return the text that lies between marks."""
    lines = lines[1:] if lines and not lines[0] else lines
    lines = lines[:-1] if lines and not lines[-1] else lines
    if fence and lines and lines[-1] == fence:
        lines = lines[:-1]
    return "\n".join(
        line[1:] if line[:1] == "\\" and _LOOKS_LIKE_A_MARK.match(line) else line for line in lines
    )


def _check_order(sections: Sequence[_Section]) -> None:
    previous = ""
    for section in sections:
        if section.kind not in _FOLLOWS[previous]:
            expected = " or ".join(f"`{kind}`" for kind in _FOLLOWS[previous])
            raise TranscriptError(
                f"line {section.line}: the mark `{section.kind}` where {expected} is expected"
            )
        previous = section.kind
    if previous in ("user", "reasoning"):
        raise TranscriptError(f"line {sections[-1].line}: `{previous}` has no reply: the file was cut short")
