"""What Tab offers, and how the menu shows it."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from prompt_toolkit.buffer import CompletionState
from prompt_toolkit.completion import CompleteEvent, Completion
from prompt_toolkit.document import Document

from turbospark_chat.terminal.completer import CommandCompleter
from turbospark_chat.terminal.completion_rows import MOST_MENU_ROWS, completion_rows


@dataclass(frozen=True)
class Row:
    arguments: str = ""
    help: str = ""
    completes: Any = lambda context, typed: ()


def paths(context, typed):
    return ()


COMMANDS = {
    "set": Row("KEY VALUE", "Change an option.", lambda context, typed: [f"{context} 1", "top-k 2", "other"]),
    "show": Row(),
    "attach": Row("FILE", "Attach a file.", paths),
}


def complete(text):
    completer = CommandCompleter(COMMANDS, lambda: "top-p", paths=paths)

    async def collect():
        event = CompleteEvent(completion_requested=True)
        return [choice async for choice in completer.get_completions_async(Document(text), event)]

    return asyncio.run(collect())


def completed(text):
    return [text[: len(text) + choice.start_position] + choice.text for choice in complete(text)]


@pytest.mark.parametrize(
    ("typed", "choices"),
    [
        ("/", ["/attach ", "/set ", "/show"]),
        ("/s", ["/set ", "/show"]),
        ("/sh", ["/show"]),
        ("/x", []),
        ("/set ", ["/set top-p 1", "/set top-k 2", "/set other"]),
        ("/set top", ["/set top-p 1", "/set top-k 2"]),
        ("/set  top-p", ["/set  top-p 1"]),
        ("/show ", []),
        ("/unknown ", []),
        ("set", []),
        ("", []),
        ("a message\n/s", []),
        (" /s", []),
        ("/s\n", []),
    ],
)
def test_commands_and_their_arguments_are_completed_and_messages_are_not(typed, choices):
    assert completed(typed) == choices


def test_a_command_is_shown_with_its_arguments_and_its_help():
    choice = complete("/se")[0]
    assert (choice.display_text, choice.display_meta_text) == ("/set KEY VALUE", "Change an option.")


def test_paths_are_completed_also_from_home(tmp_path, monkeypatch):
    (tmp_path / "notes one.txt").touch()
    (tmp_path / "notes").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder in ("", f"{tmp_path}/", "~/"):
        assert completed(f"/attach {folder}no") == [
            f"/attach {folder}notes",
            f"/attach {folder}notes one.txt",
        ]


# The menu


def rows(n_choices, chosen=None, *, width=40, meta=""):
    choices = [Completion(f"choice{number}", display_meta=meta) for number in range(n_choices)]
    shown = completion_rows(CompletionState(Document(), choices, chosen), width=width)
    return ["".join(text for _, text, *_ in row) for row in shown]


def test_without_choices_there_is_no_menu():
    assert completion_rows(None, width=40) == rows(0) == []


def test_the_chosen_one_is_marked_and_meanings_are_aligned():
    choices = [Completion("a", display_meta="one"), Completion("中文", display_meta="two"), Completion("c")]
    shown = completion_rows(CompletionState(Document(), choices, 1), width=40)
    assert [row[0][1] for row in shown] == ["  a     one", "> 中文  two", "  c"]
    assert [row[0][0] for row in shown] == ["class:menu", "class:menu.chosen", "class:menu"]


@pytest.mark.parametrize("chosen", [None, 0, 3, 10, 19])
def test_of_many_some_are_shown_the_chosen_one_among_them(chosen):
    shown = rows(20, chosen)
    assert len(shown) == MOST_MENU_ROWS
    assert shown[-1] == "  … 13 more"
    assert chosen is None or f"> choice{chosen}" in shown


def test_rows_stay_narrower_than_the_terminal():  # H11
    assert all(len(row) < 20 for row in rows(20, 2, width=20, meta="a long meaning that does not fit"))
