"""Transcripts as Markdown: read back exactly, shown well, and refused with the line where something is wrong."""

import pytest
from hypothesis import given
from markdown_it import MarkdownIt
from transcripts import texts, transcript_of, transcripts

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.transcript import Transcript, TranscriptTurn
from turbospark_chat.chat.transcript_markdown import from_markdown, to_markdown
from turbospark_chat.errors import TranscriptError

HEADER = '<!-- turbospark_chat transcript {"format": "turbospark_chat", "version": 1} -->\n'


def section(kind: str, text: str = "x") -> str:
    return f"<!-- turbospark_chat {kind} -->\n\n{text}\n\n<!-- turbospark_chat end -->\n"


@given(transcripts)
def test_what_was_written_is_read_back(transcript: Transcript) -> None:  # T81
    assert from_markdown(to_markdown(transcript)) == transcript


@given(texts, texts)
def test_nothing_in_a_text_makes_another_heading(user: str, reply: str) -> None:
    """Whatever is said, a reader sees the page's own headings: no open fence or comment swallows them."""
    harmless = (user.replace("<", "("), reply.replace("<", "("))  # a forge takes HTML for HTML
    tokens = MarkdownIt().parse(to_markdown(transcript_of(*harmless, complete=False)))
    inline = [token.content for token in tokens if token.type == "inline" and token.level == 1]
    assert inline[-1] == "*The reply was cut short.*"
    assert "Assistant" in inline


def test_it_reads_as_a_conversation() -> None:
    transcript = Transcript(
        "Sums",
        "SmolLM2_135M",
        system="Be brief.",
        turns=(
            TranscriptTurn(Message("user", "2+2?"), Message("assistant", "4", reasoning="easy"), {"seed": 7}),
        ),
    )
    assert (
        to_markdown(transcript)
        == """\
<!-- turbospark_chat transcript {"format": "turbospark_chat", "version": 1, "title": "Sums", \
"model": "SmolLM2_135M", "created": null} -->

# Sums

SmolLM2_135M

## System

<!-- turbospark_chat system -->

Be brief.

<!-- turbospark_chat end -->

## User

<!-- turbospark_chat user -->

2+2?

<!-- turbospark_chat end -->

## Assistant

<details>
<summary>Reasoning</summary>

<!-- turbospark_chat reasoning -->

easy

<!-- turbospark_chat end -->

</details>

<!-- turbospark_chat reply {"complete": true, "seed": 7} -->

4

<!-- turbospark_chat end -->
"""
    )


@pytest.mark.parametrize(
    ("reply", "closed_by"),
    [
        ("```py\nx", "```"),
        ("text\n  ~~~~\nx\n```", "~~~~"),
        ("````\n```\n", "````"),
        ("```\n``` x", "```"),
        ("```\nx\n`````  \r", None),
        ("``` a`b", None),
        ("    ```", None),
        ("a\r```", "```"),
        ("1. do\n   ```sh\n   ls", None),
        ("1. do\n   ```sh\n   ls\n\n~~~\nx", "~~~"),
        ("> ```\n> x", None),
        ("", None),
    ],
)
def test_code_left_open_is_closed_for_the_eye_alone(reply: str, closed_by: str | None) -> None:
    transcript = transcript_of("u", reply)
    written = to_markdown(transcript)
    assert from_markdown(written) == transcript
    if closed_by:
        assert f'\n{closed_by}\n\n<!-- turbospark_chat end {{"fence": "{closed_by}"}} -->\n' in written
    else:
        assert "fence" not in written


def test_a_title_is_no_markdown_and_ends_no_comment() -> None:
    transcript = Transcript("a --> *b* <i> `c` --- _d_ e_f", "m")
    written = to_markdown(transcript)
    assert "\n# a --\\> \\*b\\* \\<i\\> \\`c\\` --- \\_d\\_ e_f\n" in written
    assert written.splitlines()[0].count("--") == 2  # the comment's own
    assert from_markdown(written) == transcript


def test_a_lone_surrogate_is_written_as_the_replacement_character() -> None:
    written = to_markdown(transcript_of("a\udc80", "\ud83db"))
    written.encode("utf-8")
    assert from_markdown(written) == transcript_of("a\ufffd", "\ufffdb")


@given(transcripts)
def test_a_file_whose_line_ends_became_crlf_is_read(transcript: Transcript) -> None:
    written = to_markdown(transcript)
    if "\r" in written:
        written = written.replace("\r", "")
        transcript = from_markdown(written)
    assert from_markdown(written.replace("\n", "\r\n")) == transcript


def test_text_around_the_marks_and_missing_blank_lines_do_not_matter() -> None:
    text = "---\nlayout: post\n---\n" + HEADER + section("user", "a\nb") + "notes\n" + section("reply")
    assert from_markdown(text.replace("\n\n", "\n")) == from_markdown(text)
    assert from_markdown(text).turns == (TranscriptTurn(Message("user", "a\nb"), Message("assistant", "x")),)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no transcript: it has no <!-- turbospark_chat marks"),
        ("# Notes\n\nHello", "no transcript"),
        (section("user"), "line 1: the mark `user` where `transcript` is expected"),
        (HEADER + HEADER, "line 2: the mark `transcript` where `system` or `user` is expected"),
        (HEADER + section("reply"), "line 2: the mark `reply` where `system` or `user` is expected"),
        (HEADER + section("user") + section("user"), "line 7: .*`user` where `reasoning` or `reply`"),
        (HEADER + section("poem"), "line 2: the mark `poem`"),
        (HEADER + section("user"), "line 2: `user` has no reply: the file was cut short"),
        (HEADER + section("user") + section("reasoning"), "line 7: `reasoning` has no reply"),
        (HEADER + section("user")[:40], "line 2: `user` has no end: the file was cut short"),
        (HEADER + "<!-- turbospark_chat end -->", "line 2: the mark `end` is out of place"),
        (HEADER + "<!-- turbospark_chat user -->\n" * 2, "line 3: the mark `user` is out of place"),
        (
            HEADER + "<!-- turbospark_chat user {] -->\n",
            "line 2: a damaged mark: <!-- turbospark_chat user {",
        ),
        (HEADER + "<!-- turbospark_chat user {} x\n", "line 2: a damaged mark"),
        ("<!-- turbospark_chat transcript -->", "`format` is missing"),
        (HEADER.replace("1", "2"), "`version` is 2, this program reads 1"),
        (
            HEADER + section("user") + section('reply {"complete": 1}'),
            "turn 1: `complete` is 1, expected true or false",
        ),
    ],
)
def test_a_damaged_file_is_refused_with_its_line(text: str, problem: str) -> None:
    with pytest.raises(TranscriptError, match=problem):
        from_markdown(text)


@given(transcripts)
def test_a_file_cut_anywhere_is_refused_or_ends_with_a_whole_turn(transcript: Transcript) -> None:
    written = to_markdown(transcript)
    for length in range(0, len(written), max(len(written) // 20, 1)):
        try:
            cut = from_markdown(written[:length])
        except TranscriptError:
            continue
        assert cut.turns == transcript.turns[: len(cut.turns)]
