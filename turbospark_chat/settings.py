"""Where the user's files are. Knows nothing of what is in them.

Every command imports this file, so what is heavy is imported where it is used.
"""

import os
from dataclasses import dataclass
from pathlib import Path

_APP_NAME = "turbospark_chat"
MODELS_DIR_VARIABLE = "TS_MODELS_DIR"


@dataclass(frozen=True, slots=True)
class Locations:
    """Absolute paths of the user's files. Nothing need exist: whoever writes a file creates its folder."""

    models: Path
    history_file: Path

    @classmethod
    def of_user(cls) -> "Locations":
        """Return the platform's usual places for this user; `TS_MODELS_DIR` overrides that of the models.

        Models can be fetched again, so they are cache; what was typed cannot, and is state.
        """
        import platformdirs

        models = os.environ.get(MODELS_DIR_VARIABLE)
        return cls(
            models=Path(models).expanduser().absolute()
            if models
            else platformdirs.user_cache_path(_APP_NAME, appauthor=False) / "models",
            history_file=platformdirs.user_state_path(_APP_NAME, appauthor=False) / "history",
        )
