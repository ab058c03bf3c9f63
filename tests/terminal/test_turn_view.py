"""A turn's events on their way to the screen."""

from collections.abc import Callable

import pytest

from turbospark_chat.chat.turn_result import NotKept, ReplyText, StoredApart, TurnsDropped
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.code_painter import COLOR_THEME
from turbospark_chat.terminal.interface_options import Thinking
from turbospark_chat.terminal.status_bar import Activity
from turbospark_chat.terminal.turn_view import TurnView

DIM = "\x1b[2;3m"  # the style of thinking
END = "\x1b[0m"


def view(
    *,
    color: bool = False,
    clock: Callable[[], float] = lambda: 0.0,
    is_markdown: bool = False,
    thinking: Thinking = Thinking.SHOW,
) -> TurnView:
    return TurnView(
        Painter(color=color), clock=clock, is_markdown=is_markdown, thinking=thinking, code_theme=COLOR_THEME
    )


def texts(*pieces, is_reasoning=False):
    return [ReplyText(piece, is_reasoning, number) for number, piece in enumerate(pieces, start=1)]


def take(turn, events, *, width=20):
    return "".join(turn.take(event, width=width, height=10) for event in events)


def live(turn, *, width=20):
    return turn.live_text(width=width, height=4)


def test_whole_rows_go_above_and_the_rest_stays_live():
    turn = view()
    assert (
        take(turn, texts("one two three ", "four five", " six\n", "seven"))
        == "one two three four\nfive six\n"
    )
    assert live(turn) == "seven"
    assert (turn.finish(width=20), live(turn)) == ("seven\n", "")


@pytest.mark.parametrize("pieces", [(), ("",), ("done\n",)])
def test_a_reply_that_ends_its_row_gets_no_blank_one(pieces):
    turn = view()
    shown = take(turn, texts(*pieces))
    assert (shown, turn.finish(width=20)) == ("done\n" if "done\n" in pieces else "", "")


def test_what_goes_above_is_whole_lines():
    turn = view(color=True)
    events = [*texts("hm hm", is_reasoning=True), TurnsDropped(1, 30), *texts("yes\nno\n", "x" * 45)]
    shown = [take(turn, [event]) for event in events] + [turn.finish(width=20)]
    assert all(part.endswith("\n") for part in shown if part)


def test_thinking_is_styled_line_by_line():
    turn = view(color=True)
    shown = take(turn, texts("one\n\ntwo", is_reasoning=True))
    assert shown == f"{DIM}one{END}\n\n"
    assert live(turn) == f"{DIM}two{END}"
    shown = take(turn, texts("answer"))
    assert (shown, live(turn)) == (f"{DIM}two{END}\n\n", "answer")


def test_an_event_without_text_ends_no_thought():
    turn = view(color=True)
    assert take(turn, [*texts("hm", is_reasoning=True), ReplyText("", False, 2)]) == ""
    assert live(turn) == f"{DIM}hm{END}"


def test_a_reply_cannot_drive_the_terminal():
    turn = view(color=True)
    assert take(turn, texts("\x1b[2J", "\x9b1A\n")) == "\ufffd[2J\ufffd1A\n"


def test_a_dropped_turn_is_said_on_its_own_line():  # T63
    assert take(view(), [TurnsDropped(2, 310)]) == (
        "2 exchanges dropped from the prompt to fit the context (310 tokens)\n"
    )


@pytest.mark.parametrize("start", [-2.0, 5000.0])
def test_rates_come_from_the_clock(start):
    seconds = iter([start, start + 0.5, start + 2.0, start + 3.0, start + 4.0])
    turn = view(clock=lambda: next(seconds))
    assert turn.activity == Activity()
    take(turn, [Prefill(done=164, total=264, reused=100)])
    assert turn.activity == Activity(164, 264, 100, prefill_seconds=0.5)
    assert turn.activity.prefill_rate == 128.0
    take(turn, texts("a"))
    assert (turn.activity.n_tokens, turn.activity.decode_seconds, turn.activity.decode_rate) == (1, 0.0, None)
    take(turn, [ReplyText("b", False, 2), ReplyText("c", False, 5)])
    assert (turn.activity.decode_seconds, turn.activity.decode_rate) == (2.0, 2.0)


def test_tokens_that_come_together_make_no_rate_yet():
    now = 10.0
    turn = view(clock=lambda: now)
    take(turn, texts(*"abcdefgh"))
    assert (turn.activity.n_tokens, turn.activity.decode_rate) == (8, None)
    now += 2.0
    take(turn, [ReplyText("i", False, 108)])
    assert turn.activity.decode_rate == 50.0


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (NotKept("disk \x1b[2J full"), "this turn is not stored: disk \ufffd[2J full"),
        (StoredApart("main", "main-2"), str(StoredApart("main", "main-2"))),
    ],
    ids=["not stored", "another program goes on with it"],
)
def test_a_turn_that_is_not_stored_where_one_would_look_is_warned_of(event, text):
    assert take(view(color=True), [event]) == f"\x1b[33m{text}\x1b[0m\n"


def test_what_is_said_of_a_reply_comes_below_it():
    turn = view()
    shown = take(turn, [*texts("the last row"), NotKept("disk full")])
    assert (shown, live(turn)) == ("the last row\nthis turn is not stored: disk full\n", "")


def test_a_reply_may_be_markdown():  # T40
    turn = view(is_markdown=True)
    assert take(turn, texts("# *one*\n", "two **th")) == "one\n"
    assert live(turn) == "\ntwo **th"
    assert turn.finish(width=20) == "\ntwo **th\n"


class Thought:
    """A turn that thinks for 3.2 seconds and 120 tokens, then answers."""

    def __init__(self, thinking):
        self.now = 10.0
        self.turn = view(clock=lambda: self.now, thinking=thinking)
        self.shown = take(self.turn, [ReplyText("", False, 2)], width=40)  # the opening tag

    def think(self):
        for text, n_tokens in (("one\ntw", 62), ("", 92), ("o", 122)):
            self.shown += take(self.turn, [ReplyText(text, True, n_tokens)], width=40)
            self.now += 1.6 if text else 0.0

    def answer(self):
        self.shown += take(self.turn, [ReplyText("yes", False, 123)], width=40)
        self.shown += self.turn.finish(width=40)
        return self.shown


@pytest.mark.parametrize(
    ("thinking", "row", "shown"),
    [
        (Thinking.SHOW, "two", "one\ntwo\n\nyes\n"),
        (Thinking.HIDE, "", "yes\n"),
        (
            Thinking.FOLD,
            "thinking … 120 tokens, 3.2 s (Ctrl-T shows it)",
            "[thought for 3.2 s, 120 tokens; Ctrl-T\nshows it]\nyes\n",
        ),
    ],
)
def test_thinking_is_shown_folded_or_hidden(thinking, row, shown):  # T76
    thought = Thought(thinking)
    thought.think()
    assert live(thought.turn, width=60).startswith(row)
    assert live(thought.turn, width=12).count("\n") == 0
    assert thought.answer() == shown


@pytest.mark.parametrize("thinking", [Thinking.FOLD, Thinking.HIDE])
def test_thinking_may_be_opened_while_it_goes_on(thinking):
    thought = Thought(thinking)
    thought.think()
    assert thought.turn.open_thinking(width=40) == "one\n"
    assert live(thought.turn, width=40) == "two"
    assert thought.turn.open_thinking(width=40) == ""
    assert thought.answer() == "two\n\nyes\n"


@pytest.mark.parametrize("thinking", [Thinking.FOLD, Thinking.HIDE])
def test_thinking_may_be_opened_after_it_has_ended(thinking):
    thought = Thought(thinking)
    thought.think()
    thought.answer()
    assert [thought.turn.open_thinking(width=40) for _ in range(2)] == ["one\ntwo\n", ""]


def test_a_turn_stopped_while_it_thinks_folds_what_it_thought():
    thought = Thought(Thinking.FOLD)
    thought.think()
    assert thought.turn.finish(width=60) == "[thought for 3.2 s, 120 tokens; Ctrl-T shows it]\n"
    assert live(thought.turn, width=60) == ""


def test_a_thought_cannot_drive_the_terminal():
    turn = view(thinking=Thinking.FOLD)
    take(turn, texts("\x1b[2J\x9b", is_reasoning=True))
    assert turn.open_thinking(width=40) + live(turn) == "\ufffd[2J\ufffd"
