"""The table of commands: which there are, and what a typed line is."""

import pytest
from command_context import Chats

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.commands.table import ALIASES, COMMANDS, parse_command

# As issue 4 lists them, two that were there before, and one of issue 5.
ASKED_FOR = """
    help exit clear new system retry undo rewind edit continue branch branches switch history search stats context why
    set show model models attach paste copy save load export think raw keys
    forget template verify
""".split()
NEED_IDLE = """
    clear new system retry undo rewind edit continue branch switch forget why context verify template model save load
""".split()


def test_the_commands_are_those_of_the_issue() -> None:
    assert sorted(COMMANDS) == sorted(ASKED_FOR)
    assert all(name == command.name for name, command in COMMANDS.items())


def test_those_that_need_the_model_or_change_the_conversation_wait_for_the_reply() -> None:  # T66
    assert sorted(name for name, command in COMMANDS.items() if command.needs_idle) == sorted(NEED_IDLE)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_says_in_one_sentence_what_it_does(name: str) -> None:
    text = COMMANDS[name].help
    assert text[0].isupper() and text.endswith(".") and "\n" not in text


def test_help_lists_every_command_with_what_it_does(chat: Chats) -> None:
    lines = chat().run("/help").split("\n")
    assert [line.split("  ")[0] for line in lines] == [command.usage for command in COMMANDS.values()]
    assert all(line.endswith(f"  {COMMANDS[name].help}") for name, line in zip(COMMANDS, lines, strict=True))


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/exit ", "exit", ""),
        ("/undo 2", "undo", "2"),
        ("/undo   2\n", "undo", "2"),
        ("/set stop  a b ", "set", "stop  a b"),
        ("/attach /etc/hostname", "attach", "/etc/hostname"),
    ],
)
def test_a_line_that_names_a_command_is_one(line: str, name: str, argument: str) -> None:
    assert parse_command(line) == (COMMANDS[name], argument)


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_what_people_type_elsewhere_works_too(alias: str, name: str) -> None:
    assert alias not in COMMANDS
    assert parse_command(f"/{alias}") == (COMMANDS[name], "")


@pytest.mark.parametrize(
    "line",
    [
        "help", "exit", "quit", "q", "clear", "x",
        " /x", " /help", "hi /help", "either/", "and/or", "1/2", "https://a.b/",
        "/usr/bin/env python", "/etc/passwd", "//", "/help/",
        "/help\nand more", "/\nx", "\n/help", "",
    ],
)  # fmt: skip
def test_anything_else_is_a_message(line: str) -> None:  # traps
    assert parse_command(line) is None


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("/x", "`/help` lists them."), ("/", "`/help` lists them."), ("/ help", "`/help` lists them."),
        ("/Help", "did you mean `/help`?"), ("/helpme", "did you mean `/help`?"),
        ("/udno 2", "did you mean `/undo`?"), ("/exprot a.md", "did you mean `/export`?"),
    ],
)  # fmt: skip
def test_an_unknown_command_says_what_may_be_meant_and_how_to_send_it(line: str, advice: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_command(line)
    name = line[1:].split(" ")[0]
    assert (
        str(caught.value) == f"unknown command `/{name}`: {advice} A space before `/` sends it as a message"
    )


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if not command.arguments])
def test_a_command_without_arguments_is_not_done_where_one_is_given(name: str) -> None:
    with pytest.raises(UsageError, match=f"^`/{name}` takes no argument: a space before `/` sends it"):
        parse_command(f"/{name} the table, please")


@pytest.mark.parametrize(
    ("line", "offers"),
    [
        ("/set te", {"temperature"}),
        ("/set on_overflow ", {"on_overflow drop", "on_overflow error", "on_overflow ask"}),
        ("/set reuse o", {"reuse on", "reuse off"}),
        ("/set heat ", set()),
        ("/retry --tem", {"--temperature"}),
        ("/retry --seed 3 --reuse of", {"--seed 3 --reuse off"}),
        ("/retry x", set()),
        ("/switch s", {"side"}),
        ("/switch ", {"main", "side"}),
        ("/model o", {"other"}),
        ("/think f", {"fold"}),
        ("/keys ", {"emacs", "vi"}),
        ("/load ", {"kept", "1"}),
        ("/load k", {"kept"}),
        ("/clear ", set()),
    ],
)
def test_what_completes_an_argument(chat: Chats, line: str, offers: set[str]) -> None:
    context = chat("one")
    context.run("/save kept")
    context.run("/branch side")
    name, _, typed = line[1:].partition(" ")
    assert set(COMMANDS[name].completes(context, typed)) == offers
