"""The screen of the real program in a pseudo-terminal: what scrolls away, what is typed, what a model cannot do."""

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from terminal_driver import (
    BACKSPACE,
    CTRL_C,
    CTRL_R,
    DELETE,
    ENTER,
    ESCAPE,
    GREEDY,
    LEFT,
    LETTERS,
    TAB,
    UP,
    Terminal,
    environment,
    leave,
    open_chat,
    paste,
    run_ts,
)
from tiny_model import CONTROLS, write_tiny_model
from vocabularies import CONTROL, byte_level

CTRL_X_CTRL_E = "\x18\x05"
FAMILY = "👨\u200d👩\u200d👧"

# A vocabulary of the test's own


@dataclass(frozen=True)
class Sayer:
    """A tiny model's file, and the flags with which it says nothing but some pieces, drawn by the seed."""

    path: Path
    flags: tuple[str, ...]

    def says(self, *more: str) -> str:
        """What it answers to `hi`, through a pipe."""
        return run_ts(
            "chat", "-q", "--no-save", "-m", self.path, *self.flags, *more, stdin="hi\n"
        ).stdout.decode()[:-1]


def sayer(folder: Path, pieces: Sequence[str], *, temperature: str = "1") -> Sayer:
    """Write a model whose tokens are single bytes and these pieces, each one token."""
    words = [_spelled(piece) for piece in pieces]
    vocabulary = byte_level(
        dict.fromkeys(CONTROLS, CONTROL),
        [word for word in words if len(word) > 1],
        eos_token_id=1,
        bos_token_id=0,
    )
    path = write_tiny_model(folder / "sayer.gguf", context_length=16_384, **vocabulary)
    tokens = vocabulary["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    bias = ",".join(f"{tokens.index(word)}:100" for word in words)
    return Sayer(path, ("--temperature", temperature, "--seed", "1", "--logit-bias", bias))


def _spelled(piece: str) -> str:
    """The piece as a byte-level vocabulary writes it: a character a byte, the printable ones themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    letters |= {byte: chr(0x100 + number) for number, byte in enumerate(others)}
    return "".join(letters[byte] for byte in piece.encode())


def said(transcript: str, message: str = "hi") -> str:
    """The reply below the last of such messages, up to the notice at its end."""
    return transcript.rsplit(f"> {message}\n", 1)[1].split("\n[", 1)[0]


def sent(home: Path) -> list[str]:
    """What was sent, from the file of inputs."""
    (path,) = home.rglob("history")
    return [json.loads(line)["input"] for line in path.read_text(encoding="utf-8").splitlines()]


# Long replies, and sizes that change

SIZES = (
    (30, 100),
    (24, 60),
    (17, 40),
    (24, 40),
    (40, 120),
    (20, 79),
    (24, 80),
    (18, 30),
    (28, 133),
    (24, 80),
)


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory) -> Sayer:
    """A model of lines that are shorter than any screen here is wide, and of paragraphs."""
    words = [f"{a}{b}{c}" for a in "bdg" for b in "ao" for c in "mst"]
    lines = [f"{one} {other}\n" for one in words for other in words[:4]]
    return sayer(tmp_path_factory.mktemp("writer"), [*lines, "the end\n\n", "so much for that\n\n"])


LONG = ("--max-tokens", "600")


@pytest.fixture(scope="module")
def lines(writer: Sayer) -> list[str]:
    """More than 500 lines of it."""
    lines = writer.says(*LONG).split("\n")
    assert len(lines) > 500
    return lines


@pytest.mark.parametrize("looks", ["--markdown", "--no-markdown"])
@pytest.mark.parametrize("when", ["while it streams", "afterwards"])
def test_500_lines_are_in_the_scrollback_once_and_in_order_after_ten_resizes(
    writer: Sayer, lines: list[str], looks: str, when: str
) -> None:  # T31, T34, T35
    streams = when == "while it streams"
    rate = ("--max-tokens-per-sec", "250") if streams else ()
    with open_chat(writer.path, *writer.flags, *LONG, *rate, looks, columns=80) as chat:
        _ = chat.begin("hi") if streams else chat.ask("hi")
        for number, (rows, columns) in enumerate(SIZES, start=1):
            chat.wait_for(lambda seen, n=number: "[reached" in seen.text or seen.n_out >= 50 * n)
            chat.resize(rows, columns)
        chat.wait_for(lambda seen: seen.is_idle and "[reached" in seen.text)
        shown = said(leave(chat)).split("\n")
    assert [row.rstrip() for row in shown if row] == [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize(
    ("looks", "bias", "most_rows"),
    [("--markdown", (), 16), ("--markdown", LETTERS, 16), ("--no-markdown", (), 1)],
    ids=["paragraphs", "one long word", "plain"],
)
def test_what_is_written_grows_with_the_reply_and_clears_nothing_above_its_block(
    writer: Sayer, looks: str, bias: tuple[str, ...], most_rows: int
) -> None:  # T33
    length = ("--max-tokens", "2000", "--max-tokens-per-sec", "1300")
    with open_chat(writer.path, *writer.flags, *bias, *length, looks) as chat:
        chat.begin("hi", n_out=1)
        before = len(chat.written)
        early = chat.wait_for(lambda seen: seen.n_out >= 500)
        early_bytes = len(chat.written) - before
        late = chat.wait_for(lambda seen: seen.is_idle)
        written = chat.written[before:]
        leave(chat)
    per_token = len(written) / late.n_out
    assert 1 / 1.5 < per_token / (early_bytes / early.n_out) < 1.5
    assert len(written) < 10 * len(said(late.text))
    ups = [int(count or 1) for count in re.findall(rb"\x1b\[(\d*)A", written)]
    assert max(ups) <= most_rows + 1  # the block and the input's row; the bar is below
    assert not re.search(rb"\x1b\[([123]J|\d*;?\d*H|\?1049|\d*[LMST])|\x1bM|\x1bc", written)


def test_a_screen_of_5_rows_and_20_columns_and_back_harms_nothing(tiny_path: Path) -> None:  # T31, T35
    flags = (*LETTERS, "--max-tokens", "60", "--no-markdown")
    with open_chat(tiny_path, *flags, "--max-tokens-per-sec", "100", columns=80) as chat:
        chat.ask("before")
        draft = "a draft " + "of words " * 18 + "that end"
        chat.type(draft)
        chat.wait_for(lambda seen: seen.input.endswith("that end"))
        chat.resize(5, 20)
        chat.wait_for(lambda seen: any(row.endswith("that end") for row in seen.rows) and "tiny" in seen.rows)
        chat.resize(24, 80)
        chat.wait_for(lambda seen: "".join(seen.input.split("\n")) == draft)
        chat.type(ENTER)
        chat.wait_for(lambda seen: "> a draft" in seen.transcript and seen.n_out >= 5 and not seen.is_idle)
        chat.resize(5, 20)
        chat.type("next")
        chat.wait_for(lambda seen: "> next" in seen.rows)
        chat.wait_for(lambda seen: len([row for row in seen.text.split("\n") if len(row) == 20]) >= 3)
        chat.resize(24, 80)
        chat.wait_for(lambda seen: seen.is_idle and seen.input == "next")
        chat.type(CTRL_C)
        assert chat.ask("after").n_out == 60
        transcript = leave(chat)
    for message in ("before", "a draft", "after"):
        assert transcript.count(f"> {message}") == 1
    assert not re.search("Traceback|error", transcript)


def test_chinese_on_40_columns_fills_each_row_and_loses_no_character(tmp_path: Path) -> None:  # T27, H11
    chinese = sayer(tmp_path, [*"中文字符很长的一段话没有空格，", "a"])
    length = ("--max-tokens", "300")
    for looks in ("--markdown", "--no-markdown"):
        with open_chat(chinese.path, *chinese.flags, *length, looks, columns=40) as chat:
            chat.say("hi")
            chat.wait_for("[reached the limit")
            rows = said(leave(chat)).split("\n")
        assert "".join(rows) == chinese.says(*length)
        cells = [sum(1 if character == "a" else 2 for character in row) for row in rows]
        assert all(39 <= n_cells <= 40 for n_cells in cells[:-1]) and cells[-1] <= 40


def test_emoji_of_several_code_points_stay_whole_and_the_input_stays_in_its_place(
    tmp_path: Path,
) -> None:  # B15
    emoji = sayer(tmp_path, [f"{FAMILY} ", "🇩🇪 ", "x ", "é ", "😀 "])
    length = ("--max-tokens", "80")
    with open_chat(emoji.path, *emoji.flags, *length, columns=40) as chat:
        chat.say("hi")
        chat.wait_for("[reached the limit")
        chat.say(f"and {FAMILY} x")
        after = chat.wait_for(lambda seen: seen.transcript.count("goes on]") == 2 and seen.input == "")
        leave(chat)
    assert " ".join(said(after.transcript).split("\n")) == emoji.says(*length).rstrip()
    assert f"\n> and {FAMILY} x\n" in after.transcript
    assert [row[:2] for row in after.rows if row][-4:] == ["`/", ">", "sa", "re"]  # notice, input, bar


def test_nothing_changes_on_the_screen_while_its_cursor_shows(tiny_path: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "300", columns=40) as chat:
        chat.ask("one")
        chat.say("/help")
        chat.wait_for("/undo")
        leave(chat)
    drawn = re.findall(rb"\x1b\[\?25h(.*?)\x1b\[\?25l", chat.written, re.DOTALL)
    assert len(drawn) > 5 and set(drawn) <= {b"", b"\x1b[?2004h"}  # that shows nothing


# While a reply streams

SLOW = (*LETTERS, "--max-tokens", "100", "--max-tokens-per-sec", "40")


def test_the_next_message_is_typed_edited_and_queued_while_a_reply_streams(tiny_path: Path) -> None:
    with open_chat(tiny_path, *SLOW) as chat:
        chat.begin("one")
        chat.say("/set max_tokens_per_sec none")  # for the turns after this one
        chat.wait_for("--max-tokens-per-sec  none")
        chat.type("tow" + BACKSPACE + BACKSPACE + "wo, three" + LEFT * 5 + "and ")
        chat.wait_for(lambda seen: seen.input == "two, and three")
        chat.type(ENTER)
        chat.wait_for(lambda seen: "queued: two, and three" in seen.text and "1 queued" in seen.bar)
        chat.say("four")
        chat.wait_for(lambda seen: "queued: four" in seen.text and "2 queued" in seen.bar)
        chat.type(UP)  # the last one comes back, and the first one stays
        chat.wait_for(lambda seen: seen.input == "four" and "1 queued" in seen.bar)
        chat.type(" and five" + ENTER)
        last = chat.wait_for(lambda seen: "\n> four and five\n" in seen.transcript and seen.is_idle)
        assert last.n_out == 100
        transcript = leave(chat)
    messages = re.findall(r"^> ([^/].*)", transcript, re.MULTILINE)
    assert messages == ["one", "two, and three", "four and five"]
    assert transcript.count("[reached the limit") == 3
    assert "queued" not in transcript


# The input


def test_what_is_sent_is_what_editing_left_whatever_the_characters(
    tiny_path: Path, isolated_home: Path
) -> None:  # T28, T29
    edits = {
        "日本語の文": "日本語の本文" + LEFT + BACKSPACE,
        "a😀b": "a😀😀b" + LEFT + BACKSPACE,
        f"x{FAMILY}y": f"x{FAMILY}{FAMILY}y" + LEFT * 2 + DELETE,
        "né": "ne\u0301e\u0301" + BACKSPACE + BACKSPACE + "é",
        "🇩🇪!": "🇫🇷🇩🇪!" + LEFT * 2 + BACKSPACE,
    }
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        for number, keys in enumerate(edits.values(), start=1):
            chat.say(keys)
            chat.wait_for(
                lambda seen, n=number: seen.transcript.count("[reached the limit") == n and seen.is_idle
            )
        chat.say("/history")
        chat.wait_for(f"{len(edits)} assistant: ")
        history = leave(chat).rsplit("> /history", 1)[1]
    assert sent(isolated_home) == [*edits, "/history"]
    assert re.findall(r"user: (.*)", history) == list(edits)


def test_a_paste_between_typed_words_is_one_character_to_edit_and_all_of_it_to_send(
    tiny_path: Path, isolated_home: Path
) -> None:  # T37, T38
    long = "\n".join("" if number % 3 == 1 else f"\t line {number}  " for number in range(300))
    label = f"[paste: 300 lines, {len(long):,} characters]"
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        chat.type("before " + paste(long) + " after")
        chat.wait_for(lambda seen: seen.input == f"before {label} after")
        chat.type(LEFT * len(" after") + BACKSPACE)
        chat.wait_for(lambda seen: seen.input == "before  after")
        chat.type(paste(long))
        chat.wait_for(lambda seen: seen.input == f"before {label} after")
        chat.type(ENTER)
        chat.wait_for(lambda seen: "[reached the limit" in seen.text and seen.is_idle)
        transcript = leave(chat)
    assert sent(isolated_home) == [f"before {long} after"]
    assert transcript.count("\n> ") == 1 and f"> before {label} after" in transcript


@pytest.mark.parametrize("is_given_up_by", ["silence", "ctrl-c"])
def test_a_paste_whose_end_never_comes_is_taken_and_keys_work_again(
    tiny_path: Path, isolated_home: Path, is_given_up_by: str
) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        chat.type("before \x1b[200~half a")
        chat.watch(0.5)
        chat.type(" pas")
        if is_given_up_by == "ctrl-c":
            chat.watch(0.3)
            chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "before half a pas")
        chat.type("!" + ENTER)
        chat.wait_for(lambda seen: "[reached the limit" in seen.text and seen.is_idle)
        chat.type(paste("whole"))
        chat.wait_for(lambda seen: seen.input == "whole")
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        leave(chat)
    assert sent(isolated_home) == ["before half a pas!"]


def test_a_slow_but_whole_paste_is_one_message(tiny_path: Path, isolated_home: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        for piece in ("\x1b[200~one\r", "two\r", "three\x1b[201~"):
            chat.type(piece)
            chat.watch(0.5)
        chat.type(ENTER)
        chat.wait_for(lambda seen: "[reached the limit" in seen.text and seen.is_idle)
        leave(chat)
    assert sent(isolated_home) == ["one\ntwo\nthree"]


def test_ctrl_r_finds_what_an_earlier_chat_sent(tiny_path: Path) -> None:  # T39
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        for message in ("a needle, 日本語", "some straw", "more straw"):
            chat.ask(message)
        leave(chat)
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        chat.type(CTRL_R)
        chat.wait_for("search earlier:")
        chat.type("needle")
        chat.wait_for(lambda seen: "> a needle, 日本語" in seen.rows)
        chat.type(ENTER)  # takes it
        chat.wait_for(lambda seen: seen.input == "a needle, 日本語" and "search earlier" not in seen.text)
        chat.type(ENTER)  # sends it
        chat.wait_for(lambda seen: "[reached the limit" in seen.text and seen.is_idle)
        leave(chat)


def test_tab_completes_a_command_a_value_and_a_path(tiny_path: Path, tmp_path: Path) -> None:
    (tmp_path / "notes on tabs.txt").write_text("some notes\n")
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        chat.type("/temp" + TAB)
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        chat.type("/hist" + TAB)
        chat.wait_for(lambda seen: "> /history" in seen.rows)
        chat.type(ENTER)
        chat.wait_for("nothing said yet")
        chat.type("/set on_over" + TAB)
        chat.wait_for(lambda seen: any(row.startswith("> /set on_overflow") for row in seen.rows))
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        chat.type("/set on_overflow er" + TAB)
        chat.wait_for(lambda seen: any(row.startswith("> /set on_overflow error") for row in seen.rows))
        chat.type(ENTER)
        chat.wait_for("--on-overflow  error")
        chat.type(f"/attach {tmp_path}/notes" + TAB)
        chat.wait_for(lambda seen: "tabs.txt" in seen.text)
        chat.type(ENTER)
        chat.wait_for(lambda seen: "[notes on tabs.txt: " in seen.input)
        chat.type(CTRL_C)
        leave(chat)


def test_vi_keys_edit_the_input(tiny_path: Path, isolated_home: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4", "--editing", "vi") as chat:
        chat.wait_for(lambda seen: "insert" in seen.bar)
        chat.type("one two three" + ESCAPE)
        chat.wait_for(lambda seen: "normal" in seen.bar)
        chat.type("0dwA four" + ENTER)
        chat.wait_for(
            lambda seen: "[reached the limit" in seen.text and seen.is_idle and "insert" in seen.bar
        )
        leave(chat)
    assert sent(isolated_home) == ["two three four"]


def editor(folder: Path, script: str) -> dict[str, str]:
    """The variable that makes a shell script with the file's path in `$1` the editor."""
    path = folder / "editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return {"EDITOR": str(path), "VISUAL": ""}


def test_the_editor_has_the_draft_and_gives_back_what_it_made_of_it(
    tiny_path: Path, tmp_path: Path, isolated_home: Path
) -> None:
    script = "sed -i -e 's/draft/message/' -e '$a a second line' \"$1\""
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4", **editor(tmp_path, script)) as chat:
        chat.type("a draft" + CTRL_X_CTRL_E)
        chat.wait_for(lambda seen: seen.input == "a message\na second line")
        chat.type(ENTER)
        chat.wait_for(lambda seen: "[reached the limit" in seen.text and seen.is_idle)
        leave(chat)
    assert sent(isolated_home) == ["a message\na second line"]


@pytest.mark.parametrize("script", ['rm "$1"; mkfifo "$1"', 'rm "$1"; mkdir "$1"'], ids=["fifo", "folder"])
def test_an_editor_that_leaves_no_file_leaves_draft_and_conversation_as_they_were(
    tiny_path: Path, tmp_path: Path, script: str
) -> None:
    problem = "error: cannot read what the editor left: "
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4", **editor(tmp_path, script)) as chat:
        chat.ask("hello")
        chat.type("a draft" + CTRL_X_CTRL_E)
        chat.wait_for(lambda seen: problem in seen.transcript and seen.input == "a draft")
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        chat.say("/edit")
        chat.wait_for(lambda seen: seen.transcript.count(problem) == 2)
        assert chat.ask("again").n_out == 4
        leave(chat)


def test_edit_sends_the_last_message_again_as_the_editor_left_it(tiny_path: Path, tmp_path: Path) -> None:
    with open_chat(
        tiny_path, *LETTERS, "--max-tokens", "4", **editor(tmp_path, 'sed -i s/wrong/right/ "$1"')
    ) as chat:
        chat.ask("the first")
        chat.ask("the wrong one")
        chat.say("/edit")
        chat.wait_for(lambda seen: "> the right one" in seen.transcript and seen.is_idle and seen.n_out == 4)
        chat.say("/history")
        chat.wait_for("2 assistant: ")
        history = leave(chat).rsplit("> /history", 1)[1]
    assert re.findall(r"user: (.*)", history) == ["the first", "the right one"]


# What replies look like, and what they cannot do


def test_markdown_is_styled_and_raw_shows_it_as_written(tmp_path: Path) -> None:  # T40
    writer = sayer(tmp_path, ["**bold** "], temperature="0")
    flags = (*writer.flags, "--max-tokens", "3")
    assert writer.says("--max-tokens", "3").rstrip() == "**bold** **bold** **bold**"
    with open_chat(writer.path, *flags) as chat:
        styled = chat.ask("hi")
        assert said(styled.transcript).rstrip() == "bold bold bold"
        assert re.search(rb"\x1b\[(0;)?1m ?bold", chat.written)
        chat.say("/raw")
        chat.wait_for("replies show as they are written")
        raw = chat.ask("again")
        assert said(raw.transcript, "again").rstrip() == "**bold** **bold** **bold**"
        leave(chat)


ATTACKS = (
    "\x1b[2J",
    "\x1b]0;owned\x07",  # the window's title
    "\x1b]52;c;b3duZWQ=\x07",  # the clipboard
    "\x1b]8;;http://owned\x1b\\x",  # a link
    "\x1b[c",  # a question that the terminal answers as if it were typed
    "\x9b2J",  # C1
    "\x90owned\x9c",
    "\x1bPowned\x1b\\",
    "\b\b\bowned",
    "\x0e",  # another character set
    "\x7f",
    "\u202eowned",  # from right to left
    "\u2067owned",
)

# The sequences of the screen's own: styles, moves, erasing to the end, modes.
OWN_SEQUENCES = re.compile(r"\x1b\[(\d*[ABCD]|[\d;]*m|0?[JK]|\?\d+[hl])")


def test_a_model_cannot_send_an_escape(tmp_path: Path) -> None:
    frames = ("{}", "`{}`", "# {}", "[a]({})", "    {}", "```{}\nx\n```", "|{}|\n|-|", "1. {}", "> {}")
    attacks = [frame.format(attack) for frame in frames for attack in ATTACKS]
    villain = sayer(tmp_path, ["\n\n".join(attacks) + "\n\n"], temperature="0")
    length = ("--max-tokens", "2")
    reply = villain.says(*length)
    assert all(attack in reply for attack in attacks)  # a pipe gets what the model said
    with open_chat(villain.path, *villain.flags, *length, rows=50) as chat:
        chat.ask("hi")
        for command in ("/raw", "/retry", "/history", "/why 2", "/branches", "/search owned"):
            chat.say(command)
            chat.wait_for(lambda seen, c=command: f"> {c}" in seen.transcript and seen.is_idle)
        assert leave(chat).count("\ufffd") > 3 * len(attacks)
    with Terminal("chat", "-m", villain.path, *villain.flags, "--resume", env=environment()) as resumed:
        resumed.wait_for(lambda seen: seen.is_idle and "\ufffd" in seen.text)
        leave(resumed)
    left = OWN_SEQUENCES.sub("", (chat.written + resumed.written).decode())
    assert not re.search("[\x00-\x07\x0b-\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", left)


def test_copy_hands_the_reply_to_the_terminals_clipboard(tiny_path: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "20", DISPLAY="", WAYLAND_DISPLAY="") as chat:
        chat.ask("hi")
        chat.say("/copy")
        chat.wait_for(lambda seen: "clipboard" in seen.text or "copied" in seen.text)
        transcript = leave(chat)
    (copied,) = re.findall(rb"\x1b\]52;c;([^\x07]*)\x07", chat.written)
    assert base64.b64decode(copied).decode() == said(transcript)


def test_without_a_toolbar_there_is_only_the_input_below_the_replies(tiny_path: Path) -> None:  # T35
    flags = (*GREEDY, *LETTERS, "--max-tokens", "20", "--no-toolbar")
    with Terminal("chat", "-m", tiny_path, *flags, env=environment()) as chat:
        chat.wait_for(lambda seen: seen.text.endswith("\n>") and "/help" in seen.text)
        chat.say("hi")
        seen = chat.wait_for(lambda seen: seen.text.endswith("goes on]\n>"))
        for rows, columns in SIZES:
            chat.resize(rows, max(columns, 60))  # a narrower one would cut rows off
            chat.wait_for(lambda seen: seen.text.endswith("\n>"))
        assert chat.picture.text == seen.text and " ctx " not in seen.text
        assert leave(chat) == seen.text.removesuffix("\n>")
