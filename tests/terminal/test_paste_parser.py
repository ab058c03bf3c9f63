"""Pastes whose end comes late or never, read piece by piece; the silences are short ones."""

import asyncio

import pytest
from prompt_toolkit.keys import Keys

from turbospark_chat.terminal import paste_parser
from turbospark_chat.terminal.paste_parser import PasteParser

BEGIN, END, CTRL_C = "\x1b[200~", "\x1b[201~", "\x03"
SILENCE, PAUSE = 0.2, 0.05


@pytest.fixture(autouse=True)
def short_times(monkeypatch):
    monkeypatch.setattr(paste_parser, "SILENCE_SECONDS", SILENCE)
    monkeypatch.setattr(paste_parser, "PAUSE_SECONDS", PAUSE)


def read(*pieces):
    """Feed pieces, and let pass the seconds between them; return the keys, a paste as `[its text]`."""
    keys = []

    def take(press):
        keys.append(f"[{press.data}]" if press.key is Keys.BracketedPaste else press.data)

    async def feed():
        parser = PasteParser(take, on_silence=lambda: keys.append("…"))
        for piece in pieces:
            if isinstance(piece, str):
                parser.feed(piece)
            else:
                await asyncio.sleep(piece)

    asyncio.run(feed())
    return "".join(keys)


@pytest.mark.parametrize(
    ("pieces", "keys"),
    [
        pytest.param([f"a{BEGIN}b\rc{END}d"], "a[b\rc]d", id="whole"),
        pytest.param([f"{BEGIN}a", SILENCE / 2, "b", SILENCE / 2, f"c{END}"] * 2, "[abc][abc]", id="slow"),
        pytest.param([f"{BEGIN}a{END}b", SILENCE * 2, f"{BEGIN}c{END}"], "[a]b[c]", id="two"),
        pytest.param([f"{BEGIN}a{CTRL_C}", CTRL_C, f"b{END}"], f"[a{CTRL_C}{CTRL_C}b]", id="ctrl-c within"),
        pytest.param([f"{BEGIN}a", PAUSE, f"{CTRL_C}b{END}"], f"[a{CTRL_C}b]", id="ctrl-c not alone"),
    ],
)
def test_a_whole_paste_is_one_key_however_it_comes(pieces, keys):
    assert read(*pieces) == keys


@pytest.mark.parametrize(
    ("ends", "shown"),
    [pytest.param([SILENCE * 2], "…", id="silence"), pytest.param([PAUSE, CTRL_C], "", id="ctrl-c")],
)
@pytest.mark.parametrize(
    ("then", "keys"),
    [
        pytest.param(["b", "\r"], "b\r", id="keys"),
        pytest.param(["hello\r"], "hello\r", id="a line"),
        pytest.param([CTRL_C], CTRL_C, id="ctrl-c"),
        pytest.param([f"{BEGIN}b{END}"], "[b]", id="another paste"),
        pytest.param([f"{BEGIN}b", f"c{END}"], "[bc]", id="another paste in two"),
        pytest.param([f"b{END}c"], "[b]c", id="the rest"),
        pytest.param([END], "[]", id="the end"),
        pytest.param(["b\rc\r", f"d{END}"], "[b\rc\rd]", id="the rest in two"),
        pytest.param(["b\r", "c\rd\r"], "b\rc\rd\r", id="lines after a line"),
    ],
)
def test_a_paste_without_end_is_given_up_and_keys_are_keys_again(ends, shown, then, keys):
    assert read(f"{BEGIN}a", *ends, *then) == f"[a]{shown}{keys}"
