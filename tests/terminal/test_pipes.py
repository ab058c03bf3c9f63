"""`ts` between real pipes, and with streams closed, full or broken. What needs no process is in test_cli."""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from terminal_driver import TIMEOUT, TS, Pipes, Terminal, environment, objects, run_ts

from turbospark_chat.chat.store import Store
from turbospark_chat.chat.stored_conversation import StoredConversation
from turbospark_chat.settings import Locations

GREEDY = ("--temperature", "0", "--seed", "1")
AAA = ("--logit-bias", "'a':100")  # what the tiny model says then


def shell(script: str, *arguments: str | Path, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    """Run a shell script in which `"$@"` is `ts` with arguments; the exit code is that of `ts`."""
    return subprocess.run(
        ["/bin/bash", "-o", "pipefail", "-c", script, "sh", TS, *map(str, arguments)],
        capture_output=True, env=environment(**variables), timeout=TIMEOUT, check=False,
    )  # fmt: skip


# The real model


LINES = ("My number is 42.", "What is my number?", "Name a fruit.", "And another one.")


def real_chat(path: Path, *flags: str, lines: Sequence[str], home: Path) -> list[dict[str, Any]]:
    command = ("chat", "-m", path, "--json", *GREEDY, "--max-tokens", "24", *flags)
    done = run_ts(*command, stdin="".join(f"{line}\n" for line in lines), env=environment(home))
    assert (done.returncode, done.stderr) == (0, b"")
    return objects(done.stdout)


@pytest.fixture(scope="module")
def turns(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return real_chat(smollm2_path, lines=LINES, home=tmp_path_factory.mktemp("home"))


@pytest.mark.weights
def test_lines_are_turns_of_one_conversation(turns: list[dict[str, Any]]) -> None:  # T15, T16
    assert len(turns) == len(LINES)
    assert "42" in turns[1]["reply"]
    assert turns[1]["reused_prefix_tokens"] > 20


@pytest.mark.weights
def test_every_turn_computes_only_what_is_new(turns: list[dict[str, Any]]) -> None:  # T48, T52, T57
    for earlier, turn in zip(turns, turns[1:], strict=False):
        assert turn["reused_prefix_tokens"] == earlier["kv_position"]
        assert turn["reused_prefix_tokens"] >= earlier["prompt_tokens"] + earlier["new_tokens"] - 1
        assert turn["prefilled_tokens"] < 20  # the new message and the template around it


@pytest.mark.weights
def test_warm_and_cold_give_the_same_reply(
    turns: list[dict[str, Any]], smollm2_path: Path, isolated_home: Path
) -> None:  # T55, T61
    cold = real_chat(smollm2_path, "--no-reuse", lines=LINES[:2], home=isolated_home)
    assert [turn["token_ids"] for turn in cold] == [turn["token_ids"] for turn in turns[:2]]
    assert [turn["reused_prefix_tokens"] for turn in cold] == [0, 0]


@pytest.mark.weights
def test_an_emoji_of_several_tokens_comes_whole(smollm2_path: Path) -> None:  # T42
    prompt = "😀🎉" * 6
    done = run_ts("complete", "-m", smollm2_path, "--raw", *GREEDY, "--max-tokens", "21", prompt)
    assert done.returncode == 0
    reply = done.stdout.decode().strip()
    assert len(reply) > 5
    assert all(letter >= "🌀" for letter in reply[:-1])  # the limit may fall within the last one


@pytest.mark.weights
def test_the_second_turn_makes_no_copy_of_the_cache(smollm2_path: Path) -> None:  # T60
    question = "Say yes. " * 150
    with Pipes("chat", "-m", smollm2_path, *GREEDY, "--json", "--max-tokens", "1") as pipes:
        process = psutil.Process(pipes.process.pid)
        pipes.say(question)
        first = objects(pipes.read_line())[0]
        before = process.memory_info().rss
        pipes.say("Again.")
        second = objects(pipes.read_line())[0]
        grown = process.memory_info().rss - before
        assert pipes.end()[0] == 0
    cache = first["kv_position"] * 2 * 30 * 3 * 64 * 4  # keys and values, layers, heads, numbers, bytes each
    assert second["reused_prefix_tokens"] == first["kv_position"] > 400
    assert grown < cache / 2


# Whoever reads has gone, or cannot be written to


@pytest.mark.parametrize(
    "script",
    [
        '"$@" hello | head -c 5 >/dev/null',
        'printf "one\\ntwo\\nthree\\n" | "$@" | head -c 5 >/dev/null',
        'printf "one\\ntwo\\nthree\\n" | "$@" --json | head -c 5 >/dev/null',
    ],
    ids=["complete", "chat", "json"],
)
def test_when_the_reader_has_gone_it_ends_quietly(tiny_path: Path, script: str) -> None:
    command = "complete" if "hello" in script else "chat"
    done = shell(script, command, "-m", tiny_path, *AAA, "--max-tokens", "1000")
    assert (done.returncode, done.stderr) == (0, b"")


def stored() -> StoredConversation:
    store = Store.open(Locations.of_user().conversations)
    try:
        return store.load("last")
    finally:
        store.close()


def test_when_the_reader_has_gone_the_part_of_its_reply_is_stored(tiny_path: Path) -> None:
    done = shell('printf "one\\n" | "$@" | head -c 5', "chat", "-m", tiny_path, *AAA, "--max-tokens", "4000")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"aaaaa", b"")
    (turn,) = stored().conversation.turns
    assert (turn.user.content, set(turn.reply.content), turn.reply.complete) == ("one", {"a"}, False)
    assert 5 <= len(turn.reply.content) < 4000


def test_when_the_reader_has_gone_every_turn_that_had_ended_is_stored(tiny_path: Path) -> None:
    script = '(printf "one\\ntwo\\n"; sleep 0.2; printf "three\\nfour\\n") | "$@" | head -1'
    done = shell(script, "chat", "-m", tiny_path, "--json", *AAA, "--max-tokens", "30")
    assert (done.returncode, done.stderr) == (0, b"")
    (told,) = objects(done.stdout)
    turns = stored().conversation.turns
    assert [turn.user.content for turn in turns] == ["one", "two", "three", "four"][: len(turns)]
    assert turns[0].reply.content == told["reply"] == "a" * 30
    assert stored().id == told["conversation_id"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", ["complete", "chat", "show"])
def test_a_full_disk_is_one_line_and_exit_code_1(tiny_path: Path, command: str) -> None:
    arguments = {"complete": ("-m", tiny_path, "hi"), "chat": ("-m", tiny_path), "show": (tiny_path,)}
    done = shell('printf "hi\\n" | "$@" >/dev/full', command, *arguments[command])
    assert (done.returncode, done.stderr) == (1, b"error: No space left on device\n")


@pytest.mark.parametrize(
    ("closed", "out"),
    [("<&-", b"aaaa\n"), (">&-", b""), ("2>&-", b"aaaa\n"), ("<&- >&- 2>&-", b"")],
    ids=["stdin", "stdout", "stderr", "all"],
)
def test_a_closed_stream_reads_nothing_and_swallows_everything(
    tiny_path: Path, closed: str, out: bytes
) -> None:
    done = shell(f'"$@" {closed}', "complete", "-q", "-m", tiny_path, *AAA, "--max-tokens", "4", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, out, b"")


def test_a_chat_with_a_closed_stdin_ends_at_once(tiny_path: Path) -> None:  # H5
    done = shell('"$@" <&-', "chat", "-m", tiny_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# Signals, and notes for people


@pytest.mark.parametrize("form", [(), ("--json",), ("--json", "--stream")], ids=["text", "json", "stream"])
def test_an_interrupt_ends_the_turn_which_is_told_and_stored(
    tiny_path: Path, form: tuple[str, ...]
) -> None:  # T6
    flags = ("chat", "-m", tiny_path, *AAA, "--max-tokens-per-sec", "100", *form)
    with Pipes(*flags) as pipes:
        is_told_at_the_end = form == ("--json",)
        pipes.say(*(["/stats"] if is_told_at_the_end else []), "one")
        if is_told_at_the_end:
            assert b'"command"' in pipes.read_line()
            time.sleep(1.0)  # a busy machine may take a while until the first token
        else:
            pipes.read(200 if form else 3)
        pipes.interrupt()
        code, out, err = pipes.end()
    assert (code, err) == (130, b"")
    (turn,) = stored().conversation.turns
    assert (set(turn.reply.content), turn.reply.complete) == ({"a"}, False)
    if form:
        told = objects(out[out.rindex(b'{"event": "turn"') :])[0]
        assert (told["reply"], told["reason"]) == (turn.reply.content, "cancelled")


@pytest.mark.parametrize(("flags", "is_told"), [((), True), (("-q",), False)], ids=["", "quiet"])
def test_how_many_tokens_are_given_is_told_at_a_terminal_alone(
    tiny_path: Path, tmp_path: Path, flags: tuple[str, ...], is_told: bool
) -> None:
    (tmp_path / "notes.txt").write_text("milk\n")
    arguments = (
        "complete",
        "-m",
        tiny_path,
        *AAA,
        "--max-tokens",
        "3",
        "-f",
        tmp_path / "notes.txt",
        *flags,
        "hi",
    )
    with Terminal(*arguments) as terminal:
        assert terminal.wait_for_end() == 0
        assert ("notes.txt: 5 tokens" in terminal.picture.text) is is_told
    assert b"tokens\n" not in run_ts(*arguments).stderr


# What the bytes are


def test_nothing_but_the_reply_comes_out_of_a_pipe(tiny_path: Path) -> None:  # T18, T20, T24, H6
    done = run_ts("chat", "-m", tiny_path, *AAA, "--max-tokens", "200", stdin="one\ntwo\n")
    assert (done.returncode, done.stdout) == (0, (b"a" * 200 + b"\n") * 2)
    assert done.stderr == b"[reached the limit of 200 tokens: max_tokens]\n" * 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_a_question_mark(tiny_path: Path, encoding: str) -> None:  # T44
    flags = ("complete", "-q", "-m", tiny_path, "--temperature", "0", "--max-tokens", "30", "hi")
    done = run_ts(*flags, env=environment(PYTHONIOENCODING=encoding))
    assert (done.returncode, done.stderr) == (0, b"")
    reply = objects(run_ts(*flags, "--json").stdout)[0]["reply"]
    assert any(letter > "\xff" for letter in reply)
    assert done.stdout.decode(encoding) == reply.encode(encoding, "replace").decode(encoding) + "\n"


@pytest.mark.parametrize("locale", ["C", "POSIX", "C.UTF-8"])
def test_the_locale_does_not_matter(tiny_path: Path, locale: str) -> None:
    env = environment(LC_ALL=locale, LANG=locale)
    env.pop("PYTHONIOENCODING", None)
    flags = ("complete", "-m", tiny_path, "--raw", "--json", "--temperature", "0", "--max-tokens", "2")
    argument, piped = run_ts(*flags, "é😀", env=env), run_ts(*flags, stdin="é😀", env=env)
    assert [objects(done.stdout)[0]["prompt_tokens"] for done in (argument, piped)] == [6, 6]


@pytest.mark.parametrize("where", ["prompt", "--system", "--stop", "-m"])
def test_arguments_that_are_no_text_end_in_no_traceback(tiny_path: Path, where: str) -> None:  # T45
    flags = [TS, "complete", "-q", "-m", str(tiny_path), "--max-tokens", "3"]
    more = ["hi", "\udcff"] if where == "prompt" else [where, "a\udcff", "hi"]
    more = more[1:] if where == "prompt" else more
    done = subprocess.run(
        [*flags, *more], capture_output=True, env=environment(), timeout=TIMEOUT, check=False
    )
    assert (done.returncode, done.stderr.count(b"\n")) == ((3, 1) if where == "-m" else (0, 0))
    assert b"Traceback" not in done.stderr
