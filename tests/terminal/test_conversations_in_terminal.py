"""Conversations kept, as a user meets them: a chat that is killed, has no room, is gone on with, and told of by `ts`.

Everything goes through the real program, in a pseudo-terminal or between pipes.
"""

import json
import os
import random
import re
import resource
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from stored_turns import ended, numbered_turn
from terminal_driver import (
    CTRL_C,
    ENTER,
    GREEDY,
    LETTERS,
    TS,
    UP,
    Picture,
    Pipes,
    Terminal,
    environment,
    leave,
    objects,
    open_chat,
    paste,
    run_ts,
)

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.store import Store
from turbospark_chat.settings import Locations

SHORT = (*GREEDY, *LETTERS, "--max-tokens", "6")
SLOW = (*LETTERS, "--max-tokens", "400", "--max-tokens-per-sec", "40")


def talk(path: Path, *lines: str, flags: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Have a chat between pipes; return its turns."""
    done = run_ts("chat", "-m", path, "--json", *SHORT, *flags, stdin="".join(f"{line}\n" for line in lines))
    assert (done.returncode, done.stderr) == (0, b"")
    return [told for told in objects(done.stdout) if told["event"] == "turn"]


def reply_to(path: Path, *lines: str) -> str:
    """Return the last reply of a chat that is kept nowhere."""
    return str(talk(path, *lines, flags=("--no-save",))[-1]["reply"])


def output_of(*arguments: str) -> str:
    """Return what `ts` says of what is stored."""
    done = run_ts(*arguments)
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode()


def database() -> Path:
    return Locations.of_user().conversations


def stored(reference: object = "last") -> Conversation:
    with closing(Store.open(database())) as store:
        return store.load(str(reference)).conversation


def said(conversation: Conversation) -> list[tuple[str, str]]:
    return [(turn.user.content, turn.reply.content) for turn in conversation.turns]


def exported(reference: object) -> list[tuple[str, str]]:
    """Return the same as `ts export` tells it."""
    turns = json.loads(output_of("export", str(reference), "--form", "json"))["turns"]
    return [(turn["user"], turn["reply"]) for turn in turns]


def check_integrity() -> None:
    with closing(sqlite3.connect(database())) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


# Killed

N_KILLS = 50
MOST_TURNS_SEEN = 6  # before the kill
N_SENT = 100  # more than are answered before it


def run_until_killed(path: Path, number: int) -> list[dict[str, Any]]:
    """Run a chat that is killed at some moment; return the turns that it had shown as ended."""
    moments = random.Random(number)
    n_seen = moments.randrange(MOST_TURNS_SEEN + 1)
    with Pipes("chat", "-m", path, "--json", *SHORT) as chat:
        chat.say(*(f"message {number}-{nth}" for nth in range(N_SENT)))
        shown = b"".join(chat.read_line() for _ in range(n_seen))
        time.sleep(moments.uniform(0, 0.01 if n_seen else 0.6))  # within a turn, or while it starts
        chat.process.kill()
        rest, _ = chat.process.communicate()
        assert chat.process.returncode == -signal.SIGKILL
    whole_lines = (shown + rest).rpartition(b"\n")[0]
    return objects(whole_lines)


def test_a_chat_killed_at_any_moment_has_every_turn_it_showed_and_no_half_one(tiny_path: Path) -> None:
    def run_one(number: int) -> list[dict[str, Any]]:
        shown = run_until_killed(tiny_path, number)
        if shown:
            check_integrity()
        return shown

    with ThreadPoolExecutor(2) as pool:  # two chats at once on one database, all the while
        runs = list(pool.map(run_one, range(N_KILLS)))
    check_integrity()
    listed = {one["id"]: one for one in objects(output_of("history", "--json"))}
    for number, shown in enumerate(runs):
        if not shown:
            continue
        n_shown, identity = len(shown), shown[0]["conversation_id"]
        turns = said(stored(identity))
        assert [turn["turn"] for turn in shown] == list(range(1, n_shown + 1))
        assert [reply for _, reply in turns[:n_shown]] == [turn["reply"] for turn in shown]
        assert len(turns) in (n_shown, n_shown + 1)  # stored, but killed before it could say so
        assert [user for user, _ in turns] == [f"message {number}-{nth}" for nth in range(len(turns))]
        assert all(len(reply) == 6 for _, reply in turns)
        assert listed.pop(identity)["n_turns"] == len(turns)
    assert all(one["n_turns"] == 1 for one in listed.values())  # the same, of a first turn
    assert sum(map(len, runs)) > N_KILLS
    last = next(shown[0]["conversation_id"] for shown in reversed(runs) if shown)
    turns = said(stored(last))
    assert exported(last) == turns
    (resumed,) = talk(tiny_path, "and?", flags=("--resume", str(last)))
    assert (resumed["conversation_id"], resumed["turn"]) == (last, len(turns) + 1)


def test_killed_in_a_terminal_a_chat_goes_on_after_its_last_whole_turn(tiny_path: Path) -> None:
    with open_chat(tiny_path, *SLOW) as chat:
        chat.say("/set max_tokens 6")
        chat.ask("one")
        chat.say("/set max_tokens 400")
        chat.begin("two", n_out=8)
        os.kill(chat.pid, signal.SIGKILL)
        assert chat.wait_for_end() == -signal.SIGKILL
    check_integrity()
    reply = reply_to(tiny_path, "one")
    assert said(stored()) == [("one", reply)]
    with open_chat(tiny_path, *SHORT, "--resume") as chat:
        seen = chat.wait_for(lambda seen: reply in seen.transcript)
        assert "> one" in seen.transcript and "two" not in seen.text
        chat.ask("three")
        leave(chat)
    assert [user for user, _ in said(stored())] == ["one", "three"]


# Faults


def test_two_chats_on_one_conversation_at_once_keep_both_and_mix_up_nothing(tiny_path: Path) -> None:
    talk(tiny_path, "one")
    with open_chat(tiny_path, *SHORT, "--resume") as left, open_chat(tiny_path, *SHORT, "--resume") as right:
        for number in range(2):
            left.ask(f"left {number}")
            right.ask(f"right {number}")
        transcripts = [leave(chat) for chat in (left, right)]
    told = "another program goes on with branch main too: yours is stored as branch main-2"
    assert [transcript.count(told) for transcript in transcripts] == [0, 1]  # who came later is told, once
    check_integrity()
    branches = [[turn.user.content for turn in turns] for turns in stored(1).branches.values()]
    assert sorted(branches) == [["one", "left 0", "left 1"], ["one", "right 0", "right 1"]]


@pytest.mark.parametrize(
    "flags", [(), ("--json",), ("--json", "--stream")], ids=["text", "objects", "events"]
)
def test_between_pipes_that_is_told_on_stderr_or_by_an_event(tiny_path: Path, flags: tuple[str, ...]) -> None:
    talk(tiny_path, "one")
    with Pipes("chat", "-m", tiny_path, *SHORT, "--resume", *flags) as later:
        later.say("two")
        while flags and b'"event": "turn"' not in later.read_line():
            pass
        if not flags:
            later.read_line()  # the reply
        talk(tiny_path, "and?", flags=("--resume", "1"))
        later.say("three", "four")
        code, out, err = later.end()
    assert code == 0
    told = "another program goes on with branch main too: yours is stored as branch main-2"
    if "--stream" in flags:
        notices = [one["text"] for one in objects(out) if one["event"] == "notice"]
        assert (notices, err) == ([told], b"")
    else:
        assert (told.encode() in out, err.decode().splitlines().count(told)) == (False, 1)


def unusable(kind: str) -> Path:
    """Make the data folder one that cannot be used; return what is there instead."""
    path = database()
    if kind == "a file where the folder should be":
        path = path.parent
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"no database " * 1000)
    return path


@pytest.mark.parametrize("kind", ["a damaged database", "a file where the folder should be"])
def test_where_nothing_can_be_stored_one_warning_says_so_and_the_chat_goes_on(
    tiny_path: Path, kind: str
) -> None:
    path = unusable(kind)
    with open_chat(tiny_path, *SHORT) as chat:
        chat.ask("one")
        assert chat.ask("two").reused[0] > 0
        chat.say("/save it")
        seen = chat.wait_for("error: ")
        assert seen.text.count("warning: ") == 1
        assert "warning: this chat is not stored: " in seen.text
        leave(chat)
    assert path.read_bytes() == b"no database " * 1000  # it may yet be mended
    for command in (["history"], ["search", "one"], ["export", "last"]):
        done = run_ts(*command)
        assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (1, b"", 1)
        assert done.stderr.startswith(b"error: ") and str(path).encode() in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="limits another program's files")
@pytest.mark.parametrize(
    ("more", "has_room", "kept"),
    [
        pytest.param(("four",), True, ["one", "two", "three", "four"], id="with the next turn"),
        pytest.param((), True, ["one", "two", "three"], id="when it is left"),
        pytest.param((), False, ["one"], id="never"),
    ],
)
def test_turns_that_a_full_disk_refused_are_stored_once_there_is_room(
    tiny_path: Path, more: tuple[str, ...], has_room: bool, kept: list[str]
) -> None:  # G12
    def limit(chat: Terminal, n_bytes: int) -> None:
        resource.prlimit(chat.pid, resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))

    problem = "this turn is not stored: "
    with open_chat(tiny_path, *SHORT) as chat:
        chat.ask("one")
        limit(chat, 1)
        assert chat.ask("two").text.count(problem) == 1
        seen = chat.ask("three")
        assert seen.text.count(problem) == 2 and seen.reused[0] > 0
        assert said(stored()) == [("one", reply_to(tiny_path, "one"))]
        if has_room:
            limit(chat, resource.RLIM_INFINITY)
        for message in more:
            assert chat.ask(message).text.count(problem) == 2
        leave(chat)
        assert ("warning: the last turns are not stored: " in chat.picture.text) is not has_room
    check_integrity()
    assert [user for user, _ in said(stored())] == kept


def files_of(home: Path) -> dict[str, int]:
    """Return the permissions of every file and folder of the user's own, but for the shared cache."""
    return {
        str(path.relative_to(home)): stat.S_IMODE(path.stat().st_mode)
        for path in home.rglob("*")
        if "cache" not in path.parts
    }


def test_what_is_kept_is_for_the_user_alone(tiny_path: Path, isolated_home: Path) -> None:
    shell = 'umask 000; exec "$@"'
    with Terminal("chat", "-m", tiny_path, *SHORT, env=environment(), shell=shell) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        chat.ask("one")
        modes = files_of(isolated_home)  # while it runs: the log and its index are files too
        leave(chat)
    assert {Path(name).name for name in modes} > {"conversations.db", "conversations.db-wal", "history"}
    for name, mode in modes.items():
        is_ours = Path(name).parent != Path()  # not the folders of all programs
        assert mode == (0o700 if (isolated_home / name).is_dir() else 0o600) or not is_ours, name


def test_without_saving_nothing_of_a_chat_is_left(tiny_path: Path, isolated_home: Path) -> None:  # T79
    with open_chat(tiny_path, *SHORT, "--no-save") as chat:
        chat.ask("one")
        chat.say("/search one")  # looks, and stores nothing
        chat.wait_for(lambda seen: "nothing stored contains" in seen.text)
        chat.type(UP)
        while chat.watch(1.0).input == "":
            chat.type(UP)  # the history is read in the background: the first may have come too soon
        chat.wait_for(lambda seen: seen.input == "/search one")  # it is known as long as the chat lasts
        chat.type(CTRL_C)
        leave(chat)
    left = [path for path in isolated_home.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert not any(b"one" in path.read_bytes() for path in left)


# Gone on with


@pytest.fixture(scope="module")
def archived(tiny_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with conversation 1, of five turns and used last, and 2, which is called pets."""
    folder = tmp_path_factory.mktemp("archive")
    for lines, flags in (
        (("first", "second", "third", "fourth"), ()),
        (("a cat", "a dog", "/save pets"), ()),
        (("fifth",), ("--resume", "1")),
    ):
        done = run_ts(
            "chat", "-m", tiny_path, "-q", *SHORT, *flags,
            stdin="".join(f"{line}\n" for line in lines), env=environment(TS_DATA_DIR=str(folder)),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b"")
    return folder


@pytest.fixture
def archive(archived: Path, isolated_home: Path) -> None:
    """Give the user those conversations."""
    shutil.copytree(archived, database().parent)


FIRST = ("first", "second", "third", "fourth", "fifth")
PETS = ("a cat", "a dog")
DIM = "\x1b[2m"


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize(
    ("flags", "turns", "identity"),
    [
        pytest.param(("--resume",), FIRST, 1, id="the one used last"),  # T83: 2 was begun later
        pytest.param(("--resume", "2"), PETS, 2, id="by its number"),
        pytest.param(("--resume", "pets"), PETS, 2, id="by its name"),
        pytest.param(("--resume", "1@2"), FIRST[:2], 1, id="as it was after a turn"),
        pytest.param(("--resume", "pets@1"), PETS[:1], 2, id="a name's turn"),
    ],
)
def test_a_resumed_chat_shows_its_last_turns_again_and_goes_on(
    tiny_path: Path, flags: tuple[str, ...], turns: tuple[str, ...], identity: int
) -> None:  # T80, T83
    unbroken = talk(tiny_path, *turns, "and?", flags=("--no-save",))
    n_before = max(len(turns) - 3, 0)
    with open_chat(tiny_path, *SHORT, *flags) as chat:
        seen = chat.wait_for(lambda seen: unbroken[len(turns) - 1]["reply"] in seen.transcript)
        seen = chat.wait_for("[unfinished; `/continue` goes on]")
        notices = ("[unfinished", "going on: ", "message")
        rows = [row for row in seen.transcript.split("\n") if row and not row.startswith(notices)]
        again = [
            row for nth in range(n_before, len(turns)) for row in (f"> {turns[nth]}", unbroken[nth]["reply"])
        ]
        assert rows[-len(again) :] == again
        for row in again:
            assert f"{DIM}{row}" in chat.written.decode()
        assert (f"… {n_before} earlier turns; `/history` shows all" in rows) is (n_before > 0)
        chat.wait_for(lambda seen: re.search(r"ctx [1-9]\d+/", seen.bar))  # what it takes of the context
        seen = chat.ask("and?")
        n_reused, n_prompt = seen.reused
        assert n_prompt == unbroken[-1]["prompt_tokens"]  # the model was given all of it
        # T84: and computes only what is new, and the last token, which was never fed
        assert n_prompt - n_reused <= 1 + len("|\n|user\nand?|\n|assistant\n")
        assert unbroken[-1]["reply"] in seen.transcript
        leave(chat)
    assert said(stored())[-1] == ("and?", unbroken[-1]["reply"])
    assert exported(identity) == [
        (user, turn["reply"]) for user, turn in zip((*turns, "and?"), unbroken, strict=True)
    ]


@pytest.mark.usefixtures("archive")
@pytest.mark.parametrize("reference", ["7", "nobody", "1@9", "pets@0", "2026@1"])
def test_resuming_what_is_not_there_is_one_line_before_any_model_is_loaded(
    tmp_path: Path, reference: str
) -> None:
    with Terminal("chat", "-m", tmp_path / "gone.gguf", "--resume", reference) as chat:
        assert chat.wait_for_end() == 1
        (row,) = chat.picture.text.split("\n")
        assert row.startswith("error: no ") and "gone.gguf" not in row


@pytest.mark.usefixtures("archive")
def test_a_loaded_conversation_is_shown_and_gone_on_with(tiny_path: Path) -> None:
    with open_chat(tiny_path, *SHORT) as chat:
        chat.ask("something else")
        chat.say("/load pets")
        seen = chat.wait_for(lambda seen: f"{DIM}> a dog" in chat.written.decode() and seen.is_idle)
        assert re.search(r"loaded pets: \d of \d+ tokens are computed again with the next message", seen.text)
        chat.ask("a bird")
        chat.say("/load 9")
        chat.wait_for("error: no conversation 9: `ts history` lists them")
        leave(chat)
    assert [user for user, _ in said(stored("pets"))] == [*PETS, "a bird"]
    assert [user for user, _ in said(stored(3))] == ["something else"]


def test_what_was_named_branched_and_taken_back_is_what_ts_tells_of(tiny_path: Path) -> None:
    def do(chat: Terminal, command: str, answer: str | Callable[[Picture], object]) -> Picture:
        chat.say(command)
        chat.wait_for(lambda seen: f"> {command}" in seen.transcript)
        return chat.wait_for(answer)

    with open_chat(tiny_path, *SHORT) as chat:
        chat.ask("alpha")
        chat.ask("beta")
        do(chat, "/save greek", "stored as 1; `ts chat --resume greek` goes on with it")
        do(chat, "/branch other", "now on branch other")
        seen = chat.ask("gamma")
        assert "branch other" in seen.bar
        do(chat, "/switch main", lambda seen: "going to branch main, 2 turns" in seen.text)
        chat.wait_for(lambda seen: "branch other" not in seen.bar)
        do(chat, "/rewind 1", "going back to turn 1")
        chat.ask("delta")
        seen = do(chat, "/search GAMMA", lambda seen: "user  gamma" in seen.text)
        (reference,) = re.findall(r"^(\S+) +user +gamma$", seen.text, re.MULTILINE)
        leave(chat)
    assert re.fullmatch(r"1  [\d-]+ [\d:]+  2 turns  tiny  greek  alpha\n", output_of("history"))
    assert [user for user, _ in exported("greek")] == ["alpha", "delta"]
    assert output_of("search", "gamma").split()[0] == reference
    conversation = stored("greek")
    branches = {name: [turn.user.content for turn in turns] for name, turns in conversation.branches.items()}
    assert branches == {"main": ["alpha", "delta"], "other": ["alpha", "beta", "gamma"]}
    assert said(conversation)[-1] == ("delta", reply_to(tiny_path, "alpha", "delta"))


def test_an_exported_chat_can_be_loaded_again(tiny_path: Path, tmp_path: Path) -> None:  # T81
    awkward = "```python\n# User\n\n  x = 1\n```\n<!-- turbospark_chat end -->\n\n> quote"
    path = tmp_path / "chat.md"
    with open_chat(tiny_path, *SHORT) as chat:
        chat.ask("one")
        chat.type(paste(awkward) + ENTER)
        chat.wait_for(lambda seen: seen.text.count("[reached the limit") == 2 and seen.is_idle)
        chat.say(f"/export {path}")
        chat.wait_for(f"wrote {path}")
        leave(chat)
    before = said(stored())
    assert before[1][0] == awkward
    assert output_of("export", "last") == path.read_text(encoding="utf-8")
    with open_chat(tiny_path, *SHORT) as chat:
        chat.say(f"/load {path}")
        chat.wait_for(lambda seen: before[1][1] in seen.transcript and seen.is_idle)
        chat.ask("three")
        leave(chat)
    assert said(stored(2))[:2] == before
    assert said(stored(2))[2] == ("three", reply_to_these(tiny_path, before, "three"))


def reply_to_these(path: Path, turns: list[tuple[str, str]], message: str) -> str:
    """Return what comes next in a chat whose messages need not be lines."""
    lines = [json.dumps({"content": user}) for user, _ in turns]
    return reply_to(path, *lines, message)


def test_a_reader_of_an_export_may_leave_early() -> None:
    long = numbered_turn(1, n_words=50_000)  # many times what a pipe holds
    with closing(Store.open(database())) as store:
        Journal(store, model_name="none").keep(Conversation(turns=[long]), ended=ended(long))
    reading = subprocess.Popen(
        [TS, "export", "last"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED=""),  # set, Python would not notice what it could not write
    )
    assert reading.stdout is not None
    assert reading.stdout.readline().startswith(b"<!-- turbospark_chat transcript")
    reading.stdout.close()
    reading.stdout = None
    assert (reading.communicate()[1], reading.returncode) == (b"", 0)
