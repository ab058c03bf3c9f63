"""The one error family. Each message is one line: what was wrong, the value, what to try.

TurboSparkError                  exit 1: anything the program can explain
├── UsageError                   exit 2: the request itself is wrong
│   ├── SettingError             a setting outside its range (also a ValueError)
│   ├── ConfigError              the config file cannot be read or says what it may not
│   ├── EmptyPromptError         no token to run
│   └── ZeroBudgetError          no token to generate
├── ModelFileError               exit 3: missing or damaged model file
│   ├── UnsupportedModelError    a sound file this program cannot run
│   └── UnknownModelError        neither a catalogue name nor a path
├── DoesNotFitError              exit 4: too large
│   ├── ContextOverflowError     more tokens than the context length holds
│   │   └── WindowOverflowError  a conversation does; in chat.window, with the turns to leave out
│   └── MemoryOverflowError      more bytes than the machine has free
├── TemplateError                the chat template failed
├── DownloadError                a model could not be fetched
├── StoreError                   the stored conversations cannot be read or written
├── TranscriptError              a transcript file cannot be read or written
├── StateFileError               a file of computed positions cannot be used or written
├── TokenIdError                 a token id outside the vocabulary
├── NoFiniteLogitsError          a forward pass gave nothing to choose from
├── BenchError                   a measurement could not be made or read
├── KernelsUnavailableError      nothing compiles here; numpy computes instead
└── ForkedEngineError            the engine was used in a forked child

Raised where the fact is known; shown in `cli` (one line on stderr, the exit code) and in the REPL (one line,
then the prompt again). Nothing else catches them to print.
"""

from pathlib import Path


class TurboSparkError(Exception):
    """Base of every error shown to the user."""

    exit_code = 1


class UsageError(TurboSparkError):
    """The command or option cannot mean anything."""

    exit_code = 2


class SettingError(UsageError, ValueError):
    """A setting has a value outside its range."""


class ConfigError(UsageError):
    """The config file cannot be read, or a line of it means nothing."""


class EmptyPromptError(UsageError):
    """The prompt has no tokens, so there is nothing to run."""

    def __init__(self) -> None:
        super().__init__("the prompt is empty: 0 tokens; type a message or pipe one in")


class ZeroBudgetError(UsageError):
    """No new token was allowed, so there is nothing to generate."""

    def __init__(self, max_new_tokens: int) -> None:
        super().__init__(f"nothing to generate: max tokens is {max_new_tokens}; allow at least 1")
        self.max_new_tokens = max_new_tokens


class ModelFileError(TurboSparkError):
    """A model file is missing, truncated or damaged."""

    exit_code = 3

    def __init__(self, path: Path | str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = Path(path)
        self.problem = problem


class UnsupportedModelError(ModelFileError):
    """The file is sound, but its architecture or a tensor type is not implemented."""


class UnknownModelError(ModelFileError):
    """MODEL names no file and nothing in the catalogue."""


class DoesNotFitError(TurboSparkError):
    """The request is larger than the context length or the memory."""

    exit_code = 4


class ContextOverflowError(DoesNotFitError):
    """The prompt and the tokens asked for exceed the context length."""

    def __init__(self, n_prompt: int, n_reserved: int, context_length: int, *, advice: str) -> None:
        super().__init__(
            f"does not fit the context: {n_prompt} prompt tokens and {n_reserved} for the reply"
            f" exceed {context_length}; {advice}"
        )
        self.n_prompt = n_prompt
        self.n_reserved = n_reserved
        self.context_length = context_length


class MemoryOverflowError(DoesNotFitError):
    """The weights or the KV cache would not fit the memory that is free."""

    def __init__(self, what: str, needed: int, available: int, *, advice: str) -> None:
        super().__init__(
            f"does not fit the memory: {what} needs {needed / 1e6:,.0f} MB, {available / 1e6:,.0f} MB is free; {advice}"
        )
        self.needed = needed
        self.available = available


class TemplateError(TurboSparkError):
    """The model's chat template could not be parsed or rendered."""


class DownloadError(TurboSparkError):
    """A model could not be downloaded, or was not what the catalogue says."""


class StoreError(TurboSparkError):
    """The stored conversations cannot be opened, read or written, or do not hold what was asked for."""


class TranscriptError(TurboSparkError):
    """A transcript cannot be written to a file, or a file is none."""


class StateFileError(TurboSparkError):
    """A file of computed positions is damaged or was computed with something else, or cannot be written."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class TokenIdError(TurboSparkError):
    """A token id lies outside the model's vocabulary."""

    def __init__(self, token_id: int, vocab_size: int) -> None:
        super().__init__(f"token id {token_id} is outside the vocabulary of {vocab_size}")
        self.token_id = token_id


class NoFiniteLogitsError(TurboSparkError):
    """Every logit was NaN or minus infinity, so no token can be chosen."""


class BenchError(TurboSparkError):
    """Something that was to be measured failed, or a report cannot be read."""


class KernelsUnavailableError(TurboSparkError):
    """Compiled kernels cannot be had on this machine. The loader answers it by computing in numpy."""


class ForkedEngineError(TurboSparkError):
    """The engine was used in a child made by fork, where its threads do not exist."""


class ModelWarning(UserWarning):
    """Something about a model or its output is odd but was worked around; shown to the user as one line."""
