"""Keeps text from becoming control tokens while a template mixes the two. Knows strings only, no template.

Before rendering, a placeholder takes the place of every character in the conversation's text that any control
spelling has. So a spelling found in the render was written by the template, every visible character of it, whatever
the template did to the text meanwhile. White space has no placeholder, since templates trim it.

The placeholders are lone surrogates. Text that can be encoded has none, so nothing anybody types can be taken
for one. Each stands for one character, so lengths and positions stay the text's own.
"""

import functools
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from turbospark_chat.chat.rendered_prompt import Control, RenderedPrompt, Segment, Text

_SURROGATES = range(0xD800, 0xE000)
_NOT_TEXT = dict.fromkeys(_SURROGATES, "\ufffd")  # as writers of UTF-8 do with a lone surrogate
_NEVER = "(?!)"


class ControlGuard:
    """Protects text against a set of control spellings; one of white space alone counts as text."""

    def __init__(self, spellings: Collection[str]) -> None:
        self._spellings = frozenset(spelling for spelling in spellings if spelling.strip())
        bare = sorted(spelling.strip() for spelling in self._spellings)
        self._ends = frozenset(spelling[index] for spelling in bare for index in (0, -1))
        # Ends come first: were there ever more characters than placeholders, no spelling would go without.
        characters = [c for c in dict.fromkeys([*sorted(self._ends), *"".join(bare)]) if not c.isspace()]
        placeholders = dict(zip(map(ord, characters), map(chr, _SURROGATES), strict=False))
        self._protected = _NOT_TEXT | placeholders
        self._restored = _NOT_TEXT | {ord(mark): chr(code) for code, mark in placeholders.items()}
        openings = sorted({spelling[0] for spelling in self._spellings})
        self._opening = re.compile("|".join(map(re.escape, openings)) or _NEVER)
        self._lengths = sorted({len(spelling) for spelling in self._spellings}, reverse=True)

    def protect(self, value: Any) -> Any:
        """Return text, or plain lists and dicts of it, with placeholders.

        Keys stay, since templates look things up by them, unless they hold an end of some spelling.
        """
        if isinstance(value, str):
            return value.translate(self._protected)
        if isinstance(value, Mapping):
            return {
                key if self._ends.isdisjoint(str(key)) else self.protect(key): self.protect(item)
                for key, item in value.items()
            }
        return self._each(self.protect, value)

    def restore(self, value: Any) -> Any:
        """Return text, or plain lists and dicts of it, without placeholders; any other value as it is."""
        if isinstance(value, str):
            return value.translate(self._restored)
        if isinstance(value, Mapping):
            return {self.restore(key): self.restore(item) for key, item in value.items()}
        return self._each(self.restore, value)

    def literally(self, function: Callable[..., object]) -> Callable[..., Any]:
        """Return a pure `function` that answers for protected text as it would for the text itself.

        Text it returns stays protected: character by character where the placeholders made no difference, and
        as a whole where they did.
        """

        @functools.wraps(function)
        def literal_function(*args: Any, **kwargs: Any) -> Any:
            literal_args, literal_kwargs = self.restore(args), self.restore(kwargs)
            literal = function(*literal_args, **literal_kwargs)
            if isinstance(literal, int | float) or (literal_args, literal_kwargs) == (args, kwargs):
                return literal
            result = function(*args, **kwargs)
            is_text = isinstance(literal, str | list | tuple)
            return self.protect(literal) if is_text and self.restore(result) != literal else result

        return literal_function

    def segments(self, rendered: str) -> RenderedPrompt:
        """Cut a render into the control tokens the template wrote, longest first, and literal text."""
        segments: list[Segment] = []
        start = 0
        for opening in self._opening.finditer(rendered):
            at = opening.start()
            spelling = self._spelling_at(rendered, at) if at >= start else None
            if spelling is None:
                continue
            if at > start:
                segments.append(Text(self.restore(rendered[start:at])))
            segments.append(Control(spelling))
            start = at + len(spelling)
        if start < len(rendered):
            segments.append(Text(self.restore(rendered[start:])))
        return RenderedPrompt(tuple(segments))

    def _spelling_at(self, text: str, at: int) -> str | None:
        candidates = (text[at : at + length] for length in self._lengths)
        return next((candidate for candidate in candidates if candidate in self._spellings), None)

    @staticmethod
    def _each(convert: Callable[[Any], Any], value: Any) -> Any:
        if isinstance(value, list):
            return [convert(item) for item in value]
        return tuple(convert(item) for item in value) if isinstance(value, tuple) else value
