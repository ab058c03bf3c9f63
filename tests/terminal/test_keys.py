"""What keys ask for, typed through prompt_toolkit's own input, in emacs and in vi mode."""

import asyncio

import pytest
from prompt_toolkit.application import Application, create_app_session
from prompt_toolkit.auto_suggest import DummyAutoSuggest
from prompt_toolkit.completion import DummyCompleter
from prompt_toolkit.enums import EditingMode
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.output import DummyOutput

from turbospark_chat.terminal.draft_buffer import DraftBuffer
from turbospark_chat.terminal.keys import KEY_HELP, make_key_bindings, send
from turbospark_chat.terminal.pastes import Pastes

ENTER, CTRL_A, CTRL_C, CTRL_D, CTRL_E, CTRL_G, CTRL_J, CTRL_K = (
    "\r",
    "\x01",
    "\x03",
    "\x04",
    "\x05",
    "\x07",
    "\n",
    "\x0b",
)
CTRL_T, CTRL_U, CTRL_W, CTRL_X, CTRL_Y, CTRL_Z, UNDO = "\x14", "\x15", "\x17", "\x18", "\x19", "\x1a", "\x1f"
ALT_ENTER, BACKSPACE, LEFT, RIGHT, DELETE, F12 = "\x1b\r", "\x7f", "\x1b[D", "\x1b[C", "\x1b[3~", "\x1b[24~"
UP, ALT_B, ALT_F, ESCAPE = "\x1b[A", "\x1bb", "\x1bf", "\x1b"
FAMILY, FLAG = "👨\u200d👩\u200d👧", "🇩🇪"
LONG = "\n".join(f"line {number}" if number % 3 else "" for number in range(300))


def paste(text):
    return f"\x1b[200~{text}\x1b[201~"


class Keyboard:
    """Types into an input with the chat's keys, and notes what they ask for."""

    def __init__(self, *earlier, is_vi=False):
        self.asked = []
        self.shown = []
        self.has_waiting = False
        self.is_asking = False
        self.history = InMemoryHistory(earlier)
        self.mode = EditingMode.VI if is_vi else EditingMode.EMACS
        self.buffer = DraftBuffer(
            Pastes(),
            on_send=lambda: send(self, self.buffer),
            history=self.history,
            completer=DummyCompleter(),
            auto_suggest=DummyAutoSuggest(),
        )

    def submit(self, text, *, shown, is_pasted):
        self.asked.append((text, "pasted" if is_pasted else "typed"))
        self.shown.append(shown)

    def draft_changed(self):
        pass

    def take_back(self):
        self.asked.append("take back")

    def interrupt(self):
        self.asked.append("interrupt")

    def leave(self):
        self.asked.append("leave")

    def show_thinking(self):
        self.asked.append("show thinking")

    def answer_now(self):
        self.asked.append("answer now")

    def type(self, *keys):
        """Return what these keys asked for; between the pieces it is idle, so that Escape is Escape."""
        end = KeyBindings()
        end.add("f12")(lambda event: event.app.exit())

        async def run(keyboard):
            chat = make_key_bindings(
                self,
                self.buffer,
                compose=lambda: self.asked.append("compose"),
                suspend=lambda: self.asked.append("suspend"),
                is_lent=lambda: False,
            )
            app = Application(
                Layout(Window(BufferControl(self.buffer))),
                key_bindings=merge_key_bindings([chat, end]),
                editing_mode=self.mode,
            )
            app.ttimeoutlen = app.timeoutlen = 0.01
            running = asyncio.ensure_future(app.run_async())
            for piece in (*keys, F12):
                await asyncio.sleep(0.05 if len(keys) > 1 else 0)
                await asyncio.to_thread(keyboard.send_text, piece)  # a pipe holds less than a long paste
            await asyncio.wait_for(running, 10)

        with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
            asyncio.run(run(keyboard))
        return self.asked


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        pytest.param("hi" + ENTER, [("hi", "typed")], id="enter-sends"),
        pytest.param("one" + CTRL_J + "two" + ENTER, [("one\ntwo", "typed")], id="ctrl-j-is-a-new-line"),
        pytest.param("one" + ALT_ENTER + "two" + ENTER, [("one\ntwo", "typed")], id="alt-enter-too"),
        pytest.param(ENTER + "  " + ENTER + CTRL_J + ENTER, [], id="H14-blank-input-is-not-sent"),
        pytest.param(" hi " + ENTER, [(" hi ", "typed")], id="spaces-stay"),
        pytest.param("中a" + LEFT + BACKSPACE + ENTER, [("a", "typed")], id="T29-backspace-takes-one-wide-character"),
        pytest.param("hi" + CTRL_C, ["interrupt"], id="ctrl-c"),
        pytest.param("hi" + CTRL_Z, ["suspend"], id="ctrl-z"),
        pytest.param(CTRL_D, ["leave"], id="T9-ctrl-d-leaves"),
        pytest.param("hi" + CTRL_A + CTRL_D + ENTER, [("i", "typed")], id="T9-ctrl-d-in-text-deletes"),
        pytest.param(paste("a\rb\r\n\r\nc\n") + ENTER, [("a\nb\n\nc\n", "pasted")], id="T37-paste-is-one-message"),
        pytest.param(paste("/help") + ENTER, [("/help", "pasted")], id="H13-pasted-slash"),
        pytest.param(paste("/help") + " me" + ENTER, [("/help me", "pasted")], id="paste-and-go-on"),
        pytest.param("/set " + paste("/help") + ENTER, [("/set /help", "typed")], id="paste-into-a-command"),
        pytest.param("x" + CTRL_A + paste("/") + ENTER, [("/x", "pasted")], id="paste-before-typed-text"),
        pytest.param(paste("/a") + BACKSPACE * 2 + "/a" + ENTER, [("/a", "typed")], id="paste-taken-back"),
        pytest.param(paste("/a") + CTRL_U + "/a" + ENTER, [("/a", "typed")], id="paste-cleared"),
        pytest.param(paste("/a") + ENTER + "/a" + ENTER, [("/a", "pasted"), ("/a", "typed")], id="paste-sent"),
        pytest.param(paste("") + "/a" + ENTER, [("/a", "typed")], id="empty-paste"),
    ],
)  # fmt: skip
def test_keys_ask(keys, asked):
    assert Keyboard().type(keys) == asked


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        pytest.param(FAMILY + "x" + LEFT + BACKSPACE, "x", id="T29-backspace-takes-a-family"),
        pytest.param("a" + FLAG + FLAG + BACKSPACE, "a" + FLAG, id="T29-and-one-flag"),
        pytest.param("e\u0301" + BACKSPACE + "i", "i", id="T29-and-an-accent"),
        pytest.param("a" + FAMILY + LEFT + "b", "ab" + FAMILY, id="T28-left-steps-over-a-family"),
        pytest.param(FAMILY + "中" + CTRL_A + RIGHT + "b", FAMILY + "b中", id="T28-right-too"),
        pytest.param(FLAG + "x" + CTRL_A + DELETE, "x", id="T29-delete-takes-a-flag"),
        pytest.param(f"one {FAMILY} 中文 two" + CTRL_W * 2, f"one {FAMILY} ", id="ctrl-w-takes-words-of-any-width"),
        pytest.param("one two" + ALT_B + CTRL_K + CTRL_A + CTRL_Y, "twoone ", id="kill-and-yank"),
        pytest.param("中文 two" + CTRL_A + ALT_F + "!", "中文! two", id="word-forward"),
        pytest.param("one" + CTRL_U + UNDO, "one", id="undo"),
        pytest.param(paste(LONG) + "x" + BACKSPACE * 2, "", id="backspace-takes-a-folded-paste"),
        pytest.param(paste(LONG) + "x" + LEFT * 2 + "a", "a" + LONG + "x", id="left-steps-over-one"),
        pytest.param(paste(LONG) + BACKSPACE + UNDO, LONG, id="undo-brings-one-back"),
        pytest.param(paste(LONG) + CTRL_U + "a" + CTRL_Y, "a" + LONG, id="cut-and-put-back"),
        pytest.param(paste("\U00100000") + paste(LONG) + paste("\U00100001"), "\U00100000" + LONG + "\U00100001",
                     id="T38-private-characters-are-themselves"),
        pytest.param("\U00100000" + paste(LONG) + "\U00100001", "\U00100000" + LONG + "\U00100001",
                     id="T38-typed-ones-too"),
    ],
)  # fmt: skip
def test_keys_edit(keys, text):
    keyboard = Keyboard()
    keyboard.type(keys)
    assert keyboard.buffer.draft == text


@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        pytest.param(
            (CTRL_T + CTRL_G + CTRL_X + CTRL_E,), ["show thinking", "answer now", "compose"], id="asks"
        ),
        pytest.param(("hi" + CTRL_J + "there" + ENTER,), [("hi\nthere", "typed")], id="ctrl-j"),
        pytest.param(("hi", ESCAPE, "v"), ["compose"], id="v-in-normal-mode"),
        pytest.param(("hi", ESCAPE, ENTER), [("hi", "typed")], id="enter-in-normal-mode"),
        pytest.param((f"a{FAMILY}b", ESCAPE, "hx" + ENTER), [("ab", "typed")], id="T29-x-takes-a-family"),
        pytest.param((f"a{FAMILY}b", ESCAPE, "X" + ENTER), [("ab", "typed")], id="T29-X-too"),
        pytest.param(("one two", ESCAPE, "dbu" + ENTER), [("one two", "typed")], id="undo"),
        pytest.param((CTRL_D,), ["leave"], id="T9-ctrl-d"),
        pytest.param(("v" + CTRL_C,), ["interrupt"], id="v-is-typed-in-insert-mode"),
    ],
)
def test_keys_in_vi_mode(keys, asked):
    assert Keyboard(is_vi=True).type(*keys) == asked


def test_the_same_keys_ask_in_emacs_mode():
    asked = Keyboard().type(CTRL_T + CTRL_G + CTRL_X + CTRL_E + "v" + ENTER)
    assert asked == ["show thinking", "answer now", "compose", ("v", "typed")]


def test_a_paste_of_three_hundred_lines_is_one_message_and_one_character():  # T37, T38
    keyboard = Keyboard()
    keyboard.type(paste(LONG.replace("\n", "\r")))
    assert len(keyboard.buffer.text) == 1
    assert keyboard.type(ENTER) == [(LONG, "pasted")]
    assert keyboard.history.get_strings() == [LONG]


def test_a_paste_of_a_megabyte_is_taken():  # H13
    text = "0123456789abcde\n" * 65_536
    assert Keyboard().type(paste(text) + ENTER) == [(text, "pasted")]


def test_a_long_entry_of_the_history_is_folded_when_it_comes_back():
    keyboard = Keyboard("\U00100000", LONG)
    keyboard.type(UP)
    assert len(keyboard.buffer.text) == 1
    assert keyboard.type("!" + ENTER) == [(LONG + "!", "typed")]


def test_going_to_and_fro_in_the_history_changes_nothing():
    keyboard = Keyboard("\U00100000", LONG)
    down = "\x1b[B"
    keyboard.type(paste(LONG) + "draft", UP * 2 + down + UP)
    assert keyboard.buffer.draft == "\U00100000"
    keyboard.type(down)
    assert keyboard.buffer.draft == LONG
    keyboard.type(down)
    assert keyboard.buffer.draft == LONG + "draft"


def test_answers_are_not_remembered_and_inputs_once():
    keyboard = Keyboard()
    keyboard.type("one" + ENTER + "one" + ENTER)
    keyboard.is_asking = True
    keyboard.type("y" + ENTER)
    assert keyboard.history.get_strings() == ["one"]
    assert [text for text, _ in keyboard.asked] == ["one", "one", "y"]


def test_what_is_attached_at_the_start_makes_no_command():  # H13
    keyboard = Keyboard()
    keyboard.buffer.insert_label("[file: 1 line]", "/exit")
    assert keyboard.type(" what is this?" + ENTER) == [("/exit what is this?", "pasted")]


def test_an_input_set_aside_comes_back_with_its_labels():
    keyboard = Keyboard()
    keyboard.type(paste(LONG) + "ab" + LEFT)
    draft = keyboard.buffer.set_aside()
    keyboard.type("y" + ENTER)
    keyboard.buffer.bring_back(draft)
    assert keyboard.type("!" + ENTER)[-1] == (LONG + "a!b", "pasted")


def test_messages_are_put_before_what_is_typed_and_stay_messages():
    keyboard = Keyboard()
    keyboard.buffer.put_before("first")
    keyboard.buffer.put_before(LONG)
    assert keyboard.type(ENTER) == [(LONG + "\nfirst", "pasted")]
    keyboard.buffer.put_before("/help")
    assert keyboard.type(BACKSPACE + ENTER)[-1] == ("/hel", "typed")  # it is another one now
    keyboard.buffer.put("/help")
    keyboard.buffer.put_before("/he")
    assert keyboard.type(UP + CTRL_A + DELETE * 4 + ENTER)[-1] == ("/help", "typed")


def test_help_names_every_key_of_the_chats_own():
    named = " ".join(keys for keys, _ in KEY_HELP)
    for key in (
        "Enter",
        "Ctrl-J",
        "Alt-Enter",
        "Ctrl-C",
        "Ctrl-D",
        "Ctrl-T",
        "Ctrl-G",
        "Tab",
        "Ctrl-X Ctrl-E",
        "Ctrl-Z",
    ):
        assert key in named
