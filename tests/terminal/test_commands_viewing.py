"""Commands that change how the chat looks, with a screen and without one."""

import pytest
from command_context import Chats, FakeScreen

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.interface_options import Editing, Thinking
from turbospark_chat.terminal.keys import KEY_HELP


@pytest.mark.parametrize("way", Thinking)
def test_think_chooses_how_thinking_shows(chat: Chats, way: Thinking) -> None:
    screen = FakeScreen()
    context = chat(screen=screen)
    assert context.run("/think") == "thinking: fold"
    assert context.run(f"/think {way}") == f"thinking: {way}"
    assert screen.thinking is way


def test_raw_goes_back_and_forth(chat: Chats) -> None:
    screen = FakeScreen()
    context = chat(screen=screen)
    assert context.run("/raw") == "replies show as they are written"
    assert not screen.is_markdown
    assert context.run("/raw") == "replies show as Markdown"
    assert screen.is_markdown


def test_keys_lists_every_key_and_changes_whose_they_are(chat: Chats) -> None:
    screen = FakeScreen()
    context = chat(screen=screen)
    lines = context.run("/keys").split("\n")
    assert [tuple(line.split("  ", 1)) for line in lines] == [
        (key, " " * (max(len(other) for other, _ in KEY_HELP) - len(key)) + meaning)
        for key, meaning in KEY_HELP
    ]
    assert context.run("/keys vi") == "keys: vi"
    assert screen.editing is Editing.VI


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/think loudly", "`/think` takes show, fold, hide, not `loudly`"),
        ("/keys nano", "`/keys` takes emacs or vi, not `nano`"),
    ],
)
def test_what_is_no_choice_is_refused(chat: Chats, line: str, problem: str) -> None:
    screen = FakeScreen()
    with pytest.raises(UsageError) as caught:
        chat(screen=screen).run(line)
    assert str(caught.value) == problem
    assert (screen.thinking, screen.editing) == (Thinking.FOLD, Editing.EMACS)


@pytest.mark.parametrize(
    "line", ["/think", "/think show", "/raw", "/keys", "/keys vi", "/copy", "/export a.svg"]
)
def test_what_needs_a_screen_says_so(chat: Chats, line: str) -> None:
    name = line.split()[0]
    with pytest.raises(UsageError) as caught:
        chat("hi").run(line)
    assert str(caught.value) == f"`{name}` needs a screen: run `ts chat` at a terminal"


def test_exit_leaves(chat: Chats) -> None:
    context = chat()
    context.run("/exit")
    assert context.noted == ["leave"]
