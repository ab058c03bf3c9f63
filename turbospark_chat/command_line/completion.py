"""What a shell offers where a value is due. As quick as help: nothing is loaded that the value does not need.

Where nothing is offered, the shell offers files. Whatever is wrong with a file is left to the command to say.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from turbospark_chat.config.flags import Flag
from turbospark_chat.errors import TurboSparkError

Offer = tuple[str, str]  # a value, and what it is
Completer = Callable[[str], list[Offer]]

N_CONVERSATIONS: Final = 20  # offered, those used last


def completer_of(flag: Flag) -> Completer | None:
    """Return what completes the value of a flag, None where the shell knows best."""
    if flag.choices:
        return lambda incomplete: [(choice, "") for choice in flag.choices]
    return {"model": complete_model, "resume": complete_conversation}.get(flag.name)


def complete_model(incomplete: str) -> list[Offer]:
    """Offer the models of the catalogue, and GGUF files in the folder that is typed and in those below it."""
    from turbospark_chat.models.catalog import CATALOG

    return [*((entry.name, entry.description) for entry in CATALOG.values()), *_gguf_files(incomplete)]


def _gguf_files(typed: str) -> Iterator[Offer]:
    spelled, _, _ = typed.rpartition("/")
    prefix = spelled + "/" if "/" in typed else ""
    folder = Path(prefix).expanduser()
    for pattern in ("*.gguf", "*/*.gguf"):
        for path in sorted(folder.glob(pattern)):
            text = prefix + path.relative_to(folder).as_posix()
            if not any(letter.isspace() for letter in text):  # the shell would take it for two
                yield text, ""


def complete_form(incomplete: str) -> list[Offer]:
    """Offer the forms of a transcript."""
    return [("md", "Markdown"), ("json", ""), ("html", "")]


def complete_conversation(incomplete: str) -> list[Offer]:
    """Offer the stored conversations that were used last."""
    from turbospark_chat.command_line.archive_commands import known_conversations
    from turbospark_chat.terminal.harmless import harmless

    try:
        known = known_conversations(N_CONVERSATIONS)
    except TurboSparkError:
        return []
    return [("last", "the one used last"), *((str(one.id), harmless(one.title)) for one in known)]


def complete_state(incomplete: str) -> list[Offer]:
    """Offer the computed states on disk."""
    from turbospark_chat.chat.warm_states import WarmStates
    from turbospark_chat.settings import Locations

    return [
        (state.reference, f"{state.n_bytes / 1e6:,.1f} MB")
        for state in WarmStates(Locations.of_user().states).list()
    ]
