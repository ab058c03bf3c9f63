"""Where the user's files are, and what else the environment says. Knows nothing of what is in the files.

Every command imports this file, so what is heavy is imported where it is used.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from turbospark_chat.errors import SettingError

_APP_NAME = "turbospark_chat"
MODELS_DIR_VARIABLE = "TS_MODELS_DIR"
CACHE_DIR_VARIABLE = "TS_CACHE_DIR"
DATA_DIR_VARIABLE = "TS_DATA_DIR"
CONFIG_VARIABLE = "TS_CONFIG"
ARITHMETIC_VARIABLE = "TS_ARITHMETIC"


@dataclass(frozen=True, slots=True)
class Locations:
    """Absolute paths of the user's files. Nothing need exist: whoever writes a file creates its folder."""

    models: Path
    history_file: Path
    conversations: Path  # the database of stored ones
    states: Path  # what was computed for them
    config_file: Path
    kernels: Path  # compiled for this processor
    vocabularies: Path  # read from model files
    digests: Path  # of model files

    @classmethod
    def of_user(cls) -> "Locations":
        """Return the platform's usual places for this user, where no variable names others.

        Models, kernels and tokenizers can be made again, so they are cache; what was typed cannot, and is state,
        and neither can what was said, which is data.
        """
        import platformdirs

        data = _path(DATA_DIR_VARIABLE) or platformdirs.user_data_path(_APP_NAME, appauthor=False)
        cache = _path(CACHE_DIR_VARIABLE) or platformdirs.user_cache_path(_APP_NAME, appauthor=False)
        config = platformdirs.user_config_path(_APP_NAME, appauthor=False)
        return cls(
            models=_path(MODELS_DIR_VARIABLE) or cache / "models",
            history_file=platformdirs.user_state_path(_APP_NAME, appauthor=False) / "history",
            conversations=data / "conversations.db",
            states=data / "states",
            config_file=_path(CONFIG_VARIABLE) or config / "config.toml",
            kernels=cache / "kernels",
            vocabularies=cache / "vocabularies",
            digests=cache / "digests",
        )


def is_numpy_asked() -> bool:
    """Whether `TS_ARITHMETIC` asks for numpy in place of compiled kernels.

    Raises:
        SettingError: it asks for neither.
    """
    asked = os.environ.get(ARITHMETIC_VARIABLE) or "compiled"
    if asked not in ("compiled", "numpy"):
        raise SettingError(f"{ARITHMETIC_VARIABLE} is {asked[:20]!r}: give compiled or numpy")
    return asked == "numpy"


def _path(variable: str) -> Path | None:
    text = os.environ.get(variable)
    return Path(text).expanduser().absolute() if text else None
