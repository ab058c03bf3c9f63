"""The application that owns the terminal: what stands where, and how it ends."""

import asyncio
import threading
from contextlib import contextmanager

import pytest
from painted_terminal import painted_terminal
from prompt_toolkit.history import InMemoryHistory

from turbospark_chat.terminal.screen import MOST_INPUT_ROWS, Screen


class Actions:
    def __init__(self):
        self.submitted = []

    def submit(self, text, *, is_pasted):
        self.submitted.append(text)

    def interrupt(self):
        pass

    def leave(self):
        pass


class Chat:
    """A screen that runs on a thread of its own, and what it shows."""

    def __init__(self, terminal):
        self.terminal = terminal
        self.actions = Actions()
        self.live, self.bar, self.prompt = "", "the bar", "> "
        self.errors = []
        self.screen = Screen(
            self.actions,
            live_text=lambda: self.live,
            prompt=lambda: self.prompt,
            status=lambda width: f"{self.bar}, {width} columns",
            history=InMemoryHistory(["earlier"]),
            output=terminal.output,
            on_error=self.errors.append,
        )
        self.result = None

    def run(self):
        started = threading.Event()

        def on_start(loop):
            self._loop = loop
            started.set()

        def end():
            try:
                self.result = asyncio.run(self.screen.run(on_start))
            except Exception as error:
                self.result = error

        self.thread = threading.Thread(target=end)
        self.thread.start()
        assert started.wait(10)
        self.terminal.wait_for(self.bar)

    def do(self, action, *arguments):
        """Call a method of the screen on its own thread, as the chat does."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (action(*arguments), done.set()))
        assert done.wait(10)

    def draw(self, *rows):
        """Have it draw again, and wait until these rows are what the terminal shows."""
        self.screen.invalidate()
        self.terminal.wait_for(lambda: self.terminal.rows == list(rows))


@contextmanager
def chat(**size):
    with painted_terminal(**size) as terminal:
        chat = Chat(terminal)
        chat.run()
        try:
            yield chat
        finally:
            if chat.thread.is_alive():
                chat.do(chat.screen.close, 0)
            chat.thread.join(10)


def test_the_input_stands_above_the_bar_and_the_live_row_above_both():
    with chat(columns=40) as running:
        running.draw(">", "the bar, 40 columns")
        running.live = "half a ro"
        running.draw("half a ro", ">", "the bar, 40 columns")
        running.live, running.bar = "", "other"
        running.draw(">", "other, 40 columns")


def test_finished_text_goes_above_and_stays_when_the_screen_ends():
    with chat(columns=40) as running:
        running.terminal.type("typing")
        running.do(running.screen.write_above, "one\n\x1b[1mtwo\x1b[0m\n")
        running.draw("one", "two", "> typing", "the bar, 40 columns")
        running.do(running.screen.write_above, "three\n")
        running.draw("one", "two", "three", "> typing", "the bar, 40 columns")
        running.do(running.screen.close, 0)
        running.thread.join(10)
        assert running.terminal.rows == ["one", "two", "three"]


def test_many_rows_go_into_the_scrollback_in_order_each_once():  # T34
    with chat(rows=10, columns=40) as running:
        for start in range(0, 500, 7):
            rows = "".join(f"row {number}\n" for number in range(start, min(start + 7, 500)))
            running.do(running.screen.write_above, rows)
        running.draw(*(f"row {number}" for number in range(500)), ">", "the bar, 40 columns")


def test_a_message_of_several_rows_is_indented_under_its_prompt():
    with chat(columns=20) as running:
        running.terminal.type("one two three four five\nsix")
        running.draw("> one two three four", "   five", "  six", "the bar, 20 columns")


def test_the_prompt_may_change():
    with chat(columns=40) as running:
        running.prompt = "really? "
        running.terminal.type("y")
        running.draw("really? y", "the bar, 40 columns")


def test_what_is_typed_can_be_read_and_replaced():
    with chat(columns=40) as running:
        running.terminal.type("ab中")
        running.draw("> ab中", "the bar, 40 columns")
        assert running.screen.input_text == "ab中"
        running.do(setattr, running.screen, "input_text", "one\ntwo")
        running.draw("> one", "  two", "the bar, 40 columns")
        running.terminal.type("!\r")  # the cursor stands at the end
        running.draw(">", "the bar, 40 columns")
        assert running.actions.submitted == ["one\ntwo!"]


def test_up_recalls_an_earlier_input():
    with chat(columns=40) as running:
        running.terminal.type("new")
        running.draw("> new", "the bar, 40 columns")
        for _ in range(2):  # and once it has been sent, it is the last of them
            running.terminal.type("\x1b[A")
            running.draw("> earlier", "the bar, 40 columns")
            running.terminal.type("\r")
            running.draw(">", "the bar, 40 columns")
        assert running.actions.submitted == ["earlier", "earlier"]


def test_it_ends_with_the_code_given_to_close_and_the_first_counts():
    with chat() as running:
        running.do(lambda: (running.screen.close(3), running.screen.close(4)))
        running.thread.join(10)
        assert running.result == 3


def test_a_failure_is_raised_from_run():
    with chat() as running:
        error = BrokenPipeError()
        running.do(
            lambda: (running.screen.fail(error), running.screen.fail(OSError()), running.screen.close(0))
        )
        running.thread.join(10)
        assert running.result is error


def test_before_it_runs_and_after_nothing_happens():
    with painted_terminal() as terminal:
        screen = Chat(terminal).screen
        screen.close(0)
        screen.fail(OSError())
        screen.invalidate()
        assert terminal.rows == [""]


@pytest.mark.parametrize("rows", [3, 24])
def test_a_long_message_leaves_room_for_the_bar(rows):
    with chat(rows=rows, columns=40) as running:
        running.terminal.type("\n".join(str(number) for number in range(40)))
        shown = range(40 - min(rows - 1, MOST_INPUT_ROWS), 40)
        running.draw(*(f"  {number}" for number in shown), "the bar, 40 columns")
