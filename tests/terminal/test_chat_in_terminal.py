"""The chat in a real pseudo-terminal: what a user sees, and what reaches redirected streams."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from terminal_driver import (
    CTRL_C,
    CTRL_D,
    CTRL_J,
    ENTER,
    GREEDY,
    LETTERS,
    UP,
    Picture,
    Terminal,
    environment,
    leave,
    objects,
    open_chat,
    paste,
    run_ts,
)
from tiny_model import CHATML, write_tiny_model

STOPPED = "[stopped; `/continue` goes on]"
ESCAPE = b"\x1b"


# Three turns with the real model, the second one interrupted


@dataclass(frozen=True)
class Chat:
    """What was seen of it."""

    start: Picture
    first: Picture
    decoding: Picture
    stopped: Picture
    third: Picture
    history: Picture
    stats: Picture
    left: Picture
    exit_code: int
    stderr: bytes


@pytest.fixture(scope="module")
def chat(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chat]:
    folder = tmp_path_factory.mktemp("chat")
    with Terminal(
        "chat", "-m", smollm2_path, *GREEDY, "--max-tokens", "600",
        env=environment(folder, STDERR=str(folder / "stderr")), rows=40, shell='exec "$@" 2>"$STDERR"',
    ) as terminal:  # fmt: skip
        start = terminal.wait_for(lambda seen: seen.is_idle and "/help" in seen.transcript)
        first = terminal.ask("My name is Ada. Say hello.")
        story = "> Write a long story about a cat."
        terminal.say(story.removeprefix("> "))
        decoding = terminal.wait_for(
            lambda seen: story in seen.transcript and not seen.is_idle and re.search(r"decode \d", seen.bar)
        )
        terminal.type(CTRL_C)
        stopped = terminal.wait_for(lambda seen: STOPPED in seen.text and seen.is_idle)
        third = terminal.ask("Thank you.")
        terminal.say("/history")
        history = terminal.wait_for(lambda seen: seen.transcript.count("assistant: ") == 3 and seen.is_idle)
        terminal.say("/stats")
        stats = terminal.wait_for(lambda seen: "stop reason" in seen.text and seen.is_idle)
        terminal.type(CTRL_D)
        code = terminal.wait_for_end()
        yield Chat(
            start, first, decoding, stopped, third, history, stats, terminal.picture, code,
            (folder / "stderr").read_bytes(),
        )  # fmt: skip


@pytest.mark.weights
class TestThreeTurns:
    """T1, T2, T4, T9, T10, T48, T52, T57."""

    def test_it_says_what_it_is_and_how_to_get_help(self, chat: Chat) -> None:
        assert chat.start.rows[0] == "SmolLM2-135M-Instruct.Q4_1, context 8192 tokens; /help lists commands"
        standing = r"SmolLM2-135M-Instruct\.Q4_1 · ctx 0/8192, 8192 left( · ahead \d+)? · mem "
        assert re.match(standing, chat.start.bar)

    def test_the_bar_shows_the_last_turn(self, chat: Chat) -> None:
        reused, prompt = chat.first.reused
        assert (reused < prompt, prompt > 20, chat.first.n_out > 5) == (True, True, True)
        assert re.search(
            r"ctx (\d+)/8192, (\d+) left( · ahead \d+)? · mem normal \d+ MB"
            r" · reused \d+/\d+( \(\d+ ahead\))? · prefill [\d.]+ (tok/s|ms)"
            r" · decode [\d.]+ tok/s · \d+ out · (end_of_turn|max_tokens)$",
            chat.first.bar,
        )

    def test_the_bar_stays_while_a_reply_streams(self, chat: Chat) -> None:
        assert re.search(r"reused \d+/\d+ · decode [\d.]+ tok/s · \d+ out · Ctrl-C stops$", chat.decoding.bar)
        assert chat.decoding.input == ""

    def test_every_turn_continues_from_all_that_the_last_one_left(self, chat: Chat) -> None:
        assert chat.stopped.reused[0] >= chat.first.reused[1] + chat.first.n_out - 1
        assert chat.third.reused[0] >= chat.stopped.reused[1] + chat.stopped.n_out - 1
        assert chat.third.reused[1] - chat.third.reused[0] < 20

    def test_an_interrupt_keeps_the_part_that_was_said(self, chat: Chat) -> None:
        assert "cancelled" in chat.stopped.bar and chat.stopped.n_out < 600
        rows = chat.stopped.transcript.split("\n")
        said = rows[rows.index("> Write a long story about a cat.") + 1 : rows.index(STOPPED)]
        listed = chat.history.transcript.rsplit("> /history", 1)[1].split(
            "\n"
        )  # may be longer than the screen
        assert " ".join(said) in " ".join(listed)
        assert chat.history.text.count("[unfinished]") >= 1

    def test_the_third_turn_answers(self, chat: Chat) -> None:
        rows = chat.third.transcript.split("\n")
        assert len(rows[rows.index("> Thank you.") + 1]) > 5
        assert chat.third.n_out > 3

    def test_statistics_add_up(self, chat: Chat) -> None:
        rows = [re.split(r"  +", row.strip()) for row in chat.stats.text.rsplit("> /stats", 1)[1].split("\n")]
        table = {row[0]: row[1:] for row in rows}
        assert table["turns"] == ["1", "3"]
        for column in (0, 1):
            prompt, reused, computed = (
                int(table[name][column]) for name in ("prompt tokens", "reused from the cache", "computed")
            )
            assert prompt == reused + computed

    def test_ctrl_d_leaves_the_transcript_and_nothing_on_stderr(self, chat: Chat) -> None:
        assert (chat.exit_code, chat.stderr, chat.left.bar) == (0, b"", "")
        assert chat.left.text.startswith(chat.start.rows[0])
        assert chat.left.text.count("\n> ") == 5  # nothing was sent by leaving


# The input


def sent(home: Path) -> list[str]:
    """What was sent, from the file of inputs."""
    (path,) = home.rglob("history")
    return [json.loads(line)["input"] for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_paste_is_one_message_and_no_command(tiny_path: Path, isolated_home: Path) -> None:  # T37, T38, H13
    long = "\n".join("" if number % 3 == 1 else f"  line {number}" for number in range(300))
    pastes = ["/help\nis no command", "/undo", long]
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "5") as chat:
        for n_turns, text in enumerate(pastes, start=1):
            chat.type(paste(text))
            held = f"[paste: 300 lines, {len(long):,} characters]" if text == long else text
            chat.wait_for(lambda seen, held=held: seen.input == held)
            chat.type(ENTER)
            chat.wait_for(
                lambda seen, n=n_turns: seen.transcript.count("[reached the limit") == n and seen.is_idle
            )
        assert len([row for row in leave(chat).split("\n") if row.startswith("> ")]) == 3
    assert sent(isolated_home) == pastes


def test_a_paste_of_a_megabyte_is_refused_and_can_be_cleared(tiny_path: Path) -> None:  # H13, T62, T66
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "5") as chat:
        chat.type(paste("x" * 1_000_000 + " end"))
        chat.wait_for(lambda seen: seen.input == "[paste: 1 line, 1,000,004 characters]")
        chat.type(ENTER)
        refused = chat.wait_for(
            lambda seen: (
                "does not fit the context" in seen.text
                and seen.input == "[paste: 1 line, 1,000,004 characters]"
            )
        )
        assert re.search(r"10\d{5} prompt tokens and 5 for the reply exceed 16384", refused.text)
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        assert chat.ask("hi").n_out == 5
        leave(chat)


def test_what_looks_almost_like_a_command_is_a_message(tiny_path: Path, isolated_home: Path) -> None:  # traps
    messages = ["exit", "q", "and/or /", " /help", "a /undo"]
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        for message in messages:
            assert chat.ask(message).n_out == 4
        chat.say("one" + CTRL_J + CTRL_J + "three")
        chat.wait_for(lambda seen: seen.transcript.endswith("/continue` goes on]") and seen.is_idle)
        rows = leave(chat).split("\n")
    assert sent(isolated_home) == [*messages, "one\n\nthree"]
    at = rows.index("> one")
    assert rows[at : at + 3] == ["> one", "", "  three"]


def test_an_empty_line_is_nothing_and_ctrl_d_leaves_only_an_empty_one(
    tiny_path: Path,
) -> None:  # T9, T10, H14
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        chat.type(ENTER + "  " + ENTER + CTRL_C)
        chat.type("typed" + CTRL_D)
        chat.type(" on")
        chat.wait_for(lambda seen: seen.input == "typed on")
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        assert leave(chat) == "tiny, context 16384 tokens; /help lists commands"


def test_what_was_sent_comes_back_by_the_up_key_in_the_next_chat(tiny_path: Path) -> None:  # T39
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        chat.ask("first chat, 日本語 😀")
        leave(chat)
    with open_chat(tiny_path) as chat:
        chat.type(UP)
        chat.wait_for(lambda seen: seen.input == "first chat, 日本語 😀")
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        leave(chat)


def test_messages_sent_while_a_reply_runs_wait_their_turn(tiny_path: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "20", "--max-tokens-per-sec", "40") as chat:
        chat.begin("one")
        chat.say("two")
        chat.wait_for(lambda seen: "1 queued" in seen.bar)
        chat.wait_for(lambda seen: "> two" in seen.transcript and seen.is_idle)
        assert [row for row in leave(chat).split("\n") if row.startswith("> ")] == ["> one", "> two"]


# Limits and faults


def test_a_full_context_leaves_the_chat_usable(tiny_path: Path) -> None:  # T63, T65, T66
    flags = ("--ctx", "150", "--max-tokens", "10", "--on-overflow", "error")
    with open_chat(tiny_path, *LETTERS, *flags) as chat:
        chat.ask("a message of some length")
        chat.ask("another message like that")
        chat.say("and one more of that kind")
        full = chat.wait_for(lambda seen: "does not fit" in seen.text and seen.is_idle)
        assert re.search(
            r"error: .*\d+ prompt tokens and 10 for the reply exceed 150; .*`/forget 1`", join(full)
        )
        assert full.input == "and one more of that kind"
        chat.type(CTRL_C)
        chat.say("/forget")
        chat.wait_for(lambda seen: "forgetting the oldest 1 turn: " in seen.text and seen.is_idle)
        for recalled in ("/forget", "and one more of that kind"):
            chat.type(UP)
            chat.wait_for(lambda seen, recalled=recalled: seen.input == recalled)
        chat.type(ENTER)
        chat.wait_for(
            lambda seen: seen.transcript.count("and one more") == 2 and seen.is_idle and seen.n_out == 10
        )
        chat.say("/undo 2")
        chat.wait_for("taking back 2 turns: ")
        chat.say("/set on_overflow drop")
        chat.wait_for("--on-overflow  drop")
        for number in range(3):
            chat.ask(f"{number} is a message of some length")
        assert "1 exchange dropped from the prompt" in chat.picture.text
        chat.say("/clear")
        chat.wait_for(lambda seen: "clearing 3 turns: " in seen.text and "ctx 0/150" in seen.bar)
        leave(chat)


def join(seen: Picture) -> str:
    """The text with rows joined where rich broke them."""
    return " ".join(seen.text.split("\n"))


def test_a_reply_at_its_limit_says_so_and_can_go_on(tiny_path: Path) -> None:  # T69
    whole = run_ts(
        "chat", "-m", tiny_path, "-q", *GREEDY, *LETTERS, "--max-tokens", "60", stdin="hi\n"
    ).stdout
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "30") as chat:
        cut = chat.ask("hi")
        assert "max_tokens" in cut.bar
        assert "[reached the limit of 30 tokens; `/continue` goes on]" in cut.text
        chat.say("/continue")
        chat.wait_for(lambda seen: seen.text.count("[reached the limit") == 2 and seen.is_idle)
        chat.say("/history")
        chat.wait_for("assistant: ")
        assert f"1 assistant: {whole.decode().strip()} [unfinished]" in leave(chat).split("\n")


def test_a_model_that_says_nothing_gives_an_empty_reply_and_no_rate(tiny_path: Path) -> None:  # H14
    with open_chat(tiny_path, "--logit-bias", "1:100") as chat:
        silent = chat.ask("hi")
        assert "[empty reply]" in silent.text
        assert "decode – · 0 out · end_of_turn" in silent.bar
        leave(chat)


def test_a_template_that_raises_gives_the_message_back_and_the_chat_goes_on(tmp_path: Path) -> None:  # T73
    picky = (
        "{% if 'prose' in messages[-1].content %}{{ raise_exception('only poems, please') }}{% endif %}"
        + CHATML
    )
    path = write_tiny_model(tmp_path / "picky.gguf", tokenizer__chat_template=picky)
    with open_chat(path, *LETTERS, "--max-tokens", "5") as chat:
        chat.ask("a poem")
        chat.say("some prose")
        refused = chat.wait_for(lambda seen: "only poems, please" in seen.text and seen.input == "some prose")
        assert re.search(r"\nerror: .*only poems, please", refused.text)
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        assert chat.ask("verse").n_out == 5
        chat.say("/history")
        said = chat.wait_for(lambda seen: seen.transcript.count("assistant: ") == 2).text.rsplit(
            "> /history", 1
        )[1]
        assert said.count("user: ") == 2 and "prose" not in said
        leave(chat)


# Sizes


def test_wide_characters_on_a_narrow_screen_are_all_there(tiny_path: Path) -> None:  # H11, T27
    text = "ab中文中文中文中文😀"
    flags = (*GREEDY, *LETTERS, "--max-tokens", "3")
    with Terminal("chat", "-m", tiny_path, *flags, columns=10, rows=30) as chat:
        chat.wait_for("\ntiny\n")  # the bar, which has no room for more
        chat.type(text)
        chat.wait_for("> ab中文中\n")
        chat.type(ENTER)
        chat.wait_for("goes on]")
        rows = leave(chat).split("\n")
    at = rows.index("> ab中文中")
    assert "".join(row[2:] for row in rows[at : at + 3]) == text


def test_a_terminal_that_grows_while_a_reply_streams_loses_and_doubles_nothing(
    tiny_path: Path,
) -> None:  # H11, T31
    flags = (*LETTERS, "--max-tokens", "150")
    reply = objects(run_ts("complete", "-m", tiny_path, "--json", *GREEDY, *flags, "hi").stdout)[0]["reply"]
    with open_chat(tiny_path, *flags, "--max-tokens-per-sec", "100", columns=50) as chat:
        chat.begin("hi")
        for n_out, rows, columns in ((20, 26, 50), (40, 26, 60), (60, 30, 70), (80, 40, 90)):
            chat.wait_for(lambda seen, n=n_out: seen.n_out >= n)
            chat.resize(rows, columns)
        chat.wait_for(lambda seen: seen.is_idle)
        transcript = leave(chat).split("\n")
    shown = transcript[transcript.index("> hi") + 1 :]
    assert "".join(shown).startswith(reply + "[reached the limit")


# Streams


def test_stdout_elsewhere_gets_the_replies_and_the_screen_is_on_stderr(
    tiny_path: Path, tmp_path: Path
) -> None:
    # T12, T17, T18, T20
    out = tmp_path / "replies"
    flags = (*GREEDY, *LETTERS, "--max-tokens", "30")
    with Terminal(
        "chat", "-m", tiny_path, *flags, shell='exec "$@" >"$OUT"', env=environment(OUT=str(out))
    ) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        chat.ask("one")
        chat.ask("two")
        rows = leave(chat).split("\n")
    piped = run_ts("chat", "-m", tiny_path, "-q", *flags, stdin="one\ntwo\n").stdout
    assert out.read_bytes() == piped
    assert not any(reply in row for reply in piped.decode().split() for row in rows)
    assert rows.count("> one") == rows.count("> two") == 1


def test_a_pipe_that_ends_at_the_same_terminal_shows_each_reply_once(tiny_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "log"  # T17
    flags = (*GREEDY, *LETTERS, "--max-tokens", "60", "--max-tokens-per-sec", "100")
    with Terminal(
        "chat", "-m", tiny_path, *flags, shell='"$@" | tee "$OUT"', env=environment(OUT=str(out)), columns=58
    ) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        chat.ask("one")
        chat.ask("two")
        rows = leave(chat).split("\n")
    first, second = out.read_text().splitlines()
    limit = "[reached the limit of 60 tokens; `/continue` goes on]"
    said = [("> one", first), ("> two", second)]
    assert rows[1:] == [
        row for message, reply in said for row in ("", message, reply[:58], reply[58:], limit)
    ]


@pytest.mark.parametrize(
    ("variables", "flags"), [({"TERM": "dumb"}, ()), ({}, ("--json",))], ids=["dumb terminal", "json"]
)
def test_without_a_screen_lines_are_turns_and_no_escape_code_is_written(
    tiny_path: Path, variables: dict[str, str], flags: tuple[str, ...]
) -> None:  # H6, T14
    with Terminal(
        "chat", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "20", *flags, env=environment(**variables)
    ) as chat:
        chat.wait_for(">")
        chat.say("hello")
        chat.wait_for(lambda seen: [row for row in seen.rows if row][-1] == ">" and "max_tokens" in seen.text)
        chat.type(CTRL_D)
        assert chat.wait_for_end() == 0
        assert ESCAPE not in chat.written
        shown = chat.picture.rows[1]
        assert (
            shown.startswith('{"event": "turn", "model": "tiny"') if flags else set(shown) <= set("abcdefgh")
        )


def test_a_quiet_chat_does_not_greet(tiny_path: Path) -> None:  # T24
    with Terminal(
        "chat", "-q", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "5", env=environment()
    ) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        seen = chat.ask("hello")
        assert seen.transcript.lstrip("\n").startswith("> hello")
        leave(chat)


def test_without_a_screen_a_mistyped_command_costs_nothing(tiny_path: Path) -> None:
    with Terminal(
        "chat", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "5", env=environment(TERM="dumb")
    ) as chat:
        chat.wait_for(">")
        chat.say("/histroy")
        chat.wait_for("error: unknown command `/histroy`: did you mean `/history`?")
        chat.say("hello")
        chat.wait_for(lambda seen: "max_tokens" in seen.text and [row for row in seen.rows if row][-1] == ">")
        chat.type(CTRL_D)
        assert chat.wait_for_end() == 0


def test_ctrl_c_without_a_screen_ends_the_turn_and_then_the_program(tiny_path: Path) -> None:
    slow = ("--max-tokens", "100", "--max-tokens-per-sec", "30")
    with Terminal("chat", "-m", tiny_path, *GREEDY, *LETTERS, *slow, env=environment(TERM="dumb")) as chat:
        chat.wait_for(">")
        chat.say("hello")
        chat.wait_for(lambda seen: len(seen.rows[1]) > 3)
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: ">" in seen.rows[1:])
        assert chat.watch(1.0).rows[1].rstrip("^C") != ""
        chat.type(CTRL_C)
        assert chat.wait_for_end() == 130
        assert "Traceback" not in chat.picture.text


def test_no_color_leaves_out_every_colour_and_weight(tiny_path: Path) -> None:  # H6
    def styles(**variables: str) -> set[bytes]:
        with open_chat(tiny_path, *LETTERS, "--max-tokens", "5", **variables) as chat:
            chat.ask("hello")
            leave(chat)
            return set(re.findall(rb"\x1b\[([\d;]*)m", chat.written))

    assert styles(NO_COLOR="1") <= {b"0", b""}
    assert len(styles(NO_COLOR="")) > 2


def test_complete_writes_its_reply_where_stdout_goes_and_nothing_on_the_terminal(
    tiny_path: Path, tmp_path: Path
) -> None:  # T12
    out = tmp_path / "reply"
    flags = ("complete", "-q", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "20", "hello")
    with Terminal(*flags, shell='exec "$@" >"$OUT"', env=environment(OUT=str(out))) as terminal:
        assert terminal.wait_for_end() == 0
        assert terminal.written == b""
    assert re.fullmatch(rb"[a-h]{20}\n", out.read_bytes())


def test_a_pipe_into_a_terminal_shows_the_reply(tiny_path: Path) -> None:  # H6
    flags = ("complete", "-q", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "20")
    with Terminal(*flags, shell='echo hello | "$@"') as terminal:
        assert terminal.wait_for_end() == 0
        assert re.fullmatch(rb"[a-h]{20}\r\n", terminal.written)


@pytest.mark.weights
def test_a_long_prompt_shows_how_far_it_is_and_then_only_the_reply(smollm2_path: Path) -> None:  # T78
    flags = ("complete", "-m", smollm2_path, *GREEDY, "--max-tokens", "2", "Say yes. " * 800)
    with Terminal(*flags, shell='exec "$@" >/dev/null') as terminal:
        shown = terminal.wait_for("s left")
        assert re.fullmatch(r"prefill \d+/\d+, [\d.]+ tok/s, [\d.]+ s left", shown.rows[0])
        assert terminal.wait_for_end() == 0
        assert terminal.picture.text == "[reached the limit of 2 tokens: max_tokens]"


def test_what_looks_like_a_mouse_harms_nothing(tiny_path: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "4") as chat:
        for number, keys in enumerate(("abc \x1b[31mred", "\x1b[M\x7f\x7f\x7f", "\x1b[<0;1;1M")):
            chat.type(keys)
            chat.type(CTRL_C)
            chat.wait_for(lambda seen: seen.input == "")
            assert chat.ask(f"hello {number}").n_out == 4
        assert not re.search("Traceback|error", leave(chat))


def test_leaving_while_a_reply_streams_keeps_what_was_shown(tiny_path: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens-per-sec", "20") as chat:
        seen = chat.begin("hello", n_out=5)
        (shown,) = [row for row in seen.transcript.split("\n") if row and row[0] in "abcdefgh"]
        chat.type("/exit" + ENTER)
        assert chat.wait_for_end() == 0
        assert shown in chat.picture.text


def test_complete_never_waits_for_a_key(tiny_path: Path) -> None:  # T13
    with Terminal("complete", "-m", tiny_path) as terminal:
        assert terminal.wait_for_end() == 2
        assert "nothing to answer: give a PROMPT" in terminal.picture.text
    with Terminal("complete", "-m", tiny_path, "--max-tokens", "4", "hello") as terminal:
        assert terminal.wait_for_end() == 0
