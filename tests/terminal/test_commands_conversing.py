"""Commands that change the conversation, each on a real session."""

from typing import Any

import pytest
from command_context import Chats, FakeContext, FakeScreen
from scripted_chat import send_and_stop

from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.errors import ContextOverflowError, SettingError, UsageError


def messages(context: FakeContext) -> list[str]:
    return [message for message, _ in context.turns]


@pytest.mark.parametrize(
    ("line", "left", "shown"),
    [
        ("/undo", ["a", "b"], "taking back 1 turn: "),
        ("/undo 2", ["a"], "taking back 2 turns: "),
        ("/undo 3", [], "taking back 3 turns: "),
        ("/rewind 1", ["a"], "going back to turn 1: "),
        ("/rewind 0", [], "going back to turn 0: "),
        ("/rewind 3", ["a", "b", "c"], "nothing to take back: the conversation has 3 turns"),
        ("/forget", ["b", "c"], "forgetting the oldest 1 turn: "),
        ("/forget 2", ["c"], "forgetting the oldest 2 turns: "),
        ("/forget 99", [], "forgetting the oldest 3 turns: "),
        ("/clear", [], "clearing 3 turns: "),
        ("/new", [], "leaving 3 turns: "),
    ],
)
def test_turns_can_be_taken_away(chat: Chats, line: str, left: list[str], shown: str) -> None:  # T66
    context = chat("a", "b", "c", system="be kind")
    assert context.run(line).startswith(shown)
    assert messages(context) == left
    assert context.session.conversation.system == "be kind"
    again = ["turns"] if line.startswith("/rewind") else []  # it shows where it has gone back to
    assert context.noted == (["changed", *again] if len(left) < 3 else [])


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "two", "1 2", "²", "+1", "9" * 40])
@pytest.mark.parametrize("name", ["undo", "forget"])
def test_a_count_that_is_none_is_refused(chat: Chats, name: str, count: str) -> None:
    with pytest.raises(UsageError) as caught:
        chat("a", "b").run(f"/{name} {count}")
    assert str(caught.value) == f"`/{name} [N]` takes a whole number above 0, not `{count[:20]}`"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/undo 9", "cannot take back 9 turns: the conversation has 2"),
        ("/rewind 9", "`/rewind N` takes 0 to 2, the turns to keep, not `9`"),
        ("/rewind x", "`/rewind N` takes 0 to 2, the turns to keep, not `x`"),
        ("/rewind", "`/rewind N` takes 0 to 2, the turns to keep, not ``"),
        ("/branch", "`/branch NAME` needs a name for the new branch"),
        ("/branch main", "there is a branch `main` already; `/switch main` goes there"),
        ("/switch", "`/switch NAME` needs the name of a branch; `/branches` lists them"),
        ("/switch nope", "there is no branch `nope`; there is `main`; `/branch nope` begins it"),
    ],
)
def test_what_cannot_be_done_says_what_can(chat: Chats, line: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        chat("a", "b").run(line)
    assert str(caught.value) == problem


def test_clear_keeps_the_system_prompt_and_the_options_and_new_does_not(chat: Chats) -> None:
    for line, system, top_k in (("/clear", "be brief", 3), ("/new", "be kind", 5)):
        context = chat("a", system="be kind")
        context.session.options = context.session._first_options = _with_top_k(context, 5)
        context.run("/system be brief")
        context.run("/set top_k 3")
        context.run("/branch side")
        context.run(line)
        conversation = context.session.conversation
        assert (conversation.system, context.session.options.completion.sampling.top_k) == (system, top_k)
        assert dict(conversation.branches) == {"main": ()}


def _with_top_k(context: FakeContext, top_k: int) -> ChatOptions:
    return context.session.with_option(context.session.options, "top_k", str(top_k))


@pytest.mark.parametrize("line", ["/clear", "/new"])
def test_what_is_left_stays_stored_and_what_follows_is_another_conversation(chat: Chats, line: str) -> None:
    context = chat("a", "b")
    context.run(line)
    context.say("c")
    assert [(one.title, one.n_turns) for one in context.archive.list()] == [("c", 1), ("a", 2)]


@pytest.mark.parametrize(
    ("line", "system", "shown"),
    [
        ("/system", "be kind", "be kind"),
        ("/system be  brief", "be  brief", "changing the system prompt: "),
        ("/system none", None, "changing the system prompt: "),
        ("/system None", None, "changing the system prompt: "),
    ],
)
def test_system_shows_or_changes_the_prompt(chat: Chats, line: str, system: str | None, shown: str) -> None:
    context = chat("a", system="be kind")
    assert context.run(line).startswith(shown)
    assert context.session.conversation.system == system
    assert messages(context) == ["a"]
    context.run("/system none")
    assert context.run("/system") == "no system prompt"


def test_retry_answers_again_with_other_options_for_this_once(chat: Chats) -> None:
    context = chat("a", "b")
    before = context.session.options
    context.run("/retry --temperature 1.2 --seed=3 --max-tokens 2 --stop 'x y'")
    assert context.turns == [("a", "reply to a"), ("b", "mo")]
    stored = context.archive.read("last").stored
    assert stored is not None
    used = stored.details[-1].settings
    assert [used[name] for name in ("temperature", "seed", "max_tokens", "stop")] == [
        "1.2",
        "3",
        "2",
        '"x y"',
    ]
    assert context.session.options == before
    context.run("/retry")
    assert context.turns == [("a", "reply to a"), ("b", "and more")]


def test_retry_takes_a_bias_by_text_as_set_does(chat: Chats) -> None:  # D13
    context = chat("a", replies=["one", "two"])
    context.run("""/retry --logit-bias "'w':1,'o':1" """)
    stored = context.archive.read("last").stored
    assert stored is not None and stored.details[-1].settings["logit_bias"] == "119:1,111:1"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("--heat 1", "unknown setting `--heat`"),
        ("--temperature", "`--temperature` needs a value: 0 to 100"),
        ("--temperature warm", "temperature is 'warm'"),
        ("--temperature 1 --top-p 3", "top_p"),
        ("temperature 1", "`/retry` takes `--OPTION VALUE`, not `temperature`; `/set` lists the options"),
        ("--stop 'a", "`/retry --stop 'a`: No closing quotation; close the quotes"),
    ],
)
def test_retry_refuses_options_before_anything_is_generated(
    chat: Chats, arguments: str, problem: str
) -> None:
    context = chat("a")
    n_fed = len(context.session.model.producer.fed)
    with pytest.raises((UsageError, SettingError)) as caught:
        context.run(f"/retry {arguments}")
    assert str(caught.value).startswith(problem)
    assert len(context.session.model.producer.fed) == n_fed


def test_continue_goes_on_with_a_stopped_reply(chat: Chats) -> None:  # T69
    context = chat(replies=["Once upon", " a time"])
    send_and_stop(context.session, "tell", n_looks=5)
    begun = context.turns[0][1]
    assert "Once".startswith(begun) and begun
    context.run("/continue")
    assert context.turns == [("tell", f"{begun} a time")]
    with pytest.raises(UsageError, match="nothing to continue"):
        context.run("/continue")


def edit_here(context: FakeContext, text: str) -> None:
    context.run(f"/edit {text}")


def edit_in_editor(context: FakeContext, text: str) -> None:
    context.screen = FakeScreen(text)
    context.run("/edit")
    assert context.screen.opened == ["b"]


@pytest.mark.parametrize("edit", [edit_here, edit_in_editor])
def test_an_edited_message_takes_the_last_ones_place(chat: Chats, edit: Any) -> None:
    context = chat("a", "b")
    edit(context, "what else?")
    assert context.turns == [("a", "reply to a"), ("what else?", "more")]
    assert context.noted == ["message what else?"]
    assert context.started == ["what else?"]  # and goes back to the input if nothing comes of it


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_message_emptied_in_the_editor_stays_as_it_was(chat: Chats, text: str) -> None:
    context = chat("a", screen=FakeScreen(text))
    before = context.state
    with pytest.raises(UsageError, match="the message is empty, so it stays as it was"):
        context.run("/edit")
    assert (context.state, context.started, context.shown) == (before, [], [])


def test_without_a_screen_edit_needs_the_text(chat: Chats) -> None:
    with pytest.raises(
        UsageError, match="there is no screen to edit on: give the new text, as in `/edit TEXT`"
    ):
        chat("a").run("/edit")


def test_an_edited_message_that_does_not_fit_leaves_the_turn(chat: Chats) -> None:
    context = chat("a", context_length=100)
    before = context.state
    with pytest.raises(ContextOverflowError):
        context.run("/edit " + "x" * 200)
    assert context.state == before


def test_branches_go_their_own_ways(chat: Chats) -> None:
    context = chat("a", "b")
    assert context.run("/branch side") == "now on branch side; `/switch main` goes back"
    context.say("to the side,\n and " + "far " * 20)
    context.run("/switch main")
    assert messages(context) == ["a", "b"]
    context.run("/undo")
    assert [line.split() for line in context.run("/branches").split("\n")] == [
        ["branch", "turns", "last", "message"],
        ["*", "main", "1", "a"],
        ["side", "3", "to", "the", "side,", "and", *["far"] * 7, "far…"],
    ]
    assert context.run("/switch main") == "on branch main already"
    assert context.run("/switch side") == "on branch side now"
    assert any(shown.startswith("going to branch side, 3 turns: ") for shown in context.shown)
    assert messages(context)[:2] == ["a", "b"]
    assert context.noted == ["changed", "changed", "turns", "changed", "changed", "turns"]
