"""The slash commands, each on a real session behind a small context."""

import threading

import pytest
from fakes import ChatBytes
from scripted_chat import make_session, send, send_and_stop
from tiny_model import CONTROLS

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import OPTIONS
from turbospark_chat.errors import SettingError, TemplateError, UsageError
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.commands import COMMANDS, parse_command
from turbospark_chat.terminal.keys import KEY_HELP


class Context:
    """What a command may use: it shows into a list, and notes what it was asked for."""

    def __init__(self, session):
        self.session = session
        self.shown = []
        self.asked = []

    def show(self, content):
        text = Painter(color=False).render(content, width=100)
        self.shown.append("\n".join(line.rstrip() for line in text.split("\n")))

    def statistics(self):
        return "what it cost"

    def retry(self):
        self.asked.append("retry")

    def continue_reply(self):
        self.asked.append("continue")

    def conversation_changed(self):
        self.asked.append("changed")

    def leave(self):
        self.asked.append("leave")


def run(context, line):
    """Run a typed command and return what it showed last."""
    command, argument = parse_command(line)
    command.run(context, argument)
    return context.shown[-1] if context.shown else None


def chat(*messages, replies=None, **settings):
    """Return the context of a chat in which these messages have been answered."""
    session = make_session(*(replies or [f"reply to {message}" for message in messages]), **settings)
    for message in messages:
        send(session, message)
    return Context(session)


def messages(context):
    return [turn.user.content for turn in context.session.conversation.turns]


@pytest.mark.parametrize(
    ("line", "name", "argument"),
    [
        ("/help", "help", ""),
        ("/exit ", "exit", ""),
        ("/undo 2", "undo", "2"),
        ("/undo   2\n", "undo", "2"),
        ("/set stop  a b ", "set", "stop  a b"),
    ],
)
def test_a_line_that_names_a_command_is_one(line, name, argument):
    assert parse_command(line) == (COMMANDS[name], argument)


@pytest.mark.parametrize(
    "line",
    [
        "help", "exit", "quit", "q", "clear", "x",
        " /x", " /help", "hi /help", "either/", "and/or", "1/2", "https://a.b/",
        "/help\nand more", "/\nx", "\n/help", "",
    ],
)  # fmt: skip
def test_anything_else_is_a_message(line):
    assert parse_command(line) is None


@pytest.mark.parametrize("line", ["/x", "/Help", "/helpme", "/h", "/", "//", "/usr/bin/env python", "/ help"])
def test_an_unknown_command_says_how_to_send_it(line):
    with pytest.raises(
        UsageError,
        match=r"unknown command `/.*`: (`/help` lists them\.|did you mean.*\?) A space before `/` sends it",
    ):
        parse_command(line)


def test_help_lists_every_command_and_key_with_what_it_does():
    lines = run(chat(), "/help").split("\n")
    for usage, meaning in [*((command.usage, command.help) for command in COMMANDS.values()), *KEY_HELP]:
        assert meaning
        assert [line for line in lines if line.startswith(f"{usage} ") and line.endswith(f" {meaning}")]


def test_the_commands_are_those_of_the_contract():
    needs_idle = {"clear", "retry", "continue", "undo", "forget", "template"}
    assert {name for name, command in COMMANDS.items() if command.needs_idle} == needs_idle
    assert set(COMMANDS) == needs_idle | {"help", "history", "stats", "set", "exit"}


@pytest.mark.parametrize(
    ("line", "left", "shown"),
    [
        ("/undo", ["a", "b"], "took back 1 turn"),
        ("/undo 2", ["a"], "took back 2 turns"),
        ("/undo 99", [], "took back 3 turns"),
        ("/forget", ["b", "c"], "forgot 1 turn"),
        ("/forget 2", ["c"], "forgot 2 turns"),
        ("/forget 99", [], "forgot 3 turns"),
        ("/clear", [], "cleared 3 turns"),
    ],
)
def test_turns_can_be_taken_away(line, left, shown):  # T66
    context = chat("a", "b", "c", system="be kind")
    assert run(context, line) == shown
    assert messages(context) == left
    assert context.session.conversation.system == "be kind"
    assert context.asked == ["changed"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [("/undo", "nothing to take back"), ("/forget 3", "nothing to forget"), ("/clear", "cleared 0 turns")],
)
def test_of_no_turns_none_can_be_taken(line, shown):
    assert run(chat(), line) == shown


@pytest.mark.parametrize("count", ["0", "-1", "1.5", "two", "1 2", "²", "+1"])
@pytest.mark.parametrize("name", ["undo", "forget"])
def test_a_count_that_is_none_is_refused_and_nothing_taken(name, count):
    context = chat("a", "b")
    with pytest.raises(UsageError) as caught:
        run(context, f"/{name} {count}")
    assert str(caught.value) == f"`/{name} [N]` takes a whole number above 0, not `{count}`"
    assert messages(context) == ["a", "b"]


def test_history_shows_every_message_and_marks_a_stopped_reply():  # T4, H4
    session = make_session("Hello!", "Once upon a time", system="be kind")
    send(session, "hi")
    send_and_stop(session, "tell\nme", n_looks=5)
    assert run(Context(session), "/history") == (
        "system: be kind\nuser: hi\nassistant: Hello!\nuser: tell\nme\nassistant: Once [stopped]"
    )


def test_history_of_an_empty_chat_says_so():
    assert run(chat(), "/history") == "nothing said yet"


def test_history_shows_replies_that_would_drive_the_terminal_as_text():
    context = chat("hi", replies=["\x1b[2J[bold]x[/bold]"])
    assert run(context, "/history") == "user: hi\nassistant: \ufffd[2J[bold]x[/bold]"


def test_only_who_speaks_is_styled_in_the_history():
    context = chat("hi", replies=["yes"])
    context.show = lambda content: context.shown.append(Painter(color=True).render(content, width=100))
    assert run(context, "/history") == "\x1b[1muser: \x1b[0mhi\n\x1b[1massistant: \x1b[0myes"


def test_set_shows_every_option_and_its_value():
    lines = run(chat(), "/set").split("\n")
    for row in OPTIONS.values():
        assert any(line.split()[:1] == [row.name] and row.help[:20] in line for line in lines)


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("/set temperature 0.5", "temperature", "0.5"),
        ("/set --top-k 40", "top_k", "40"),
        ("/set max_tokens none", "max_tokens", "none"),
        ("/set stop [/INST]", "stop", '"[/INST]"'),
        ("/set keep_reasoning on", "keep_reasoning", "on"),
    ],
)  # T26
def test_set_changes_an_option_and_shows_it(line, name, value):
    context = chat("a")
    shown = run(context, line)
    assert shown.split()[:2] == [name, value]
    assert OPTIONS[name].show(context.session.options) == value
    assert run(context, f"/set {name}") == shown
    assert messages(context) == ["a"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/set temperature -1", "temperature"),
        ("/set temperature warm", "temperature is 'warm'"),
        ("/set top_p 2", "top_p"),
        ("/set heat 1", "unknown setting `heat`: give one of temperature, "),
        ("/set heat", "unknown setting `heat`: give one of temperature, "),
    ],
)
def test_set_refuses_what_is_no_value_and_changes_nothing(line, problem):
    context = chat()
    before = context.session.options
    with pytest.raises(SettingError, match=problem):
        run(context, line)
    assert context.session.options == before


def test_stats_shows_what_the_turns_cost():
    assert run(chat(), "/stats") == "what it cost"


@pytest.mark.parametrize(
    ("line", "asked"), [("/retry", "retry"), ("/continue", "continue"), ("/exit", "leave")]
)
def test_what_the_chat_itself_must_do_is_asked_of_it(line, asked):
    context = chat()
    run(context, line)
    assert context.asked == [asked]


def test_a_changed_option_holds_for_the_next_turn():
    context = chat(replies=["abcdef"])
    run(context, "/set max_tokens 3")
    result = context.session.send("hi", cancel=threading.Event(), on_event=lambda event: None)
    assert result.turn.reply == Message("assistant", "abc", complete=False)


def test_template_shows_the_template_and_takes_another_from_a_file(tmp_path):
    context = chat("hi", replies=["first", "second"])
    assert "<|im_start|>" in run(context, "/template")
    file = tmp_path / "plain.jinja"
    file.write_text(
        "{% for m in messages %}[{{ m.content }}]<|im_end|>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert run(context, f"/template {file}") == f"using the template in {file}"
    assert context.asked == ["changed"]
    send(context.session, "again")
    producer = context.session._model.producer
    prompt = ChatBytes(CONTROLS).decode(producer.record)
    assert prompt == "[hi][first][again]>second"


@pytest.mark.parametrize("source", ["{% if %}", None], ids=["E12: syntax error", "no such file"])
def test_a_template_that_cannot_be_used_changes_nothing(tmp_path, source):
    context = chat("hi")
    before = context.session.template
    file = tmp_path / "broken.jinja"
    if source is not None:
        file.write_text(source)
    with pytest.raises(TemplateError, match="line 1" if source else "cannot read"):
        run(context, f"/template {file}")
    assert context.session.template is before


def test_another_template_brings_its_own_turn_end():
    session = make_session("one")
    assert set(session._stop_ids) == {256, 257}
    session.set_template(
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ add_generation_prompt }}"
    )
    assert session._stop_ids == {}
