"""The application that owns the terminal: what stands where, and how it ends."""

import asyncio
import sys
import threading
from contextlib import contextmanager

import pytest
from painted_terminal import painted_terminal
from prompt_toolkit.completion import DummyCompleter, WordCompleter
from prompt_toolkit.history import InMemoryHistory

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.screen import Screen
from turbospark_chat.terminal.screen_layout import MOST_INPUT_ROWS


class Actions:
    def __init__(self):
        self.submitted = []
        self.is_asking = False
        self.has_waiting = False

    def submit(self, text, *, shown, is_pasted):
        self.submitted.append(text)

    def draft_changed(self):
        pass

    def take_back(self):
        raise AssertionError("nothing waits")

    def interrupt(self):
        pass

    def leave(self):
        pass

    def show_thinking(self):
        pass

    def answer_now(self):
        pass


class Chat:
    """A screen that runs on a thread of its own, and what it shows."""

    def __init__(self, terminal, **settings):
        self.terminal = terminal
        self.actions = Actions()
        self.live, self.bar, self.prompt = "", "the bar", "> "
        self.errors = []
        self.screen = Screen(
            self.actions,
            live_text=self._live_text,
            prompt=lambda: self.prompt,
            status=lambda width: self.make_bar(width),
            history=InMemoryHistory(["earlier"]),
            output=terminal.output,
            on_error=self.errors.append,
            **{"completer": DummyCompleter(), "environment": {}, **settings},
        )
        self.make_bar = lambda width: f"{self.bar}, {width} columns"
        self.result = None

    def _live_text(self, width, most_rows):
        self.room = most_rows
        return self.live

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
        self.terminal.wait_for(">")

    def do(self, action, *arguments):
        """Call a method of the screen on its own thread, as the chat does."""
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (action(*arguments), done.set()))
        assert done.wait(10)

    def make(self, coroutine):
        """Start a coroutine on the screen's thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def draw(self, *rows):
        """Have it draw again, and wait until these rows are what the terminal shows."""
        self.screen.invalidate()
        self.terminal.wait_for(lambda: self.terminal.rows == list(rows))


@contextmanager
def chat(*, rows=40, columns=100, **settings):
    with painted_terminal(rows=rows, columns=columns) as terminal:
        chat = Chat(terminal, **settings)
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


def test_finished_text_is_never_seen_without_the_input_below_it():
    with chat(columns=40) as running:
        seen = []
        write = running.terminal.write
        running.terminal.write = lambda text: (write(text), seen.append(running.terminal.rows))
        for number in range(5):
            running.do(running.screen.write_above, f"{number}\n")
            running.terminal.wait_for(str(number))
        assert len(seen) >= 5
        assert all(rows[-2:] == [">", "the bar, 40 columns"] for rows in seen)


def test_finished_text_shows_though_the_bar_cannot_be_drawn():
    with chat(columns=40) as running:

        def fail(width):
            raise ValueError(f"no bar of {width} columns")

        running.make_bar = fail
        running.do(running.screen.write_above, "one\n")
        running.terminal.wait_for("one")
        running.terminal.wait_for(lambda: running.errors)
        assert "no bar" in str(running.errors[0])


def test_finished_text_shows_though_nothing_can_be_drawn_any_more():
    with chat(columns=40) as running:

        def fail(width):
            raise ValueError(f"no bar of {width} columns")

        def end():
            running.screen.write_above("one\n")
            running.make_bar = fail
            running.screen.close(0)

        running.do(end)
        running.thread.join(10)
        assert "one" in running.terminal.rows


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


# Live rows


def test_live_rows_stand_as_they_are_and_may_become_fewer():
    with chat(columns=40) as running:
        running.live = "one\n\n\x1b[1mthree\x1b[0m\n"
        running.draw("one", "", "three", ">", "the bar, 40 columns")
        running.live = "two"
        running.draw("two", ">", "the bar, 40 columns")


def test_live_rows_get_what_is_left_and_the_last_of_them_are_shown():  # T34
    with chat(rows=10, columns=40) as running:
        running.terminal.type("1\n2\n3")
        running.live = "\n".join(str(number) for number in range(50))
        running.draw(*(str(number) for number in range(44, 50)), "> 1", "  2", "  3", "the bar, 40 columns")
        assert running.room == 6


def test_ten_resizes_leave_finished_text_and_double_nothing():  # T31, T35
    with chat(rows=12, columns=40) as running:
        running.live = "half a reply"
        running.terminal.type("one two three four")
        finished = [f"row {number}" for number in range(20)]
        running.do(running.screen.write_above, "".join(f"{row}\n" for row in finished))
        for columns in [16, 40] * 5:
            typed = ["> one two three four"] if columns == 40 else ["> one two three", "  four"]
            running.terminal.resize(columns)
            bar = f"the bar, {columns} columns"[:columns]
            running.draw(*finished, "half a reply", *typed, bar)


def test_without_bar_there_is_none_and_it_is_never_asked_for():
    with chat(columns=40, has_bar=False) as running:
        running.draw(">")
        running.live = "live"
        running.draw("live", ">")


# Completion, suggestions, search

CHOICES = [f"/choice{number}" for number in range(12)]


def test_tab_completes_and_goes_through_the_choices_below_the_input():
    with chat(
        columns=40, completer=WordCompleter(CHOICES[:2], meta_dict={"/choice1": "the other"}, WORD=True)
    ) as running:
        running.terminal.type("/c\t")
        running.draw("> /choice", "  /choice0", "  /choice1  the other", "the bar, 40 columns")
        running.terminal.type("\t\t")
        running.draw("> /choice1", "  /choice0", "> /choice1  the other", "the bar, 40 columns")
        running.terminal.type("\r")  # takes it
        running.draw("> /choice1", "the bar, 40 columns")
        running.terminal.type("\r")
        running.draw(">", "the bar, 40 columns")
        assert running.actions.submitted == ["/choice1"]


def test_of_many_choices_some_are_shown_and_ctrl_g_gives_up():
    with chat(columns=40, completer=WordCompleter(CHOICES, WORD=True)) as running:
        running.terminal.type("/\t")
        running.draw(
            "> /choice", *(f"  {choice}" for choice in CHOICES[:7]), "  … 5 more", "the bar, 40 columns"
        )
        running.terminal.type("\x07")
        running.draw("> /choice", "the bar, 40 columns")


@pytest.mark.parametrize("key", ["\x1b[C", "\x05", "\x06"], ids=["right", "ctrl-e", "ctrl-f"])
def test_the_rest_of_an_earlier_input_is_suggested_and_taken_by_a_key(key):
    with chat(columns=40) as running:
        running.terminal.type("ear")
        running.draw("> earlier", "the bar, 40 columns")
        assert running.screen.input_text == "ear"
        running.terminal.type(key + "\r")
        running.draw(">", "the bar, 40 columns")
        assert running.actions.submitted == ["earlier"]


def test_no_answer_is_suggested():
    with chat(columns=40) as running:
        running.actions.is_asking = True
        running.terminal.type("e")
        running.draw("> e", "the bar, 40 columns")
        running.terminal.type("\x05\r")
        running.draw(">", "the bar, 40 columns")
        assert running.actions.submitted == ["e"]


def test_a_search_shows_what_is_searched_and_finds_it():
    with chat(columns=40) as running:
        running.terminal.type("draft\x12rli")
        running.draw("> earlier", "search earlier: rli", "the bar, 40 columns")
        running.terminal.type("\r")  # takes it
        running.draw("> earlier", "the bar, 40 columns")
        assert running.actions.submitted == []


def test_a_search_given_up_leaves_the_draft():
    with chat(columns=40) as running:
        running.terminal.type("draft\x12rli\x03")
        running.draw("> draft", "the bar, 40 columns")


# Labels


def test_a_long_paste_and_an_attachment_are_labels_in_the_input():
    with chat(columns=60) as running:
        text = "word\r" * 300
        running.terminal.type(f"see \x1b[200~{text}\x1b[201~ and ")
        running.draw("> see [paste: 300 lines, 1,500 characters] and", "the bar, 60 columns")
        attached = []
        running.do(lambda: attached.append(running.screen.attach("[notes.txt]", "notes")))
        running.do(lambda: running.screen.relabel(attached[0], "[notes.txt: 3 tokens]"))
        running.draw(
            "> see [paste: 300 lines, 1,500 characters] and [notes.txt: 3",
            "   tokens]",
            "the bar, 60 columns",
        )
        assert running.screen.input_text == "see " + "word\n" * 300 + " and notes"


# Another program in the terminal


def editor(tmp_path, code):
    program = tmp_path / "editor.py"
    program.write_text(f"import sys, pathlib, time\npath = pathlib.Path(sys.argv[-1])\n{code}")
    return {"EDITOR": f"{sys.executable} {program}"}


def test_the_draft_is_edited_in_an_editor(tmp_path):
    environment = editor(tmp_path, "path.write_text(path.read_text().upper())")
    with chat(columns=40, environment=environment) as running:
        running.terminal.type("draft\x18\x05")
        running.draw("> DRAFT", "the bar, 40 columns")
        running.terminal.type("!\r")
        running.draw(">", "the bar, 40 columns")
        assert running.actions.submitted == ["DRAFT!"]


def test_while_an_editor_is_open_nothing_is_painted_and_nothing_lost(tmp_path):
    opened, done = tmp_path / "opened", tmp_path / "done"
    code = f"open({str(opened)!r}, 'w')\nwhile not pathlib.Path({str(done)!r}).exists(): time.sleep(0.01)"
    with chat(columns=40, environment=editor(tmp_path, code)) as running:
        running.terminal.type("draft\x18\x05")
        running.terminal.wait_for(opened.exists)
        before = running.terminal.rows
        running.do(running.screen.write_above, "finished\n")
        running.do(running.screen.put_before, "given back")
        running.do(running.screen.invalidate)
        with pytest.raises(UsageError, match="open already"):
            running.make(running.screen.edit("another")).result(10)
        assert running.terminal.rows == before
        done.touch()
        running.draw("finished", "> given back", "  draft", "the bar, 40 columns")


def test_an_editor_that_fails_leaves_the_draft(tmp_path):
    with chat(columns=40, environment=editor(tmp_path, "sys.exit(3)")) as running:
        running.terminal.type("draft\x18\x05")
        running.terminal.wait_for(lambda: running.errors)
        running.draw("> draft", "the bar, 40 columns")
        assert "ended with 3" in str(running.errors[0])


def test_the_screen_ends_though_an_editor_is_open(tmp_path):
    opened = tmp_path / "opened"
    with chat(environment=editor(tmp_path, f"open({str(opened)!r}, 'w'); time.sleep(60)")) as running:
        running.terminal.type("draft\x18\x05")
        running.terminal.wait_for(opened.exists)
        running.do(running.screen.close, 143)
        running.thread.join(10)
        assert running.result == 143


# Editing modes


def test_the_keys_may_become_vis_and_its_mode_can_be_told():
    with chat(columns=40) as running:
        assert (running.screen.editing, running.screen.vi_mode) == ("emacs", "")
        running.do(setattr, running.screen, "editing", "vi")
        assert running.screen.vi_mode == "insert"
        running.terminal.type("abc\x1b")
        running.terminal.wait_for(lambda: running.screen.vi_mode == "normal")
        running.terminal.type("xxi")
        running.terminal.wait_for(lambda: running.screen.vi_mode == "insert")
        running.draw("> a", "the bar, 40 columns")
        running.do(setattr, running.screen, "editing", "emacs")
        assert running.screen.vi_mode == ""
