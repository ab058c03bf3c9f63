"""How the screen behaves, as options in one table, which the flags and the config file follow.

Light: no painter is loaded for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

from turbospark_chat.errors import SettingError
from turbospark_chat.terminal.theme import THEMES


class Editing(StrEnum):
    """The keys that edit the input."""

    EMACS = "emacs"
    VI = "vi"


class Thinking(StrEnum):
    """How much of a model's thinking is shown."""

    SHOW = "show"
    FOLD = "fold"
    HIDE = "hide"


@dataclass(frozen=True, slots=True)
class InterfaceOptions:
    """How a chat shows itself and what it keeps."""

    think: Thinking = Thinking.FOLD
    save: bool = True
    markdown: bool = True
    toolbar: bool = True
    editing: Editing = Editing.EMACS
    theme: str = "default"  # a name in THEMES
    eager: bool = True


@dataclass(frozen=True, slots=True)
class InterfaceOption:
    """One row: a field of `InterfaceOptions`, and every value it takes by the word for it."""

    name: str
    help: str
    values: Mapping[str, Any]

    @property
    def range_text(self) -> str:
        """The values in words, such as `emacs or vi`."""
        words = list(self.values)
        return " or ".join(words) if len(words) == 2 else "one of " + ", ".join(words)

    def show(self, options: InterfaceOptions) -> str:
        """Return the value in force as a user would type it."""
        return next(word for word, value in self.values.items() if value == getattr(options, self.name))

    def change(self, options: InterfaceOptions, text: str) -> InterfaceOptions:
        """Return options with this one changed to what `text` spells.

        Raises:
            SettingError: not a value of this option.
        """
        word = text.strip().lower()
        word = {"true": "on", "yes": "on", "false": "off", "no": "off"}.get(word, word)
        if word not in self.values:
            raise SettingError(f"{self.name} is {text!r}: give {self.range_text}")
        return replace(options, **{self.name: self.values[word]})


_SWITCH: Final = {"on": True, "off": False}

INTERFACE_OPTIONS: Final[Mapping[str, InterfaceOption]] = MappingProxyType(
    {
        row.name: row
        for row in (
            InterfaceOption(
                "think", "Show the model's thinking, fold it to one line, or hide it.",
                {word.value: word for word in Thinking},
            ),
            InterfaceOption(
                "save", "Store the conversation as it goes, to be resumed and searched.", _SWITCH
            ),
            InterfaceOption(
                "markdown", "Style the Markdown of replies; off shows them as they are written.", _SWITCH
            ),
            InterfaceOption("toolbar", "Show the status bar below the input.", _SWITCH),
            InterfaceOption(
                "editing", "The keys that edit the input.", {word.value: word for word in Editing}
            ),
            InterfaceOption(
                "theme", "The colours of the screen; plain has none.", {name: name for name in THEMES}
            ),
            InterfaceOption(
                "eager", "Let the model read what is typed before it is sent, while it is idle.", _SWITCH
            ),
        )
    }
)  # fmt: skip
"""Every option by name, in the order in which help shows them."""
