"""Commands that bring text in and take it out, with real files and a real store."""

from pathlib import Path

import pytest
from command_context import Chats, FakeScreen

from turbospark_chat.errors import StoreError, TurboSparkError, UsageError
from turbospark_chat.terminal import clipboard


def test_attach_hands_on_a_file_under_its_name(chat: Chats, tmp_path: Path) -> None:
    (tmp_path / "my notes.txt").write_text("one\r\ntwo")
    context = chat()
    context.run(f"/attach {tmp_path / 'my notes.txt'}")
    assert context.attached == [("my notes.txt", "one\ntwo")]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "needs a file"),
        ("none.txt", "cannot read it"),
        ("folder", "Is a directory"),
        ("a.bin", "not text"),
    ],
)
def test_attach_refuses_what_is_no_text_file(chat: Chats, tmp_path: Path, name: str, problem: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.bin").write_bytes(b"a\0b")
    context = chat()
    with pytest.raises(UsageError, match=problem):
        context.run(f"/attach {tmp_path / name}" if name else "/attach")
    assert context.attached == []


def test_paste_hands_on_the_clipboard(chat: Chats, monkeypatch: pytest.MonkeyPatch) -> None:
    context = chat()
    monkeypatch.setattr(clipboard, "paste", lambda environment: "from there")
    context.run("/paste")
    assert context.attached == [("clipboard", "from there")]
    monkeypatch.setattr(clipboard, "paste", lambda environment: "")
    with pytest.raises(UsageError, match="the clipboard holds no text"):
        context.run("/paste")
    assert len(context.attached) == 1


def test_copy_hands_the_answer_without_its_thinking_to_the_screen(chat: Chats) -> None:
    screen = FakeScreen()
    context = chat("hi", replies=["<think>hm</think>the answer"], screen=screen)
    assert context.run("/copy") == "copied 10 characters by the terminal"
    assert screen.copied == ["the answer"]


def test_without_a_reply_there_is_nothing_to_copy(chat: Chats) -> None:
    screen = FakeScreen()
    with pytest.raises(UsageError, match="there is no reply yet"):
        chat(screen=screen).run("/copy")
    assert screen.copied == []


@pytest.mark.parametrize("ending", ["md", "json", "html", "MD"])
def test_export_writes_the_form_that_the_name_says(chat: Chats, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"chat.{ending}"
    context = chat("Hello?", replies=["Hi!"], system="be kind")
    assert context.run(f"/export {path}") == f"wrote {path}"
    text = path.read_text()
    assert text.startswith({"json": "{", "html": "<!doctype html"}.get(ending, "<!-- turbospark_chat"))
    assert "Hello?" in text and "Hi!" in text and "be kind" in text


@pytest.mark.parametrize("ending", ["svg", "SVG"])
def test_export_draws_what_the_screen_shows(chat: Chats, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"chat.{ending}"
    chat("hi", screen=FakeScreen()).run(f"/export {path}")
    assert path.read_text() == "<svg/>"


@pytest.mark.parametrize("ending", ["md", "json", "html", "svg"])
def test_export_leaves_a_file_that_is_there(chat: Chats, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"chat.{ending}"
    path.write_text("mine")
    with pytest.raises(UsageError, match="there is a file already"):
        chat("hi", screen=FakeScreen()).run(f"/export {path}")
    assert path.read_text() == "mine"


@pytest.mark.parametrize("name", ["", "chat.txt", "chat", "none/chat.md"])
def test_export_refuses_what_it_cannot_write(chat: Chats, tmp_path: Path, name: str) -> None:
    context = chat("hi")
    there = set(tmp_path.iterdir())
    with pytest.raises(UsageError):
        context.run(f"/export {tmp_path / name}" if name else "/export")
    assert (set(tmp_path.iterdir()), context.shown) == (there, [])


@pytest.mark.parametrize("ending", ["md", "json"])
def test_an_exported_conversation_can_be_loaded_and_gone_on_with(
    chat: Chats, tmp_path: Path, ending: str
) -> None:
    path = tmp_path / f"chat.{ending}"
    chat("a", "b", system="be kind").run(f"/export {path}")
    context = chat("something else", replies=["yes", "c's reply"])
    assert context.run(f"/load {path}").startswith("loading a: ")
    assert context.turns == [("a", "reply to a"), ("b", "reply to b")]
    assert context.session.conversation.system == "be kind"
    assert context.noted == ["changed", "turns"]
    context.say("c")
    assert [(one.title, one.n_turns) for one in context.archive.list()] == [
        ("a", 3), ("something else", 1), ("a", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("reference", ["1", "cats", "last"])
def test_a_stored_conversation_goes_on_where_it_was(chat: Chats, reference: str) -> None:
    first = chat("Why do cats purr?", system="be kind")
    first.run("/branch side")
    first.run("/save cats")
    context = chat(replies=["more"])
    context.run("/system be brief")
    assert context.run(f"/load {reference}").startswith("loading cats: ")
    conversation = context.session.conversation
    assert (conversation.system, conversation.branch) == ("be kind", "side")
    context.say("And lions?")
    assert [(one.id, one.n_turns) for one in context.archive.list()] == [(1, 2)]


def test_load_goes_back_to_a_turn_on_a_branch_of_its_own(chat: Chats) -> None:
    chat("a", "b", "c")
    context = chat()
    context.run("/load 1@2")
    assert [message for message, _ in context.turns] == ["a", "b"]
    context.say("d")
    stored = context.archive.read("1").conversation
    assert {name: len(turns) for name, turns in stored.branches.items()} == {"main": 3, "from-2": 3}


@pytest.mark.parametrize(
    ("reference", "error"),
    [("", UsageError), ("nope", StoreError), ("7", StoreError), ("1@9", StoreError), ("nope.md", UsageError)],
)
def test_what_is_not_stored_cannot_be_loaded(
    chat: Chats, reference: str, error: type[TurboSparkError]
) -> None:
    context = chat("a")
    before = context.state
    with pytest.raises(error):
        context.run(f"/load {reference}")
    assert (context.state, context.noted) == (before, [])


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/save", "stored as 1; `ts chat --resume 1` goes on with it"),
        ("/save my cats", "stored as 1; `ts chat --resume my cats` goes on with it"),
    ],
)
@pytest.mark.parametrize("keeps", [True, False])
def test_save_says_how_to_resume(chat: Chats, line: str, shown: str, keeps: bool) -> None:
    context = chat("a", keeps=keeps)
    assert context.run(line) == shown
    assert len(context.archive.list()) == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_of_nothing_said_there_is_nothing_to_save(chat: Chats, keeps: bool) -> None:
    context = chat(keeps=keeps)
    with pytest.raises(UsageError, match="there is nothing to save yet: say something first"):
        context.run("/save")
    context.say("a")
    assert len(context.archive.list()) == keeps
