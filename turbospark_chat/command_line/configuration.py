"""From what was set to options, each read and checked here, and `ts config`, which shows where each value is from.

Part of the composition root: it knows the sources of values and the tables of options, and runs nothing.
"""

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from turbospark_chat.chat.bias_text import is_text_bias
from turbospark_chat.chat.options import OPTIONS, ChatOptions, Option
from turbospark_chat.chat.warm_states import DEFAULT_MEGABYTES
from turbospark_chat.config.config_file import read_user_config
from turbospark_chat.config.flag_values import FlagValues, untyped
from turbospark_chat.config.flags import SETTINGS, Flag
from turbospark_chat.config.setting_entry import Entry, Source
from turbospark_chat.errors import SettingError, UsageError
from turbospark_chat.models.catalog import DEFAULT_MODEL
from turbospark_chat.models.retention import WINDOW_SLACK
from turbospark_chat.terminal.interface_options import INTERFACE_OPTIONS, InterfaceOptions
from turbospark_chat.terminal.theme import THEMES, Theme, find_theme
from turbospark_chat.threads import read_threads

EXIT_UNSOUND: Final = 2
DEFAULT_SLOTS: Final = 4
_UNSET: Final = (None, ())


def read_chat_options(values: FlagValues) -> ChatOptions:
    """Return the options of a turn. Biases by text wait for a tokenizer.

    Raises:
        SettingError, ConfigError: a value that an option does not take.
    """
    options = ChatOptions()
    for name, row in OPTIONS.items():
        if values[name] not in _UNSET and not (name == "logit_bias" and is_text_bias(values[name])):
            options = values.read(name, partial(_change, row, options))
    return options


def read_interface_options(values: FlagValues) -> InterfaceOptions:
    """Return how the screen is to behave.

    Raises:
        SettingError, ConfigError: a value that an option does not take.
    """
    options = InterfaceOptions()
    for name, row in INTERFACE_OPTIONS.items():
        if values.get(name) is not None:
            options = values.read(name, partial(row.change, options))
    return options


def read_theme(values: FlagValues) -> Theme:
    """Return the theme, with the styles of the config file in it.

    Raises:
        SettingError, ConfigError: no such theme, or no such style.
    """
    theme = find_theme(read_interface_options(values).theme)
    for name, entry in values.styles.items():
        with entry.blamed():
            theme = theme.with_style(name, entry.value)
    return theme


def read_ctx(text: str | None) -> int | None:
    """Return the context length that a user asks for, None where none is.

    Raises:
        SettingError: not a whole number above 0.
    """
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise SettingError(f"ctx is {text[:20]!r}: give a whole number above 0")
    return int(text)


def read_slots(text: str | None) -> int:
    """Return how many conversations' states are kept in memory beside the one in use.

    Raises:
        SettingError: not a whole number from 0 to 1000.
    """
    if text is None:
        return DEFAULT_SLOTS
    if not text.isdecimal() or len(text) > 4 or int(text) > 1000:
        raise SettingError(f"slots is {text[:20]!r}: give a whole number from 0 to 1000")
    return int(text)


def read_window_slack(text: str | None) -> int:
    """Return how many positions a sliding window can go back.

    Raises:
        SettingError: not a whole number.
    """
    if text is None:
        return WINDOW_SLACK
    if not text.isdecimal() or len(text) > 9:
        raise SettingError(f"window_slack is {text[:20]!r}: give a whole number, 0 or more")
    return int(text)


def read_state_budget(text: str | None) -> int:
    """Return how many MB of disk space computed states may take.

    Raises:
        SettingError: not a whole number.
    """
    if text is None:
        return DEFAULT_MEGABYTES
    if not text.isdecimal() or len(text) > 9:
        raise SettingError(f"state_budget is {text[:20]!r}: give a whole number of MB; 0 keeps none")
    return int(text)


def read_n(text: str | None) -> int:
    """Return how many answers a user asks for, 1 where nothing is said.

    Raises:
        SettingError: not a whole number from 1 to 1000.
    """
    if text is None:
        return 1
    if not text.isdecimal() or len(text) > 4 or not 1 <= int(text) <= 1000:
        raise SettingError(f"n is {text[:20]!r}: give a whole number from 1 to 1000")
    return int(text)


_READERS: Final[Mapping[str, Callable[[Any], object]]] = MappingProxyType(
    {
        "ctx": read_ctx,
        "threads": read_threads,
        "slots": read_slots,
        "window_slack": read_window_slack,
        "state_budget": read_state_budget,
    }
)
"""What reads a setting that is no row of a table of options."""


def run_config(*, is_path_only: bool) -> int:
    """Show every setting, its value and where it is from; of whatever is wrong, one line each on stderr."""
    from turbospark_chat.terminal.harmless import harmless
    from turbospark_chat.terminal.listing import print_table

    config = read_user_config()
    if is_path_only:
        print(config.path)
        return 0
    problems = list(config.problems)
    print(f"config file  {harmless(str(config.path))}{'' if config.exists else '  does not exist'}")
    rows: list[tuple[str, ...]] = []
    for flag in SETTINGS.values():
        entry = untyped(flag, config, os.environ)
        rows += _row(flag.name, entry, partial(_show, flag), problems)
    for name, entry in config.styles.items():
        rows += _row(f"styles.{name}", entry, partial(_show_style, name), problems)
    print_table(rows)
    for problem in problems:
        print(harmless(f"error: {problem}"), file=sys.stderr)
    return EXIT_UNSOUND if problems else 0


def _row(
    name: str, entry: Entry, show: Callable[[Any], str], problems: list[str]
) -> list[tuple[str, str, str]]:
    """Return the row of a value, or none and note what is wrong with it."""
    try:
        with entry.blamed():
            place = entry.place.rpartition(os.sep)[2] if entry.source is Source.FILE else entry.place
            return [(name, show(entry.value), place)]
    except UsageError as error:
        problems.append(str(error))
    return []


def _show(flag: Flag, value: Any) -> str:
    """Return a value as a user would type it, once it is read and found to be one."""
    is_set = value not in _UNSET
    if flag.table == "turn":
        if flag.name == "logit_bias" and is_set and is_text_bias(value):
            return str(value)
        row, options = OPTIONS[flag.name], ChatOptions()
        return row.show(_change(row, options, value) if is_set else options)
    if flag.table == "interface":
        choice, screen = INTERFACE_OPTIONS[flag.name], InterfaceOptions()
        return choice.show(choice.change(screen, value) if is_set else screen)
    if not is_set and flag.name == "model":
        return DEFAULT_MODEL
    reader = _READERS.get(flag.name)
    read = value if reader is None else reader(value if is_set else None)
    return "–" if read in (*_UNSET, None) else str(read)


def _show_style(name: str, style: str) -> str:
    return THEMES["default"].with_style(name, style).styles[name]


def _change(row: Option, options: ChatOptions, value: str | tuple[str, ...]) -> ChatOptions:
    """Return options with one changed to a text, or to what several together spell."""
    if isinstance(value, str):
        return row.change(options, value)
    return row.replace(options, tuple(part for text in value for part in row.parse(text)))
