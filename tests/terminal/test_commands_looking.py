"""Commands that look and change nothing: history, search, costs, and what the model might have said."""

import threading

import pytest
from command_context import Chats, FakeContext
from rich.text import Text
from scripted_chat import send_and_stop

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.commands.looking import MOST_TOKENS_EXPLAINED
from turbospark_chat.terminal.commands.table import COMMANDS


def test_history_numbers_the_turns_and_marks_a_stopped_reply(chat: Chats) -> None:  # T4, H4
    context = chat("hi", replies=["Hello!", "Once upon a time"], system="be kind")
    send_and_stop(context.session, "tell\nme", n_looks=5)
    assert context.run("/history") == (
        "system: be kind\n1 user: hi\n1 assistant: Hello!\n2 user: tell\nme\n2 assistant: Once [unfinished]"
    )


def test_the_numbers_of_the_history_are_those_that_rewind_takes(chat: Chats) -> None:
    context = chat("a", "b", "c")
    context.run("/rewind 2")
    assert context.run("/history").split("\n")[-1] == "2 assistant: reply to b"


def test_history_of_an_empty_chat_says_so(chat: Chats) -> None:
    assert chat().run("/history") == "nothing said yet"


def test_history_shows_replies_that_would_drive_the_terminal_as_text(chat: Chats) -> None:
    context = chat("hi", replies=["\x1b[2J[bold]x[/bold]"])
    assert context.run("/history") == "1 user: hi\n1 assistant: \ufffd[2J[bold]x[/bold]"


def test_only_who_speaks_is_styled_in_the_history(chat: Chats) -> None:
    context = chat("hi", replies=["yes"])
    context.show = lambda content: context.shown.append(Painter(color=True).render(content, width=100))
    assert context.run("/history") == "\x1b[1m1 user: \x1b[0mhi\n\x1b[1m1 assistant: \x1b[0myes"


def test_search_says_where_a_text_is_stored_and_how_to_load_it(chat: Chats) -> None:
    chat("Why do cats purr?", "And lions?")
    context = chat("Why do dogs bark?")
    lines = [line.split(None, 2) for line in context.run("/search LIONS").split("\n")]
    assert lines == [["1@2", "assistant", "reply to And lions?"], ["1@2", "user", "And lions?"]]
    context.run("/load 1@1")
    assert context.turns == [("Why do cats purr?", "reply to Why do cats purr?")]
    assert context.run("/search fish") == "nothing stored contains `fish`"


def test_search_needs_a_text(chat: Chats) -> None:
    with pytest.raises(UsageError, match="`/search TEXT` needs a text to look for"):
        chat().run("/search")


def test_stats_shows_what_the_turns_cost(chat: Chats) -> None:
    assert chat().run("/stats") == "what it cost"


def context_rows(context: FakeContext) -> dict[str, tuple[int, float]]:
    rows = [line.split() for line in context.run("/context").split("\n")]
    return {name: (int(count), float(share)) for name, count, share, _ in rows}


@pytest.mark.parametrize("n_turns", [0, 1, 8], ids=["nothing said", "one turn", "some left out"])
def test_the_context_adds_up(chat: Chats, n_turns: int) -> None:
    context = chat(*(f"message {n}" for n in range(n_turns)), system="be kind", context_length=200)
    rows = context_rows(context)
    assert list(rows) == ["system", "user", "assistant", "template", "all", "left"]
    counts = {name: count for name, (count, _) in rows.items()}
    roles = ["system", "user", "assistant", "template"]
    assert sum(counts[role] for role in roles) == counts["all"] == context.session.costs.count_tokens()
    assert counts["all"] + counts["left"] == 200
    assert all(share == count / 2 for count, share in rows.values())


def test_the_context_says_who_said_how_much(chat: Chats) -> None:
    counts = {
        name: count
        for name, (count, _) in context_rows(chat("four", replies=["seven!!"], system="six")).items()
    }
    assert (counts["system"], counts["user"], counts["assistant"]) == (3, 4, 7)


@pytest.mark.parametrize(
    ("line", "n_rows"), [("/why", 8), ("/why 3", 3), ("/why 1", 1), (f"/why {MOST_TOKENS_EXPLAINED}", 10)]
)
def test_why_has_a_row_for_each_of_the_last_tokens(chat: Chats, line: str, n_rows: int) -> None:
    context = chat("hi", replies=["0123\n56789"])
    before, held = context.state, context.session.model.producer.record
    heading, *rows = context.run(line).split("\n")
    assert heading.split() == ["token", "chance", "rank", "likeliest"]
    assert [row.split()[0] for row in rows] == [repr(letter) for letter in "0123\n56789"[-n_rows:]]
    assert (context.state, context.session.model.producer.record) == (before, held)


@pytest.mark.parametrize(
    ("count", "problem"),
    [
        (str(MOST_TOKENS_EXPLAINED + 1), "`/why` explains at most 64 tokens, not 65"),
        ("0", "`/why [N]` takes a whole number above 0, not `0`"),
        ("all", "`/why [N]` takes a whole number above 0, not `all`"),
    ],
)
def test_why_has_its_limits(chat: Chats, count: str, problem: str) -> None:
    context = chat("hi")
    with pytest.raises(UsageError) as caught:
        context.run(f"/why {count}")
    assert (str(caught.value), context.started) == (problem, [])


def test_why_of_a_reply_without_tokens_and_of_one_that_was_stopped(chat: Chats) -> None:
    context = chat("hi", replies=[""])
    assert context.run("/why") == "the last reply has no tokens"
    context = chat("hi")
    stopped = threading.Event()
    stopped.set()
    outcomes = []
    context.start = lambda work, message="": outcomes.append(work(stopped, lambda event: None))
    COMMANDS["why"].run(context, "")
    assert outcomes == [Text("stopped", "notice")]
