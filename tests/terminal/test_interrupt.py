"""Interrupting: by the key and by `kill`, at every phase, in a terminal and between pipes."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from terminal_driver import (
    CTRL_C,
    CTRL_D,
    ENTER,
    GREEDY,
    LETTERS,
    TIMEOUT,
    TS,
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
from tiny_model import write_tiny_model

SLOW = ("--max-tokens-per-sec", "25")
CTRL_E, CTRL_X, CTRL_Z = "\x05", "\x18", "\x1a"
CHUNK = 64  # prompt tokens between two looks at the cancel flag
STOPPED = "[stopped; `/continue` goes on]"
HINT = "Ctrl-D or /exit leaves"

interrupted_by = pytest.mark.parametrize(
    "interrupt", [lambda chat: chat.type(CTRL_C), lambda chat: chat.interrupt()], ids=["key", "signal"]
)
Interrupt = Callable[[Terminal], None]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_puts_the_terminal_right(tiny_path: Path, number: signal.Signals) -> None:
    shell = '"$@"; code=$?; stty -a | grep -q " icanon" && echo "cooked after $code"'
    with Terminal("chat", "-m", tiny_path, shell=shell) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        (program,) = psutil.Process(chat.pid).children()
        program.send_signal(number)
        chat.wait_for(f"cooked after {128 + number}")


def test_a_chat_that_was_stopped_takes_the_terminal_again(tiny_path: Path) -> None:
    with Terminal("chat", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "4") as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        program = psutil.Process(chat.pid)
        program.send_signal(signal.SIGSTOP)
        chat.cook()
        program.send_signal(signal.SIGCONT)
        chat.wait_for_raw_mode()
        assert chat.ask("hello").n_out == 4


# A shell with job control, which leaves the terminal's modes as it finds them.
STOPPED_CODE = 128 + signal.SIGTSTP
SHELL_WITH_JOBS = f"""
set -m
"$@"; code=$?
while [ $code = {STOPPED_CODE} ]; do
    stty -a | grep -q " icanon" && echo stopped, cooked
    read line; fg; code=$?
done
echo "ended with $code"
"""


@pytest.mark.parametrize("stopped_by", ["key", "signal"])
def test_when_it_is_stopped_the_shell_gets_a_clean_terminal_and_the_draft_stays(
    tiny_path: Path, stopped_by: str
) -> None:
    flags = (*GREEDY, *LETTERS, "--max-tokens", "4")
    with Terminal("chat", "-m", tiny_path, *flags, env=environment(), shell=SHELL_WITH_JOBS) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        (program,) = psutil.Process(chat.pid).children()
        chat.type("a draft")
        for n_stops in (1, 2, 3):
            chat.wait_for(lambda seen: seen.is_idle and seen.input == "a draft")
            chat.type(CTRL_Z) if stopped_by == "key" else program.send_signal(signal.SIGTSTP)
            stopped = chat.wait_for(lambda seen, n=n_stops: seen.text.count("stopped, cooked") == n)
            assert not stopped.bar and "draft" not in stopped.text
            chat.type(ENTER)  # to the shell
        chat.wait_for(lambda seen: seen.is_idle and seen.input == "a draft")
        chat.type(ENTER)
        chat.wait_for(lambda seen: seen.is_idle and "[reached the limit" in seen.text)
        chat.type(CTRL_D)
        chat.wait_for("ended with 0")
        assert chat.picture.text.count("a draft") == 1


def test_a_stop_that_whoever_started_it_ignores_stays_ignored(tiny_path: Path) -> None:
    flags = (*GREEDY, *LETTERS, "--max-tokens", "4")
    shell = f"trap '' TSTP; {SHELL_WITH_JOBS}"
    with Terminal("chat", "-m", tiny_path, *flags, env=environment(), shell=shell) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        (program,) = psutil.Process(chat.pid).children()
        program.send_signal(signal.SIGTSTP)
        chat.watch(0.1)
        assert chat.ask("hello").n_out == 4
        assert "stopped" not in chat.picture.text


def test_an_editor_that_stops_itself_and_the_chat_has_both_back_with_the_shells_fg(
    tiny_path: Path, tmp_path: Path
) -> None:
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\necho editing; kill -TSTP 0; echo going on; echo edited > "$1"\n')
    editor.chmod(0o755)
    home = environment(EDITOR=str(editor), VISUAL="")
    with Terminal("chat", "-m", tiny_path, env=home, shell=SHELL_WITH_JOBS) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        chat.type("a draft" + CTRL_X + CTRL_E)
        stopped = chat.wait_for("stopped, cooked")
        assert "editing" in stopped.rows and not stopped.bar
        chat.type(ENTER)
        chat.wait_for(lambda seen: "going on" in seen.rows and seen.is_idle and seen.input == "edited")
        chat.type(CTRL_C + CTRL_D)
        chat.wait_for("ended with 0")


# At the prompt


@interrupted_by
def test_at_the_prompt_it_clears_what_is_typed_and_then_says_once_how_to_leave(
    tiny_path: Path, interrupt: Interrupt
) -> None:  # H3, T7
    with open_chat(tiny_path) as chat:
        chat.type("half a thought")
        chat.wait_for(lambda seen: seen.input == "half a thought")
        interrupt(chat)
        chat.wait_for(lambda seen: seen.input == "")
        interrupt(chat)
        chat.wait_for(HINT)
        for _ in range(5):
            interrupt(chat)
            chat.watch(0.02)
        transcript = leave(chat)
        assert (transcript.count(HINT), transcript.count("half a thought")) == (1, 0)


# While a reply is being written


@interrupted_by
def test_a_stopped_reply_stays_in_the_conversation_and_in_the_cache(
    tiny_path: Path, interrupt: Interrupt
) -> None:  # T1, T2, T4, H3, H4
    with open_chat(tiny_path, *LETTERS, *SLOW, "--max-tokens", "200") as chat:
        chat.begin("first")
        interrupt(chat)
        stopped = chat.wait_for(lambda seen: STOPPED in seen.text and seen.is_idle)
        assert "cancelled" in stopped.bar
        shown = stopped.rows[stopped.rows.index("> first") + 1]
        assert len(shown) == stopped.n_out < 200
        chat.begin("second")
        chat.interrupt()
        second = chat.wait_for(lambda seen: seen.text.count(STOPPED) == 2 and seen.is_idle)
        # All of the first turn but the last letter shown, which was never fed.
        assert second.reused[0] >= stopped.reused[1] + stopped.n_out - 1
        chat.say("/history")
        history = chat.wait_for(lambda seen: "assistant: " in seen.text and seen.is_idle)
        assert f"1 assistant: {shown} [unfinished]" in history.rows
        leave(chat)


@interrupted_by
def test_twenty_interrupts_in_a_second_are_one_cancel_and_the_next_turn_is_right(
    tiny_path: Path, interrupt: Interrupt
) -> None:  # T7, H3
    flags = (*LETTERS, "--max-tokens", "60")
    cold = objects(run_ts("chat", "-m", tiny_path, "--json", *GREEDY, *flags, stdin="then\n").stdout)[0]
    with open_chat(tiny_path, *flags, *SLOW) as chat:
        chat.begin("first")
        interrupt_twenty_times(chat, interrupt)
        after = chat.wait_for(lambda seen: seen.is_idle)
        assert (after.text.count(STOPPED), after.text.count(HINT)) == (1, 1)
        chat.say("/undo")
        chat.wait_for("taking back 1 turn: ")
        chat.say("/set max_tokens_per_sec none")
        then = chat.ask("then")
        assert cold["reply"] in then.rows
        assert then.reused[0] >= len("<user\n")  # as far as the two messages agree
        assert then.reused[1] == cold["prompt_tokens"]
        assert "Traceback" not in leave(chat)


def interrupt_twenty_times(chat: Terminal, interrupt: Interrupt) -> None:
    for _ in range(20):
        interrupt(chat)
        chat.watch(0.02)


@interrupted_by
@pytest.mark.parametrize(
    "typed", ["", "a draft", paste("a long draft\n" * 20)], ids=["idle", "typing", "paste"]
)
def test_twenty_interrupts_of_the_input_clear_it_and_the_next_turn_is_right(
    tiny_path: Path, interrupt: Interrupt, typed: str
) -> None:  # T7, H3
    flags = (*LETTERS, "--max-tokens", "20")
    right = run_ts("chat", "-q", "-m", tiny_path, *GREEDY, *flags, stdin="then\n").stdout.decode().strip()
    with open_chat(tiny_path, *flags) as chat:
        chat.type(typed)
        chat.wait_for(lambda seen: seen.input != "" or not typed)
        interrupt_twenty_times(chat, interrupt)
        after = chat.wait_for(lambda seen: seen.input == "" and HINT in seen.text)
        assert after.text.count(HINT) == 1
        assert right in chat.ask("then").rows
        assert "Traceback" not in leave(chat)


@interrupted_by
def test_twenty_interrupts_of_a_prefill_give_the_message_back_once_and_the_next_turn_is_right(
    tmp_path: Path, interrupt: Interrupt
) -> None:  # T3, T7
    path = write_tiny_model(tmp_path / "roomy.gguf", context_length=40_000)
    flags = (*LETTERS, "--max-tokens", "20")
    right = run_ts("chat", "-q", "-m", path, *GREEDY, *flags, stdin="then\n").stdout.decode().strip()
    with open_chat(path, *flags) as chat:
        chat.type(paste("long " * 6000) + ENTER)
        chat.wait_for(lambda seen: not seen.is_idle)
        interrupt_twenty_times(chat, interrupt)
        after = chat.wait_for(lambda seen: seen.is_idle and seen.input == "" and HINT in seen.text)
        assert (after.text.count("stopped before the reply began"), after.text.count(HINT)) == (1, 1)
        assert right in chat.ask("then").rows
        assert "Traceback" not in leave(chat)


@interrupted_by
def test_twenty_interrupts_of_a_question_say_no_once(
    tiny_path: Path, interrupt: Interrupt
) -> None:  # T7, T65
    flags = (*LETTERS, "--ctx", "150", "--max-tokens", "10", "--on-overflow", "ask")
    right = run_ts("chat", "-q", "-m", tiny_path, *GREEDY, *flags, stdin="then\n").stdout.decode().strip()
    with open_chat(tiny_path, *flags) as chat:
        chat.ask("a message of some length")
        chat.ask("another message like that")
        chat.say("and one more of that kind")
        chat.wait_for("leave out the oldest exchange? y/n")
        interrupt_twenty_times(chat, interrupt)
        after = chat.wait_for(lambda seen: "y/n" not in seen.text and seen.input == "" and HINT in seen.text)
        assert after.text.count(HINT) == 1
        chat.say("/history")
        chat.wait_for("2 assistant: ")
        chat.say("/clear")
        assert right in chat.ask("then").rows
        transcript = leave(chat)
        assert "Traceback" not in transcript and "3 user" not in transcript


@interrupted_by
def test_twenty_interrupts_while_an_editor_is_open_leave_it_the_terminal(
    tiny_path: Path, tmp_path: Path, interrupt: Interrupt
) -> None:  # T7
    closing = tmp_path / "closing"
    editor = tmp_path / "editor"
    editor.write_text(
        f"#!/bin/sh\ntrap '' INT\necho it is open\nwhile ! [ -e '{closing}' ]; do sleep 0.05; done\n"
        'echo then > "$1"\n'
    )
    editor.chmod(0o755)
    flags = (*LETTERS, "--max-tokens", "20")
    right = run_ts("chat", "-q", "-m", tiny_path, *GREEDY, *flags, stdin="then\n").stdout.decode().strip()
    with open_chat(tiny_path, *flags, EDITOR=str(editor), VISUAL="") as chat:
        chat.ask("first")
        chat.say("/edit")
        chat.wait_for("it is open")
        interrupt_twenty_times(chat, interrupt)
        closing.touch()
        chat.wait_for(lambda seen: "> then" in seen.transcript and seen.is_idle and right in seen.rows)
        transcript = leave(chat)
        assert not re.search(f"Traceback|error|{HINT}", transcript)


@interrupted_by
def test_interrupts_while_the_alternatives_are_computed_leave_the_cache_right(
    tiny_path: Path, interrupt: Interrupt
) -> None:  # T7
    flags = (*LETTERS, "--max-tokens", "64")
    cold = objects(run_ts("chat", "-m", tiny_path, "--json", *GREEDY, *flags, stdin="first\nthen\n").stdout)[
        1
    ]
    with open_chat(tiny_path, *flags) as chat:
        chat.ask("first")
        for _ in range(5):
            chat.say("/why 64")
            for _ in range(4):
                interrupt(chat)
                chat.watch(0.01)
            chat.wait_for(lambda seen: seen.is_idle and seen.input == "")
        then = chat.ask("then")
        assert cold["reply"] in then.rows
        assert then.reused[0] >= cold["reused_prefix_tokens"]
        assert "Traceback" not in leave(chat)


@pytest.mark.weights
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@interrupted_by
def test_twenty_interrupts_while_it_loads_end_the_program(smollm2_path: Path, interrupt: Interrupt) -> None:
    with Terminal("chat", "-m", smollm2_path) as chat:  # T7, H3
        maps = Path(f"/proc/{chat.pid}/maps")
        chat.wait_until(lambda: smollm2_path.name in maps.read_text())
        interrupt_twenty_times(chat, interrupt)
        assert chat.wait_for_end() == 130
        assert not re.sub(r"\^C|\s", "", chat.picture.text)


def test_interrupts_while_nothing_can_be_cancelled_any_more_are_harmless(tiny_path: Path) -> None:
    with open_chat(tiny_path, *LETTERS, "--max-tokens", "300") as chat:
        for turn in range(5):
            chat.say(f"turn {turn}")
            for _ in range(4):
                chat.interrupt()
                chat.watch(0.005)
            chat.wait_for(lambda seen: seen.is_idle)
        chat.type(CTRL_C)  # a message given back
        chat.wait_for(lambda seen: seen.input == "")
        assert "Traceback" not in leave(chat)


@pytest.mark.weights
def test_after_a_cancel_nothing_is_computed_any_more(smollm2_path: Path) -> None:  # T5
    with open_chat(smollm2_path, "--max-tokens", "none") as chat:
        chat.begin("Write a long story about a cat.")
        chat.interrupt()
        # What ends the turn is read once, and then nothing.
        stopped = chat.wait_for(
            lambda seen: STOPPED in seen.text and seen.is_idle and " · ahead " in seen.bar
        )
        process = psutil.Process(chat.pid)
        before = process.cpu_times()
        later = chat.watch(1.0)
        spent = process.cpu_times().user - before.user
        assert spent < 0.3
        assert later.bar.split(" · mem")[0] == stopped.bar.split(" · mem")[0]
        leave(chat)


STRICT = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_after_any_cancel_a_template_that_wants_alternating_roles_still_renders(tmp_path: Path) -> None:  # T8
    path = write_tiny_model(tmp_path / "strict.gguf", context_length=40_000, tokenizer__chat_template=STRICT)
    with open_chat(path, *LETTERS, *SLOW, "--max-tokens", "100") as chat:
        chat.begin("first")
        chat.interrupt()  # in decode
        chat.wait_for(lambda seen: STOPPED in seen.text and seen.is_idle)
        chat.type(paste("long " * 6000) + ENTER)
        chat.wait_for(lambda seen: not seen.is_idle)
        chat.interrupt()  # in prefill
        chat.wait_for(lambda seen: "stopped before the reply began" in seen.text and seen.is_idle)
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        chat.begin("third")
        chat.interrupt()
        chat.wait_for(lambda seen: seen.text.count(STOPPED) == 2 and seen.is_idle)
        assert "error:" not in leave(chat)


# While a long prompt is being read


@dataclass(frozen=True)
class Interrupted:
    """What was seen while a prompt of 4,000 tokens was interrupted twice, and then another message was sent."""

    reading: Picture
    first_stop: Picture
    progress: Picture
    second_stop: Picture
    next_turn: Picture
    history: Picture
    message: str


@pytest.fixture(scope="module")
def interrupted_prefill(
    smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Interrupted]:
    message = " ".join(f"word{number}" for number in range(1030)) + " end."
    home = tmp_path_factory.mktemp("home")
    with Terminal(
        "chat",
        "-m",
        smollm2_path,
        *GREEDY,
        "--max-tokens",
        "8",
        "--no-eager",
        env=environment(home),
        rows=60,
    ) as chat:
        chat.wait_for(lambda seen: seen.is_idle)
        chat.type(paste(message) + ENTER)
        reading = chat.wait_for(lambda seen: not seen.is_idle and seen.input == "" and seen.bar)
        chat.watch(0.1)
        chat.type(CTRL_C)
        first_stop = chat.wait_for(lambda seen: seen.is_idle and seen.input != "")
        chat.type(ENTER)
        progress = chat.wait_for(lambda seen: prefilled(seen) >= first_stop.reused[1] // 40 + 2 * CHUNK)
        chat.interrupt()
        second_stop = chat.wait_for(lambda seen: seen.is_idle and seen.input != "")
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
        next_turn = chat.ask("Say hello.")
        chat.say("/history")
        history = chat.wait_for(lambda seen: "assistant: " in seen.text and seen.is_idle)
        leave(chat)
        yield Interrupted(reading, first_stop, progress, second_stop, next_turn, history, message)


def prefilled(seen: Picture) -> int:
    """Prompt tokens in the cache, by the bar; while a prompt is read only."""
    found = re.search(r"prefill (\d+)/\d+", seen.bar)
    return int(found[1]) if found else 0


def context_used(seen: Picture) -> int:
    found = re.search(r"ctx (\d+)/", seen.bar)
    assert found
    return int(found[1])


@pytest.mark.weights
class TestPrefill:
    """T3, T78, H2, H4, and engine case 3."""

    def test_the_prompt_is_back_within_one_chunk(self, interrupted_prefill: Interrupted) -> None:
        first, progress, second = (
            interrupted_prefill.first_stop,
            interrupted_prefill.progress,
            interrupted_prefill.second_stop,
        )
        assert first.reused[1] > 4000
        assert 0 < context_used(first) <= 2 * CHUNK  # 100 ms are not two chunks on any machine this runs on
        assert (
            context_used(second) <= prefilled(progress) + 2 * CHUNK
        )  # one was under way, one drawn meanwhile

    def test_what_was_read_serves_the_next_try(self, interrupted_prefill: Interrupted) -> None:
        assert interrupted_prefill.second_stop.reused[0] == context_used(interrupted_prefill.first_stop)

    def test_the_message_returns_to_the_input(self, interrupted_prefill: Interrupted) -> None:
        first, second = interrupted_prefill.first_stop, interrupted_prefill.second_stop
        for stop in (first, second):
            assert stop.input == f"[paste: 1 line, {len(interrupted_prefill.message):,} characters]"
            assert "stopped before the reply began" in stop.transcript
        assert first.reused[1] == second.reused[1]  # what was sent the second time is what came back

    def test_nothing_of_it_is_kept(self, interrupted_prefill: Interrupted) -> None:
        said = interrupted_prefill.history.text.rsplit("> /history", 1)[1]
        assert said.count("user: ") == 1 and "user: Say hello." in said

    def test_the_bar_shows_how_far_it_is_and_how_long_it_takes(
        self, interrupted_prefill: Interrupted
    ) -> None:
        shown = re.search(
            r"prefill (\d+)/(\d+) (\d+) tok/s, ([\d.]+) s left", interrupted_prefill.progress.bar
        )
        assert shown
        done, total, rate, left = (float(number) for number in shown.groups())
        assert (total - done) / (rate + 1) <= left + 0.1 and left - 0.1 <= (total - done) / (rate - 1)
        assert "Ctrl-C stops" in interrupted_prefill.progress.bar

    def test_the_next_turn_answers_only_the_new_question(self, interrupted_prefill: Interrupted) -> None:
        reused, prompt = interrupted_prefill.next_turn.reused
        assert 0 < reused < prompt < 40
        assert interrupted_prefill.next_turn.n_out > 1


# Between pipes


def test_a_piped_turn_ends_and_later_lines_still_run(tiny_path: Path) -> None:  # T6, T5, exit code
    flags = ("--json", *GREEDY, *LETTERS, "--max-tokens", "30", "--max-tokens-per-sec", "30")
    with Pipes("chat", "-m", tiny_path, *flags) as chat:
        chat.say("one")
        first = objects(chat.read_line())[0]
        chat.say("two", "three")
        assert not chat.has_more(0.5)  # the second turn is under way; each takes a second
        chat.interrupt()
        code, out, err = chat.end()
    second, third = objects(out)
    assert (code, err) == (130, b"")
    assert [turn["reason"] for turn in (first, second, third)] == ["max_tokens", "cancelled", "max_tokens"]
    assert 0 < len(second["reply"]) == second["new_tokens"] < 30
    assert second["reused_prefix_tokens"] == first["kv_position"]
    assert (
        third["reused_prefix_tokens"]
        == second["kv_position"]
        == second["prompt_tokens"] + second["new_tokens"] - 1
    )


def test_the_part_of_a_stopped_reply_is_written(tiny_path: Path) -> None:
    with Pipes(
        "complete", "-q", "-m", tiny_path, *GREEDY, *LETTERS, *SLOW, "--max-tokens", "200", "hi"
    ) as pipes:
        pipes.close_stdin()
        begun = pipes.read(5)
        pipes.interrupt()
        code, rest, err = pipes.end()
    assert (code, err) == (130, b"")
    reply = (begun + rest).decode()
    assert reply.endswith("\n") and 5 <= len(reply.strip()) < 200
    assert set(reply.strip()) <= set("abcdefgh")


def test_a_second_interrupt_within_a_second_ends_the_program(tiny_path: Path) -> None:
    with Pipes("chat", "-m", tiny_path, *GREEDY, *LETTERS, *SLOW, "--max-tokens", "200") as pipes:
        pipes.say("one", "two", "three")
        pipes.read(3)
        pipes.interrupt()
        pipes.read_line()  # the first turn has ended: the second is next
        pipes.interrupt()
        code, rest, err = pipes.end()
    assert (code, err) == (130, b"")
    assert rest.count(b"\n") <= 1


def test_an_interrupt_while_it_waits_for_input_ends_the_program(tiny_path: Path) -> None:
    with Pipes("chat", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "3") as pipes:
        pipes.say("one")
        pipes.read_line()
        pipes.has_more(0.2)  # it has come round to reading
        pipes.interrupt()
        assert pipes.end() == (130, b"", b"[reached the limit of 3 tokens: max_tokens]\n")


@pytest.mark.weights
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("command", ["chat", "complete"])
@pytest.mark.parametrize("loading", ["numpy", "tokenizers", "SmolLM2"])
def test_an_interrupt_while_it_loads_ends_the_program(
    smollm2_path: Path, command: str, loading: str
) -> None:  # H3
    with Pipes(command, "-m", smollm2_path, "--max-tokens", "3") as pipes:
        pipes.say("hi")
        pipes.close_stdin()
        maps = Path(f"/proc/{pipes.process.pid}/maps")
        pipes.wait_until(lambda: loading in maps.read_text())
        pipes.interrupt()
        assert pipes.end() == (130, b"", b"")


@pytest.mark.parametrize(
    ("before", "code"), [("", 130), ("trap '' INT;", 3)], ids=["heard", "ignored by whoever started it"]
)
def test_an_interrupt_while_the_program_itself_is_imported_ends_it_quietly(
    tmp_path: Path, before: str, code: int
) -> None:  # H3
    (tmp_path / "typer.py").write_text(
        "import os, signal, sys\nos.kill(os.getpid(), signal.SIGINT)\nsys.exit(3)\n"
    )
    done = subprocess.run(
        ["/bin/sh", "-c", f'{before} exec "$@"', "sh", TS, "--version"],
        env=environment(PYTHONPATH=str(tmp_path)),
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", b"")
