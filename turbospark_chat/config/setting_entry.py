"""One value that was set, and by whom. Light, and knows no flag."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from turbospark_chat.errors import ConfigError, SettingError


class Source(Enum):
    """Who may set a value, in rising strength."""

    DEFAULT = "default"
    FILE = "config file"
    VARIABLE = "variable"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True)
class Entry:
    """A value, as `/set` would read it, and where it was set: `path:line`, a variable, or just who set it."""

    value: Any
    source: Source
    place: str

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Let a complaint about the value say where it was set; what was typed needs no telling.

        Raises:
            ConfigError, SettingError: the complaint, of a value from the file and from a variable.
        """
        try:
            yield
        except SettingError as error:
            if self.source is Source.FILE:
                raise ConfigError(f"{self.place}: {error}") from error
            if self.source is Source.VARIABLE:
                raise SettingError(f"{self.place}: {error}") from error
            raise
