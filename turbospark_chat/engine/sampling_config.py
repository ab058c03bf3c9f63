"""The sampling settings: one frozen value, and the one table of their defaults, ranges and help sentences.

`/set` and the README's options table follow `SETTINGS`; `flags` repeats its names and helps, held to it by a test.
Knows no vocabulary, so the sampler checks the ids in `logit_bias`. Imports no numpy.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Final, TypeAlias, cast

from turbospark_chat.errors import SettingError

SettingValue: TypeAlias = float | int | Mapping[int, float] | None


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. Both ends of the range are allowed."""

    name: str
    kind: type[Any]  # int, float, or dict for a bias by token id
    default: SettingValue  # None: the setting may be left unset
    low: float  # of a logit_bias: of each bias
    high: float | None  # None: no upper end
    help: str

    @property
    def range_text(self) -> str:
        """The range in words, such as `0 to 1` or `0 or more`."""
        return f"{self.low:g} or more" if self.high is None else f"{self.low:g} to {self.high:g}"

    def check(self, value: object) -> SettingValue:
        """Return `value` as this setting's kind.

        Raises:
            SettingError: not of that kind or outside the range.
        """
        if value is None and self.default is None:
            return None
        if self.kind is dict:
            return self._check_biases(value)
        accepted = Integral if self.kind is int else Real
        if not isinstance(value, accepted) or not self._in_range(value):
            raise self._refusal(value)
        return cast(SettingValue, self.kind(value))

    def parse(self, text: str) -> SettingValue:
        """Return the value that `text` spells: a number, `none`, or biases as `2:-100,15:5`, braces optional.

        Raises:
            SettingError: not of this setting's kind or outside the range.
        """
        text = text.strip()
        if text.lower() == "none" and (self.default is None or self.kind is dict):
            return self.default
        try:
            value = _parse_biases(text) if self.kind is dict else self.kind(text)
        except ValueError:
            raise self._refusal(text) from None
        return self.check(value)

    def _check_biases(self, value: object) -> Mapping[int, float]:
        if not isinstance(value, Mapping):
            raise self._refusal(value)
        biases = {}
        for key, bias in value.items():
            token_id = _to_token_id(key)
            if token_id < 0 or not isinstance(bias, Real) or not self._in_range(bias):
                raise self._refusal({key: bias})
            biases[token_id] = float(bias)
        return MappingProxyType(biases)

    def _in_range(self, number: Any) -> bool:
        # NaN fails the comparison. A bool is an int to Python, but never meant as one here.
        return (
            not isinstance(number, bool) and self.low <= number and (self.high is None or number <= self.high)
        )

    def _refusal(self, value: object) -> SettingError:
        noun = {int: "a whole number", float: "a number", dict: "token ids with a bias each"}[self.kind]
        unset = " or none" if self.default is None else ""
        return SettingError(f"{self.name} is {value!r}: give {noun}, {self.range_text}{unset}")


def _to_token_id(key: object) -> int:
    """Read a key of `logit_bias`: an int, or its spelling, as in JSON; -1 for neither."""
    try:
        return int(key) if isinstance(key, Integral | str) else -1
    except ValueError:
        return -1


def _parse_biases(text: str) -> dict[str, float]:
    pairs = [pair.partition(":") for pair in text.strip("{} ").split(",") if pair.strip()]
    return {key.strip(" '\""): float(bias) for key, _, bias in pairs}


def _setting(default: SettingValue, kind: type, low: float, high: float | None, help: str) -> Any:
    row = {"default": default, "kind": kind, "low": low, "high": high, "help": help}
    # A mapping has no hash; equality still compares it.
    return field(default_factory=lambda: default, hash=kind is not dict, metadata=row)


@dataclass(frozen=True, slots=True)
class SamplingConfig:
    """How the next token is chosen, checked when made. `SETTINGS` describes each field.

    Raises:
        SettingError: a value outside its range; the message names the field, the value and the range.
    """

    temperature: float = _setting(
        0.7, float, 0, 100, "Randomness: 0 always takes the likeliest token, more is more varied."
    )
    top_k: int = _setting(40, int, -1, None, "Keep only this many of the likeliest tokens; 0 or -1 is all.")
    top_p: float = _setting(
        0.95, float, 0, 1, "Keep the fewest likeliest tokens that reach this probability together; 1 is all."
    )
    min_p: float = _setting(
        0.05, float, 0, 1, "Drop tokens below this fraction of the likeliest one's probability; 0 drops none."
    )
    repetition_penalty: float = _setting(
        1.0, float, 0.01, 100, "Make recently seen tokens less likely by this factor; 1 changes nothing."
    )
    repetition_window: int = _setting(
        64, int, -1, None, "Latest tokens, prompt included, the repetition penalty sees; -1 is all, 0 none."
    )
    presence_penalty: float = _setting(
        0.0, float, -2, 2, "Subtract this from the logit of every token already in the reply."
    )
    frequency_penalty: float = _setting(
        0.0, float, -2, 2, "Subtract this for each time a token already occurs in the reply."
    )
    logit_bias: Mapping[int, float] = _setting(
        MappingProxyType({}), dict, -100, 100, "Add to token ids' logits: ID:BIAS,...; -100 bans, 100 forces."
    )
    seed: int | None = _setting(
        None, int, 0, None, "Same seed, same reply; none takes a fresh one for every reply."
    )

    def __post_init__(self) -> None:
        """Check every field and freeze it in its own kind."""
        for setting in SETTINGS.values():
            object.__setattr__(self, setting.name, setting.check(getattr(self, setting.name)))


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType(
    {row.name: Setting(name=row.name, **row.metadata) for row in fields(SamplingConfig)}
)
"""Every sampling setting by name, in the order in which help shows them."""
