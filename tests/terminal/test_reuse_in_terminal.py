"""What the bar says of reuse, in a real pseudo-terminal with the real model: read ahead, missed, parked."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from terminal_driver import CTRL_C, CTRL_D, ENTER, GREEDY, Picture, Terminal, environment, paste

# As some models' templates have it: the prompt opens an empty thought that the history leaves out.
EMPTY_THOUGHT = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n\n' }}{% endif %}"
)
LONG = " ".join(f"Point {number} is that cats like fish." for number in range(40))

pytestmark = pytest.mark.weights

Opened = Callable[..., Terminal]


@pytest.fixture
def open_ts(smollm2_path: Path, tmp_path: Path) -> Iterator[Opened]:
    terminals: list[Terminal] = []

    def opened(*arguments: str | Path) -> Terminal:
        terminals.append(
            Terminal(
                "chat", "-m", smollm2_path, *GREEDY, "--max-tokens", "12", *arguments,
                env=environment(tmp_path), rows=30, columns=140,
            ).__enter__()
        )  # fmt: skip
        terminals[-1].wait_for(lambda seen: seen.is_idle and "/help" in seen.transcript)
        return terminals[-1]

    yield opened
    for terminal in terminals:
        terminal.type(CTRL_D)
        assert terminal.wait_for_end() == 0
        terminal.__exit__(None, None, None)


def n_ahead(seen: Picture) -> int:
    found = re.search(r"· ahead (\d+)", seen.bar)
    return int(found[1]) if found else 0


def is_answered(seen: Picture) -> bool:
    return seen.is_idle and seen.n_out > 0


def test_a_pasted_draft_is_read_while_its_writer_looks_at_it(open_ts):
    terminal = open_ts()
    start = terminal.wait_for(lambda seen: n_ahead(seen) > 0)  # the system prompt
    terminal.type(paste(LONG))
    read = terminal.wait_for(lambda seen: n_ahead(seen) > n_ahead(start) + 300)
    terminal.type(ENTER)
    answered = terminal.wait_for(is_answered)
    reused, n_prompt = answered.reused
    assert (reused, f"({reused} ahead)" in answered.bar) == (n_ahead(read), True)
    assert n_prompt - reused < 16
    after = terminal.wait_for(lambda seen: n_ahead(seen) > 0)
    assert n_ahead(after) < 16  # the end of the turn, not what was sent already


def test_a_message_that_was_stopped_is_not_read_again_before_it_changes(open_ts):  # T5
    terminal = open_ts()
    terminal.type(paste(LONG * 4) + ENTER)
    terminal.wait_for(lambda seen: not seen.is_idle and "prefill" in seen.bar)
    terminal.type(CTRL_C)
    stopped = terminal.wait_for(lambda seen: seen.is_idle and seen.input != "")
    later = terminal.watch(1.5)
    assert n_ahead(later) < 40  # what comes before it
    terminal.type("!")
    terminal.wait_for(lambda seen: n_ahead(seen) > 300)
    assert stopped.n_out == 0
    terminal.type(CTRL_C)
    terminal.wait_for(lambda seen: seen.input == "")


def test_no_eager_reads_nothing_ahead(open_ts):
    terminal = open_ts("--no-eager")
    terminal.type(paste(LONG))
    terminal.wait_for(lambda seen: "draft" in seen.bar)
    terminal.type(ENTER)
    assert terminal.wait_for(is_answered).reused[0] == 0


def test_a_template_that_breaks_the_prefix_is_named_in_the_bar(open_ts, tmp_path):  # T49
    template = tmp_path / "template.jinja"
    template.write_text(EMPTY_THOUGHT)
    terminal = open_ts("--no-eager", "--template", template)
    first = terminal.ask("Name a fish.")
    second = terminal.ask("Name another.")
    found = re.search(r"reused (\d+)/\d+ · template at (\d+)", second.bar)
    assert found
    assert found[1] == found[2]
    assert 0 < int(found[1]) < first.reused[1]
    terminal.say("/stats")
    terminal.wait_for(
        lambda seen: "computed again because" in seen.text and "template: position" in seen.text
    )


def test_with_such_a_template_the_rest_is_read_ahead(open_ts, tmp_path):  # T49
    template = tmp_path / "template.jinja"
    template.write_text(EMPTY_THOUGHT)
    terminal = open_ts("--template", template)
    terminal.ask("Name a fish.")
    terminal.wait_for(lambda seen: n_ahead(seen) > 0)
    second = terminal.ask("Name another.")
    assert re.search(r"reused \d+/\d+ \(\d+ ahead\) · template at \d+", second.bar)
    assert second.reused[1] - second.reused[0] < 20


def test_branches_are_switched_by_parking(open_ts):
    terminal = open_ts("--no-eager")
    terminal.ask("Name a fish.")
    terminal.say("/branch other")
    on_other = terminal.ask("Name a bird.")
    terminal.say("/switch main")
    terminal.wait_for(lambda seen: "branch other" not in seen.bar)
    terminal.ask("Name a tree.")
    terminal.say("/switch other")
    terminal.wait_for(lambda seen: "branch other" in seen.bar)
    again = terminal.ask("Name a stone.")
    assert again.reused[0] >= on_other.reused[1] + on_other.n_out - 1
