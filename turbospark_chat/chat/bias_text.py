"""Logit biases by text, as `'cat':-5`: spelled out as the ids of that text."""

import re
from collections.abc import Callable

from turbospark_chat.errors import SettingError

_QUOTED = re.compile(r"""(['"])(?P<text>.*?)\1\s*:\s*(?P<bias>[^,}]+)""", re.DOTALL)


def is_text_bias(text: str) -> bool:
    """Whether any bias is given by quoted text that is no number."""
    return any(not match["text"].strip().isdecimal() for match in _QUOTED.finditer(text))


def spell_out_biases(text: str, encode: Callable[[str], list[int]]) -> str:
    """Return the biases with every quoted text replaced by its ids, encoded as it stands: no BOS, no added space.

    >>> spell_out_biases("'ab':-5, 7:1", lambda text: [ord(c) for c in text])
    '97:-5,98:-5, 7:1'
    """

    def spell_out(match: re.Match[str]) -> str:
        if match["text"].strip().isdecimal():
            return match[0]
        ids = encode(match["text"])
        if not ids:
            raise SettingError(f"logit_bias is {text!r}: {match['text']!r} has no tokens")
        return ",".join(f"{token_id}:{match['bias'].strip()}" for token_id in ids)

    return _QUOTED.sub(spell_out, text)
