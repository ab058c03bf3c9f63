"""What one run of `ts` computed serves the next, whatever happens to its files in between."""

import io
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from terminal_driver import CTRL_D, LETTERS, Pipes, Terminal, environment, leave, objects, open_chat, run_ts
from tiny_model import CHATML, write_tiny_model

from turbospark_chat import cli
from turbospark_chat.models.state_file import read_state
from turbospark_chat.settings import Locations

# Replies are of these letters, so that their text, computed anew, has the ids it had.
GREEDY = ("--temperature", "0", "--max-tokens", "12", "--json", "--logit-bias", "'abcdefgh':100")
FIRST = ("My number is 42.", "What is my number?")
LONG = "The sky is blue and the grass is green. " * 5
Turn = dict[str, Any]
Turns = list[Turn]
Run = Callable[..., Any]


@pytest.fixture
def ts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `ts` in this process; its stderr is one line with the `problem`, or empty without one."""

    def run(*arguments: str | Path, stdin: str = "", problem: str = "") -> Turns:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        code = cli.run([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert (code, err.count("\n")) == (0, bool(problem)) and problem in err, err
        return objects(out)

    return run


@pytest.fixture
def chat(ts: Run, tiny_path: Path) -> Run:
    """Say lines in a chat."""

    def run(*flags: str | Path, lines: Sequence[str], problem: str = "") -> Turns:
        stdin = "".join(f"{line}\n" for line in lines)
        return ts("chat", "-m", tiny_path, *GREEDY, *flags, stdin=stdin, problem=problem)

    return run


@pytest.fixture
def resumed(chat: Run) -> Run:
    """Resume the last chat for one more turn, and return that."""

    def run(*flags: str | Path, problem: str = "") -> Turn:
        return chat("--resume", *flags, lines=["And another one."], problem=problem)[0]

    return run


@pytest.fixture
def complete(ts: Run, tiny_path: Path) -> Run:
    """Answer a question after a long text, with a named state."""

    def run(question: str, *flags: str, name: str = "sky", problem: str = "") -> Turn:
        flags = ("--prefix-cache", name, *flags)
        return ts("complete", "-m", tiny_path, *GREEDY, *flags, LONG + question, problem=problem)[0]

    return run


def state_file(name: str = "1") -> Path:
    return Locations.of_user().states / f"{name}.state"


@pytest.fixture
def before(chat: Run) -> Turns:
    """Two turns of a chat that has ended."""
    return chat(lines=FIRST)


@pytest.fixture
def unbroken(chat: Run) -> Turn:
    """What the third turn is in a chat that never ended."""
    return chat("--no-save", lines=(*FIRST, "And another one."))[-1]


# Chats


def test_a_resumed_chat_recomputes_nothing_and_says_what_it_would_have(
    before: Turns, unbroken: Turn, resumed: Run
) -> None:  # T84
    turn = resumed()
    assert turn["reused_prefix_tokens"] == before[-1]["kv_position"] == unbroken["reused_prefix_tokens"]
    assert (turn["token_ids"], turn["reply"]) == (unbroken["token_ids"], unbroken["reply"])
    again = resumed()
    assert again["reused_prefix_tokens"] == turn["kv_position"]


def test_a_state_is_for_the_user_alone(before: Turns) -> None:
    path = state_file()
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert [other.name for other in path.parent.iterdir()] == ["1.state"]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [(flip, "damaged"), (cut, "damaged"), (lambda path: os.truncate(path, 0), "cut off")],
    ids=["flipped byte", "cut file", "empty file"],
)
def test_a_damaged_state_is_one_line_and_the_reply_is_the_same(
    before: Turns, unbroken: Turn, resumed: Run, spoil: Callable[[Path], None], problem: str
) -> None:  # T84, 20
    spoil(state_file())
    turn = resumed(problem=problem)
    assert (turn["reused_prefix_tokens"], turn["reply"]) == (0, unbroken["reply"])
    assert resumed()["reused_prefix_tokens"] == turn["kv_position"]  # it was written anew


def test_a_state_of_another_template_is_one_line_and_the_reply_is_the_same(
    before: Turns, unbroken: Turn, resumed: Run, tmp_path: Path
) -> None:  # T84, 20
    template = tmp_path / "template"
    template.write_text(CHATML + "{# the same, in other words #}")
    turn = resumed("--template", template, problem="computed with another template")
    assert (turn["reused_prefix_tokens"], turn["reply"]) == (0, unbroken["reply"])


def test_a_state_of_another_model_is_one_line(before: Turns, resumed: Run, tmp_path: Path) -> None:  # T84, 20
    other = write_tiny_model(tmp_path / "other.gguf", seed=1, context_length=16_384)
    turn = resumed("-m", other, problem="computed with another model file")
    assert turn["reused_prefix_tokens"] == 0


def test_a_model_file_that_was_copied_is_the_same_model(
    before: Turns, resumed: Run, tiny_path: Path, tmp_path: Path
) -> None:
    (copy := tmp_path / "copy.gguf").write_bytes(tiny_path.read_bytes())
    assert resumed("-m", copy)["reused_prefix_tokens"] == before[-1]["kv_position"]


@pytest.mark.parametrize("flags", [("--no-save",), ("--state-budget", "0"), ("--no-reuse",)])
def test_none_is_written_where_it_is_not_wanted(chat: Run, flags: tuple[str, ...]) -> None:
    chat(*flags, lines=FIRST)
    assert not state_file().parent.exists()


def test_quiet_says_nothing_of_one_that_cannot_be_used(before: Turns, resumed: Run) -> None:
    cut(state_file())
    assert resumed("-q")["reused_prefix_tokens"] == 0


def test_a_deleted_conversation_takes_its_state_with_it(before: Turns, ts: Run) -> None:
    assert state_file().exists()
    ts("history", "--delete", "1")
    assert not state_file().exists()


def test_going_to_and_fro_between_conversations_leaves_a_state_of_each(chat: Run) -> None:
    lines = [*FIRST, "/clear", "Name a fruit.", "/load 1", "Again.", "/load 2", "Again."]
    turns = [turn for turn in chat(lines=lines) if turn["event"] == "turn"]
    assert turns[3]["reused_prefix_tokens"] == turns[1]["kv_position"]
    assert turns[4]["reused_prefix_tokens"] == turns[2]["kv_position"]
    for reference, last in (("1", turns[3]), ("2", turns[4])):
        (turn,) = chat("--resume", reference, lines=["Go on."])
        assert turn["reused_prefix_tokens"] == last["kv_position"]


def test_loading_says_what_is_computed_again_once_it_is_known(before: Turns, chat: Run) -> None:
    def said() -> str:
        (loaded,) = chat(lines=["/load 1"])
        return str(loaded["answer"])

    n_new = 3  # the reply was cut short: its last token and its end were never fed
    n_prompt, what = before[-1]["kv_position"] + n_new, "tokens are computed again with the next message"
    assert said() == f"loaded My number is 42.: {n_new} of {n_prompt} {what}"
    state_file().unlink()
    assert said() == f"loading My number is 42.: {n_prompt} of {n_prompt} {what}"


# Completions


@pytest.mark.parametrize("flags", [(), ("--raw",)], ids=["chat template", "raw"])
def test_a_prompt_that_is_shared_is_computed_once(complete: Run, flags: tuple[str, ...]) -> None:
    first, second = complete("Why?", *flags), complete("How so?", *flags)
    assert first["reused_prefix_tokens"] == 0
    n_computed = second["prompt_tokens"] - second["reused_prefix_tokens"]
    assert n_computed < 40  # the question, and what the template writes behind it
    cold = complete("How so?", *flags, name="another")
    assert (cold["reused_prefix_tokens"], cold["reply"]) == (0, second["reply"])


def test_it_is_written_where_more_was_computed_than_reused(complete: Run) -> None:
    path = state_file("name-sky")
    complete("Why?")
    first = path.read_bytes()
    complete("How so?")
    assert path.read_bytes() == first
    complete("How so? " * 50)
    assert path.read_bytes() != first


def test_of_several_answers_the_first_counts(complete: Run) -> None:
    complete("Why?", "--n", "2")  # the second reuses what the first computed
    first = state_file("name-sky").read_bytes()
    complete("How so?", "--n", "2")
    assert state_file("name-sky").read_bytes() == first


def test_a_damaged_one_is_one_line_and_written_anew(complete: Run) -> None:
    whole = complete("Why?")
    flip(state_file("name-sky"))
    again = complete("Why?", problem="the prompt is computed anew")
    assert (again["reused_prefix_tokens"], again["reply"]) == (0, whole["reply"])
    assert complete("Why?")["reused_prefix_tokens"] == whole["prompt_tokens"] - 1


def test_no_named_one_is_written_or_read_where_none_is_wanted(complete: Run) -> None:
    complete("Why?", "--state-budget", "0")
    assert not state_file().parent.exists()
    complete("Why?")
    assert complete("Why?", "--state-budget", "0")["reused_prefix_tokens"] == 0


def test_the_budget_holds_for_all_of_them_together(complete: Run) -> None:
    old = state_file("7")
    old.parent.mkdir(parents=True)
    old.write_bytes(bytes(10**6))
    complete("Why?", "--state-budget", "2")
    assert old.exists()
    said = "1 computed state of 1.0 MB deleted to keep to the budget of 1 MB: 7"
    complete("Why?", "--state-budget", "1", name="another", problem=said)
    assert not old.exists() and state_file("name-another").exists()


def test_quiet_says_nothing_of_what_had_to_go(complete: Run) -> None:
    old = state_file("7")
    old.parent.mkdir(parents=True)
    old.write_bytes(bytes(10**6))
    complete("Why?", "--state-budget", "1", "-q")
    assert not old.exists()


@pytest.mark.parametrize("name", ["../up", "/tmp/x", "", "a/b"])
def test_a_name_that_leads_elsewhere_is_refused_before_a_model_is_looked_for(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["complete", "-m", "no such model", "--prefix-cache", name, "hello"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and "is no name for a state" in err


@pytest.mark.parametrize("value", ["-1", "1.5", "much", "9" * 10])
def test_a_budget_that_is_no_number_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["chat", "--state-budget", value]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "state_budget is" in err and err.count("\n") == 1


# Between processes


def in_process(*arguments: str | Path, stdin: str = "") -> Turns:
    done = run_ts(*arguments, *GREEDY, stdin=stdin, env=environment())
    assert (done.returncode, done.stderr) == (0, b"")
    return objects(done.stdout)


def test_the_next_process_goes_on_where_the_last_one_ended(tiny_path: Path) -> None:  # T84
    before = in_process("chat", "-m", tiny_path, stdin="\n".join(FIRST))
    (after,) = in_process("chat", "-m", tiny_path, "--resume", stdin="And another one.\n")
    assert after["reused_prefix_tokens"] == before[-1]["kv_position"]


def test_the_next_script_computes_its_prompt_from_where_it_differs(tiny_path: Path) -> None:
    command = ("complete", "-m", tiny_path, "--prefix-cache", "sky")
    (first,), (second,) = (in_process(*command, LONG + question) for question in ("Why?", "How so?"))
    assert first["reused_prefix_tokens"] == 0
    assert second["prompt_tokens"] - second["reused_prefix_tokens"] < 40


@pytest.mark.parametrize("flags", [(), ("--raw",)], ids=["chat template", "raw"])
def test_on_a_terminal_it_says_what_was_reused_and_where_what_was_kept_differs(
    tiny_path: Path, flags: tuple[str, ...]
) -> None:
    greedy = ("--max-tokens", "3", "--temperature", "0", *LETTERS)
    command = ("complete", "-m", tiny_path, "--prefix-cache", "sky", *greedy, *flags)

    def last_line(*arguments: str) -> str:
        with Terminal(*command, *arguments) as terminal:
            assert terminal.wait_for_end() == 0
            return terminal.picture.text.split("\n")[-1]

    said = map(last_line, ("Why is it blue?", "Why is it blue?", "Why is it so? No, it is not"))
    first, again, other = (re.fullmatch(r"reused (\d+) of (\d+) prompt tokens(.*)", line) for line in said)
    assert first and again and other
    assert (first[1], first[3], int(again[1]), again[3]) == ("0", "", int(again[2]) - 1, "")
    assert 0 < int(other[1]) < int(again[1])
    assert other[3] == f"; another prompt: position {other[1]} is `s`, where `b` was held"
    assert "reused" not in last_line("-q", "Why not?")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_chat_leaves_the_state_there_was(
    before: Turns, resumed: Run, tiny_path: Path, number: int
) -> None:
    whole = state_file().read_bytes()
    with Pipes("chat", "-m", tiny_path, *GREEDY, "--resume") as pipes:
        pipes.say("And another one.")
        turn = objects(pipes.read_line())[0]
        pipes.process.send_signal(number)
        pipes.process.wait()
    assert state_file().read_bytes() == whole
    assert before[-1]["kv_position"] == turn["reused_prefix_tokens"] <= resumed()["reused_prefix_tokens"]


def test_a_chat_in_a_terminal_leaves_and_takes_up_a_state(tiny_path: Path) -> None:
    flags = ("--max-tokens", "6", *LETTERS)
    with open_chat(tiny_path, *flags) as chat:
        chat.ask("My number is 42.")
        leave(chat)
    with open_chat(tiny_path, *flags, "--resume") as chat:
        resumed = chat.ask("What is my number?")
        chat.type(CTRL_D)
        assert chat.wait_for_end() == 0
    reused, prompt = map(int, re.findall(r"reused (\d+)/(\d+)", resumed.text)[-1])
    new = "?|\n|user\nWhat is my number?|\n|assistant\n"  # the last token of before was never fed
    assert prompt - reused <= len(new)
    assert "warning" not in resumed.text


def test_a_chat_in_a_terminal_that_is_asked_to_end_leaves_a_state(tiny_path: Path) -> None:
    with open_chat(tiny_path, "--max-tokens", "6", *LETTERS) as chat:
        chat.ask("My number is 42.")
        os.kill(chat.pid, signal.SIGTERM)
        assert chat.wait_for_end() == 128 + signal.SIGTERM
    assert read_state(state_file()).ids
