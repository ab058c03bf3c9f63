"""Every option a user may change between turns, in one table: `/set`, the flags and the README follow it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from turbospark_chat.chat.reasoning import ReasoningTags
from turbospark_chat.chat.window import OverflowPolicy
from turbospark_chat.engine.completion import CompletionConfig
from turbospark_chat.engine.pacing import PowerProfile
from turbospark_chat.engine.sampling_config import SETTINGS
from turbospark_chat.errors import SettingError

_COUNT_OR_NONE = "a whole number, 0 or more, or none"
_QUOTED = r'"(?:[^"\\]|\\.)*"'


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What holds for the next turn.

    Raises:
        SettingError: a value outside its range.
    """

    completion: CompletionConfig = field(default_factory=CompletionConfig)
    on_overflow: OverflowPolicy = OverflowPolicy.DROP
    keep_reasoning: bool = False  # return replies to the prompt exactly as generated, thinking included
    max_thinking_tokens: int | None = None
    think_tags: ReasoningTags | None = None  # instead of those that the template mentions

    def __post_init__(self) -> None:
        """Check what the other values do not check themselves."""
        if self.max_thinking_tokens is not None and self.max_thinking_tokens < 0:
            raise SettingError(f"max_thinking_tokens is {self.max_thinking_tokens}: give {_COUNT_OR_NONE}")


@dataclass(frozen=True, slots=True)
class Option:
    """One row: what an option is called, what it takes, and where in `ChatOptions` it lives."""

    name: str
    values: str
    help: str
    parser: Callable[[str], Any]  # a ValueError or KeyError means: not a value of this option
    path: tuple[str, ...]
    unset: str = "none"  # the word for None

    @property
    def choices(self) -> tuple[str, ...]:
        """The values there are to choose from, where they are few and words."""
        if self.values == "on or off":
            return ("on", "off")
        prefix = "one of "
        return tuple(self.values.removeprefix(prefix).split(", ")) if self.values.startswith(prefix) else ()

    def read(self, options: ChatOptions) -> object:
        """Return the value in force."""
        value: object = options
        for attribute in self.path:
            value = getattr(value, attribute)
        return value

    def show(self, options: ChatOptions) -> str:
        """Return the value in force as a user would type it."""
        value = self.read(options)
        return self.unset if value is None else _spell(value)

    def parse(self, text: str) -> Any:
        """Return the value that `text` spells.

        Raises:
            SettingError: none of this option.
        """
        try:
            return self.parser(text)
        except SettingError:
            raise
        except (ValueError, KeyError) as error:
            raise SettingError(f"{self.name} is {text!r}: give {self.values}") from error

    def change(self, options: ChatOptions, text: str) -> ChatOptions:
        """Return options with this one changed to what `text` spells.

        Raises:
            SettingError: not a value of this option.
        """
        return self.replace(options, self.parse(text))

    def replace(self, options: ChatOptions, value: object) -> ChatOptions:
        """Return options with a value that is already of this option's kind.

        Raises:
            SettingError: outside its range.
        """
        changed: ChatOptions = _replace_at(options, self.path, value)
        return changed


def find_option(name: str) -> Option:
    """Return the row called `name`; leading dashes go, and dashes and underscores are the same.

    Raises:
        SettingError: there is none.
    """
    row = OPTIONS.get(name.lstrip("-").replace("-", "_"))
    if row is None:
        close = get_close_matches(name, OPTIONS, n=1)
        advice = f"did you mean `{close[0]}`?" if close else f"give one of {', '.join(OPTIONS)}"
        raise SettingError(f"unknown setting `{name}`: {advice}")
    return row


def _replace_at(holder: Any, path: tuple[str, ...], value: object) -> Any:
    if len(path) > 1:
        value = _replace_at(getattr(holder, path[0]), path[1:], value)
    return replace(holder, **{path[0]: value})


def _spell(value: object) -> str:
    if value is None or value == () or value == {}:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{_spell(bias)}" for key, bias in value.items())
    if isinstance(value, tuple):
        return " ".join(json.dumps(text, ensure_ascii=False) for text in value)
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _is_none(text: str) -> bool:
    return text.strip().lower() == "none"


def _switch(text: str) -> bool:
    words = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
    return words[text.strip().lower()]


def _choice(kind: type[StrEnum]) -> Callable[[str], StrEnum]:
    return lambda text: kind(text.strip().lower())


def _count_or_none(text: str) -> int | None:
    return None if _is_none(text) else int(text)


def _count_or_auto(text: str) -> int | None:
    return None if text.strip().lower() == "auto" else int(text)


def _rate_or_none(text: str) -> float | None:
    return None if _is_none(text) else float(text)


def _stop_strings(text: str) -> tuple[str, ...]:
    r"""Read one stop string as it stands, or several in double quotes with JSON's escapes; `none` is none.

    One as it stands may hold `\n` and `\t` for a newline and a tab.
    """
    if _is_none(text):
        return ()
    if re.fullmatch(rf"\s*({_QUOTED}\s*)+", text):
        return tuple(json.loads(quoted, strict=False) for quoted in re.findall(_QUOTED, text))
    return (text.replace("\\n", "\n").replace("\\t", "\t"),)


def _tags_or_none(text: str) -> ReasoningTags | None:
    if _is_none(text):
        return None
    opening, closing = text.split()
    return ReasoningTags(opening, closing)


def _one_of(kind: type[StrEnum]) -> str:
    return "one of " + ", ".join(kind)


def _rows() -> list[Option]:
    sampling = [
        Option(row.name, row.range_text, row.help, row.parse, ("completion", "sampling", row.name))
        for row in SETTINGS.values()
    ]
    return [
        *sampling,
        Option(
            "max_tokens", _COUNT_OR_NONE,
            "Most tokens of a reply; none lets it run to the end of the context.",
            _count_or_none, ("completion", "max_new_tokens"),
        ),
        Option(
            "stop", 'a text that is not empty, several in "quotes", or none',
            "End a reply where this text would begin.",
            _stop_strings, ("completion", "stop_strings"),
        ),
        Option(
            "on_overflow", _one_of(OverflowPolicy),
            "When the context is full: drop the oldest exchanges, refuse, or ask.",
            _choice(OverflowPolicy), ("on_overflow",),
        ),
        Option(
            "keep_reasoning", "on or off", "Give the model its own thinking back in later turns.",
            _switch, ("keep_reasoning",),
        ),
        Option(
            "reuse", "on or off", "Continue from the KV cache; off computes every prompt from its first token.",
            _switch, ("completion", "reuse"),
        ),
        Option(
            "power_profile", _one_of(PowerProfile),
            "performance runs flat out, balanced slows under pressure, efficiency keeps to 10 tokens a second.",
            _choice(PowerProfile), ("completion", "power_profile"),
        ),
        Option(
            "max_tokens_per_sec", "0.01 to 1000000, or none", "Write at most this many tokens a second.",
            _rate_or_none, ("completion", "max_tokens_per_sec"),
        ),
        Option(
            "speculate", "a whole number, 0 to 15, or auto",
            "Guess up to so many next tokens from the text so far and check them at once; auto: as many as pay.",
            _count_or_auto, ("completion", "speculation"), "auto",
        ),
        Option(
            "max_thinking_tokens", _COUNT_OR_NONE,
            "End the model's thinking after this many tokens and let it answer; none lets it think on.",
            _count_or_none, ("max_thinking_tokens",),
        ),
        Option(
            "think_tags", "an opening and a closing tag, such as <think> </think>, or none",
            "Tags around the model's thinking; none takes those its template mentions.",
            _tags_or_none, ("think_tags",),
        ),
    ]  # fmt: skip


OPTIONS: Final[Mapping[str, Option]] = MappingProxyType({row.name: row for row in _rows()})
"""Every option by name, in the order in which help shows them."""
