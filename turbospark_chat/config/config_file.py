"""The config file: TOML whose keys are the settings among the flags, and a table `[styles]`.

Values are turned into the text that `/set` would read, so that an option is read alike from every source.
What is wrong with the file is gathered, not raised: what uses no settings must work with a broken file.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from turbospark_chat.config.flags import FLAGS, SETTINGS, Flag
from turbospark_chat.config.setting_entry import Entry, Source
from turbospark_chat.errors import ConfigError
from turbospark_chat.regular_file import read_regular_file
from turbospark_chat.settings import CONFIG_VARIABLE, Locations

_MOST_BYTES: Final = 1_000_000
_STYLES: Final = "styles"
_NONE: Final[Mapping[str, Entry]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """What the file says. `problems` are whole messages: in a file that has any, nothing else may be relied on."""

    path: Path
    exists: bool = False
    settings: Mapping[str, Entry] = field(default_factory=lambda: _NONE)
    styles: Mapping[str, Entry] = field(default_factory=lambda: _NONE)
    problems: tuple[str, ...] = ()

    def check(self) -> None:
        """Do nothing if the file is sound.

        Raises:
            ConfigError: its first problem.
        """
        if self.problems:
            raise ConfigError(self.problems[0])


def read_config_file(path: Path, *, must_exist: bool = False) -> ConfigFile:
    """Return what a file says; one that does not exist says nothing, and is a problem only if it `must_exist`."""
    try:
        text = read_regular_file(path, most_bytes=_MOST_BYTES).decode("utf-8-sig")
    except (FileNotFoundError, NotADirectoryError) as error:
        return ConfigFile(path, problems=(f"{path}: {error.strerror}",) if must_exist else ())
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        return ConfigFile(path, exists=True, problems=(f"{path}:{line}: not UTF-8 text; save it as UTF-8",))
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        reason = error.strerror if isinstance(error, OSError) else error
        return ConfigFile(path, exists=True, problems=(f"{path}: cannot be read: {reason}",))
    return _read_text(path, text)


def read_user_config() -> ConfigFile:
    """Return what the user's config file says; it need not exist, unless a variable names it."""
    return read_config_file(Locations.of_user().config_file, must_exist=bool(os.environ.get(CONFIG_VARIABLE)))


def _read_text(path: Path, text: str) -> ConfigFile:
    import tomllib

    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of which tomllib's own is one
        problem = " ".join(str(error).split()) or type(error).__name__
        return ConfigFile(path, exists=True, problems=(f"{path}: not TOML: {problem}",))
    reader = _Reader(path, text)
    settings = dict(reader.settings(table))
    styles = dict(reader.styles(table.get(_STYLES, {})))
    return ConfigFile(path, True, settings, styles, tuple(reader.problems))


class _Reader:
    """Goes through a parsed file and notes what may not be there."""

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._lines = path, text.split("\n")
        self.problems: list[str] = []

    def settings(self, table: Mapping[str, Any]) -> Iterator[tuple[str, Entry]]:
        """Yield what is set, by the name of its flag."""
        seen: dict[str, str] = {}
        for key, value in table.items():
            name = key.replace("-", "_")
            flag = SETTINGS.get(name)
            if key == _STYLES:
                continue
            if flag is None:
                self._refuse(key, _why_unknown(key, value))
            elif name in seen:
                self._refuse(key, f"`{key}` is `{seen[name]}` again; leave one out")
            elif (text := _spell(flag, value)) is None:
                self._refuse(key, f"{name} is {_shown(value)}: give {_kinds(flag)}")
            else:
                seen[name] = key
                yield name, Entry(text, Source.FILE, self._place(key))

    def styles(self, table: object, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        """Yield the styles; a table within the table is a dotted name, as TOML has it."""
        if not isinstance(table, Mapping):
            self._refuse(_STYLES, f"`{_STYLES}` is a table: begin it with `[{_STYLES}]`")
            return
        for key, value in table.items():
            if isinstance(value, Mapping):
                yield from self.styles(value, f"{prefix}{key}.")
            elif key in SETTINGS and not prefix:
                self._refuse(key, f"`{key}` is a setting, not a style; write it above `[{_STYLES}]`")
            elif isinstance(value, str):
                yield f"{prefix}{key}", Entry(value, Source.FILE, self._place(key))
            else:
                self._refuse(key, f'style {prefix}{key} is {_shown(value)}: give a text such as "bold red"')

    def _refuse(self, key: str, problem: str) -> None:
        self.problems.append(f"{self._place(key)}: {' '.join(problem.split())}")

    def _place(self, key: str) -> str:
        """Name the line of a key, unless more than one line looks like it: the parser does not tell."""
        pattern = re.compile(rf"""\s*\[?\s*(["']?)([\w-]+\s*\.\s*)*{re.escape(key)}\1\s*[\].=]""")
        found = [number for number, line in enumerate(self._lines, 1) if pattern.match(line)]
        return f"{self._path}:{found[0]}" if len(found) == 1 else str(self._path)


def _why_unknown(key: str, value: object) -> str:
    name = key.replace("-", "_")
    of_one_run = {flag.name: flag for flag in FLAGS if not flag.is_setting}
    if name in of_one_run:
        return f"`{key}` belongs to one run; give `{of_one_run[name].spelling}` on the command line"
    if isinstance(value, Mapping):
        return f"unknown table `[{key}]`: there is only `[{_STYLES}]`, and settings stand above it"
    close = get_close_matches(name, SETTINGS, n=1)
    advice = f"did you mean `{close[0]}`?" if close else "`ts config` lists those there are"
    return f"unknown setting `{key}`: {advice}"


def _kinds(flag: Flag) -> str:
    if flag.is_repeatable:
        return 'a text, or several as ["a", "b"]'
    if flag.is_text:
        return 'a text, as in "..."'
    return "a text, or a table of ids or texts" if flag.name == "logit_bias" else "a single value"


def _spell(flag: Flag, value: object) -> str | tuple[str, ...] | None:
    """Return what a user would type for a value of the file, or None where it is of another kind.

    Whether it is a value of that setting is for the one who reads it.
    """
    if flag.name == "logit_bias" and isinstance(value, Mapping):
        return _spell_biases(value)
    if flag.is_repeatable and isinstance(value, list):
        # In quotes, and so taken as it stands.
        return tuple(map(json.dumps, value)) if all(isinstance(text, str) for text in value) else None
    if not isinstance(value, str if flag.is_text else str | bool | int | float):
        return None
    text = value if isinstance(value, str) else json.dumps(value)
    return (text,) if flag.is_repeatable else text


def _spell_biases(biases: Mapping[str, object]) -> str | None:
    spelled = []
    for key, bias in biases.items():
        quote = '"' if "'" in key else "'"
        if isinstance(bias, bool) or not isinstance(bias, int | float) or quote in key:
            return None
        spelled.append(f"{quote}{key}{quote}:{bias!r}")  # quoted digits are an id
    return ",".join(spelled) or "none"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else text[:39] + "…"
