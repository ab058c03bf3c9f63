"""What a run was told: in rising strength by the defaults, the config file, the environment and the command line.

A setting is the text that `/set` would read, whoever it is from; a flag that is none is as the command line has it.
Knows no option and checks no value; of a value that somebody else refuses it says where it was set.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from turbospark_chat.config.config_file import ConfigFile
from turbospark_chat.config.flags import Flag, flags_of
from turbospark_chat.config.setting_entry import Entry, Source

T = TypeVar("T")


class FlagValues(Mapping[str, Any]):
    """The values of a command's flags by name. A setting is a text, several of them, or None where nobody set it."""

    def __init__(
        self,
        command: str,
        typed: Mapping[str, Any],
        config: ConfigFile,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        """Gather what is set.

        Raises:
            ConfigError: the config file is not sound.
        """
        config.check()
        self.styles = config.styles
        self._entries = {
            flag.name: _typed(flag, typed.get(flag.name)) or untyped(flag, config, environment)
            for flag in flags_of(command)
        }

    def __getitem__(self, name: str) -> Any:
        return self._entries[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def is_typed(self, name: str) -> bool:
        """Whether the command line sets it."""
        return self._entries[name].source is Source.COMMAND_LINE

    def read(self, name: str, reader: Callable[[Any], T]) -> T:
        """Return what `reader` makes of a value.

        Raises:
            SettingError, ConfigError: `reader` refuses it.
        """
        entry = self._entries[name]
        with entry.blamed():
            return reader(entry.value)


def untyped(flag: Flag, config: ConfigFile, environment: Mapping[str, str]) -> Entry:
    """Return the value of a flag that is not on the command line; an empty variable is as good as none."""
    text = environment.get(flag.variable, "") if flag.is_setting else ""
    if text:
        readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        value = (readable,) if flag.is_repeatable else readable
        return Entry(value, Source.VARIABLE, flag.variable)
    unset = () if flag.is_repeatable else None if flag.is_setting or flag.metavar else False
    return config.settings.get(flag.name) or Entry(unset, Source.DEFAULT, Source.DEFAULT.value)


def _typed(flag: Flag, value: Any) -> Entry | None:
    """Return what the command line says of a flag, None where it says nothing."""
    if value is None or value == [] or (value is False and not flag.is_setting):
        return None
    if isinstance(value, bool) and flag.is_setting:
        value = "on" if value else "off"
    elif flag.is_repeatable:
        value = tuple(value)
    return Entry(value, Source.COMMAND_LINE, Source.COMMAND_LINE.value)
