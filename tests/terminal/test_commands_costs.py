"""A command that gives something up says first what that costs, and the next turn then computes just as much."""

import re
from pathlib import Path

import pytest
from command_context import Chats, FakeContext, FakeScreen, State
from fakes import ChatBytes
from tiny_model import CHATML, CONTROLS

from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.options import ChatOptions, find_option
from turbospark_chat.errors import StoreError, TurboSparkError
from turbospark_chat.terminal.commands.table import parse_command

SYSTEM = "be kind"


def own_tokens(message: str) -> int:
    """How many tokens a new message takes, and the opening of its reply."""
    text = f"<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n"
    return len(ChatBytes(CONTROLS).encode(text, parse_special=True))


def cost_in(line: str) -> int:
    found = re.search(
        r": (\d+) of \d+ tokens are computed again (with the next message|with it|at once)$", line
    )
    assert found or line.endswith(": nothing is computed again"), line
    return int(found[1]) if found else 0


def plain(chat: Chats, **how) -> FakeContext:
    return chat("one", "two", "three", system=SYSTEM, **how)


def on_two_branches(chat: Chats) -> FakeContext:
    """On `main`, which went on after the branch did."""
    context = chat("one", "two", system=SYSTEM)
    context.run("/branch side")
    context.say("to the side")
    context.run("/switch main")
    context.say("straight on")
    return context


def with_turns_left_out(chat: Chats) -> FakeContext:
    """Three; a prompt that is fitted anew would leave out four."""
    options = find_option("max_tokens").change(ChatOptions(), "24")
    messages = [f"message {n}" for n in range(12)]
    context = chat(*messages, system=SYSTEM, context_length=550, options=options)
    assert context.session._replier.first_turn == 3
    return context


def with_a_full_context(chat: Chats) -> FakeContext:
    """So full that a prompt of all but the last turn, fitted anew, would leave out other turns than it does now."""
    context = chat(*(f"message {n}" for n in range(9)), system=SYSTEM, context_length=500)
    assert context.session._replier.first_turn == 2
    return context


def left_out_on_two_branches(chat: Chats) -> FakeContext:
    context = with_turns_left_out(chat)
    context.run("/branch side")
    return context


def under_another_system(chat: Chats) -> FakeContext:
    context = chat("one", system=SYSTEM)
    context.run("/system be brief")
    context.say("two")
    return context


def changed_but_not_said(chat: Chats) -> FakeContext:
    """The cache still holds the prompt before the change."""
    context = plain(chat)
    context.run("/system be brief")
    return context


def empty(chat: Chats) -> FakeContext:
    return chat(system=SYSTEM)


def of_another_chat(chat: Chats) -> FakeContext:
    """The first stored conversation is another one."""
    chat("hello", "goodbye", system="be another")
    return plain(chat)


CHANGES = [
    (plain, "/clear"), (plain, "/new"), (plain, "/system be brief"), (plain, "/system none"),
    (plain, "/undo"), (plain, "/undo 2"), (plain, "/undo 3"), (plain, "/rewind 2"), (plain, "/rewind 0"),
    (plain, "/forget"), (plain, "/forget 2"), (plain, "/forget 9"),
    (plain, "/template {folder}/noted.jinja"), (plain, "/model other"), (plain, "/load 1"), (plain, "/load 1@2"),
    (of_another_chat, "/load 1"), (of_another_chat, "/load {folder}/chat.md"),
    (on_two_branches, "/switch side"), (on_two_branches, "/undo"), (on_two_branches, "/clear"),
    (with_turns_left_out, "/undo"), (with_turns_left_out, "/undo 7"), (with_turns_left_out, "/forget"),
    (with_turns_left_out, "/forget 7"), (with_turns_left_out, "/rewind 1"), (with_turns_left_out, "/clear"),
    (with_turns_left_out, "/system be brief"), (with_turns_left_out, "/template {folder}/noted.jinja"),
    (left_out_on_two_branches, "/switch main"),
    (under_another_system, "/clear"), (under_another_system, "/new"), (under_another_system, "/undo"),
    (changed_but_not_said, "/undo"), (changed_but_not_said, "/clear"), (changed_but_not_said, "/new"),
    (changed_but_not_said, "/system be kind"),
    (empty, "/clear"), (empty, "/new"), (empty, "/model other"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("begin", "line"), [pytest.param(*case, id=f"{case[0].__name__} {case[1]}") for case in CHANGES]
)
def test_the_next_turn_computes_what_was_said_before_the_change(chat, tmp_path: Path, begin, line) -> None:
    (tmp_path / "noted.jinja").write_text("A note first.\n" + CHATML)
    context = begin(chat)
    context.run(f"/export {tmp_path / 'chat.md'}")
    before, n_shown = context.state, len(context.shown)

    context.run(line.format(folder=tmp_path))
    cost = cost_in(context.shown[n_shown])
    assert context.states[n_shown] == before  # said first
    raw = context.say("next").raw

    own = own_tokens("next")
    if len(context.turns) == 1:  # what opens the first message counts with the system prompt
        own -= len("?user\n")
    if cost:
        assert raw.prefilled_tokens == cost + own
    elif begin is not empty:  # there the system prompt is computed too, but not again
        assert 0 < raw.prefilled_tokens <= own  # it may begin as one that was taken back


@pytest.mark.parametrize(
    ("begin", "line"),
    [(plain, "/retry"), (plain, "/retry --temperature 1.2"), (on_two_branches, "/retry"),
     (with_turns_left_out, "/retry"), (with_a_full_context, "/retry"), (changed_but_not_said, "/retry")],
)  # fmt: skip
def test_a_retry_computes_what_it_said_it_would(chat, begin, line) -> None:
    context = begin(chat)
    n_shown = len(context.shown)
    context.run(line)
    assert context.outcomes[-1].raw.prefilled_tokens == max(cost_in(context.shown[n_shown]), 1)


def test_a_retry_on_a_branch_that_is_not_in_the_cache_counts_its_message_too(chat) -> None:
    context = on_two_branches(chat)
    context.run("/switch side")
    context.run("/retry")
    cost = cost_in(context.shown[-1])
    assert cost == context.outcomes[-1].raw.prefilled_tokens > len("to the side")


@pytest.mark.parametrize(
    "begin",
    [plain, on_two_branches, with_turns_left_out, with_a_full_context, changed_but_not_said],
    ids=lambda begin: begin.__name__,
)
@pytest.mark.parametrize("line", ["/edit another message", "/edit"])
def test_an_edited_message_computes_what_was_said_and_itself(chat, begin, line) -> None:
    context = begin(chat)
    context.screen = FakeScreen("another message")
    before, n_shown = context.state, len(context.shown)
    context.run(line)
    cost, raw = cost_in(context.shown[n_shown]), context.outcomes[-1].raw
    assert context.states[n_shown] == before
    own = own_tokens("another message")
    assert raw.prefilled_tokens == cost + own if cost else 0 < raw.prefilled_tokens <= own


REFUSED = [
    "/clear the table, please", "/new one", "/undo 4", "/undo 0", "/undo x", "/undo -1", "/rewind", "/rewind x",
    "/rewind 4", "/rewind -1", "/forget 0", "/forget x", "/switch", "/switch nope", "/branch", "/branch main",
    "/retry temperature", "/retry --temperature", "/retry --temperature warm", "/retry --heat 1",
    "/retry --seed 1 --top-p 3", "/retry --stop 'a", "/edit", "/template nope.jinja",
    "/template {folder}/broken.jinja", "/template {folder}/refuses.jinja", "/load", "/load nope", "/load 99",
    "/load 1@9", "/load nope.md", "/load {folder}/broken.json", "/model tiny",
    "/set temperature warm", "/set heat 1", "/save last", "/save a@b", "/save taken",
]  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_a_refused_command_changes_nothing_and_shows_no_cost(chat, tmp_path: Path, line: str) -> None:
    (tmp_path / "broken.jinja").write_text("{% if %}")  # E12
    (tmp_path / "refuses.jinja").write_text(
        "{{ raise_exception('not with me') if messages|length > 3 }}" + CHATML
    )
    (tmp_path / "broken.json").write_text("{")
    chat("hello").run("/save taken")
    context = plain(chat)
    before = context.state
    held = context.session.model.producer.record
    with pytest.raises(TurboSparkError):
        context.run(line.format(folder=tmp_path))
    assert context.state == before
    assert context.session.model.producer.record == held
    assert (context.shown, context.noted, context.started) == ([], [], [])


@pytest.mark.parametrize(
    "line", ["/undo", "/undo 2", "/forget", "/rewind 1", "/retry", "/edit more", "/continue", "/why"]
)
def test_of_no_turns_there_is_nothing_to_do(chat, line: str) -> None:
    context = chat(system=SYSTEM)
    before = context.state
    with pytest.raises(TurboSparkError):
        context.run(line)
    assert (context.state, context.shown, context.outcomes) == (before, [], [])


@pytest.mark.parametrize("line", ["/rewind 3", "/switch main", "/system", "/template", "/model", "/branches"])
def test_what_changes_nothing_costs_nothing(chat, line: str) -> None:
    context = plain(chat)
    before = context.state
    assert "computed again" not in context.run(line)
    assert (context.state, context.noted) == (before, [])


def test_a_change_that_cannot_be_stored_is_made_and_shown(chat, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreError("the disk is full")

    context = plain(chat)
    monkeypatch.setattr(Journal, "keep", fail)
    with pytest.raises(StoreError, match="the disk is full"):
        context.run("/undo")
    assert len(context.turns) == 2
    assert context.noted == ["changed"]


def test_what_a_cost_is_said_of_cannot_drive_the_terminal(chat, tmp_path: Path) -> None:
    context = chat("\x1b[2Jhi")
    context.session.branch_off("\x1b[2J")
    context.say("on")
    for line in ("/switch main", "/switch \x1b[2J", "/export {}", "/load {}"):
        context.run(line.format(tmp_path / "a.json"))
    assert all("\x1b" not in line for line in context.shown)


def test_every_change_is_of_a_command_that_waits_for_the_reply() -> None:  # T66
    for line in {line for _, line in CHANGES} | {"/retry", "/edit x", "/branch x"}:
        parsed = parse_command(line)
        assert parsed is not None and parsed[0].needs_idle


def test_a_state_sees_every_change(chat) -> None:
    context = plain(chat)
    seen: list[State] = [context.state]
    for line in ("/set top_k 3", "/branch x", "/undo", "/system a", "/model other", "/clear"):
        context.run(line)
        assert context.state not in seen
        seen.append(context.state)
