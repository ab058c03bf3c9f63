"""What keys ask for, typed through prompt_toolkit's own input."""

import asyncio

import pytest
from prompt_toolkit.application import Application, create_app_session
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings
from prompt_toolkit.layout import Layout, Window
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.output import DummyOutput

from turbospark_chat.terminal.keys import make_key_bindings

ENTER, CTRL_A, CTRL_C, CTRL_D, CTRL_J, CTRL_U = "\r", "\x01", "\x03", "\x04", "\n", "\x15"
ALT_ENTER, BACKSPACE, LEFT, F12 = "\x1b\r", "\x7f", "\x1b[D", "\x1b[24~"


def paste(text):
    return f"\x1b[200~{text}\x1b[201~"


class Keyboard:
    """Types into an input with the chat's keys, and notes what they ask for."""

    def __init__(self):
        self.asked = []
        self.buffer = Buffer(multiline=True)

    def submit(self, text, *, is_pasted):
        self.asked.append((text, "pasted" if is_pasted else "typed"))

    def interrupt(self):
        self.asked.append("interrupt")

    def leave(self):
        self.asked.append("leave")

    def type(self, keys):
        """Return what these keys asked for."""
        end = KeyBindings()
        end.add("f12")(lambda event: event.app.exit())

        async def run():
            bindings = merge_key_bindings([make_key_bindings(self, self.buffer), end])
            app = Application(Layout(Window(BufferControl(self.buffer))), key_bindings=bindings)
            await asyncio.wait_for(app.run_async(), 10)

        with create_pipe_input() as keyboard, create_app_session(keyboard, DummyOutput()):
            keyboard.send_text(keys + F12)
            asyncio.run(run())
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


def test_a_paste_of_three_hundred_lines_is_one_message():  # T37
    text = "\n".join(f"line {number}" if number % 3 else "" for number in range(300))
    assert Keyboard().type(paste(text.replace("\n", "\r")) + ENTER) == [(text, "pasted")]
