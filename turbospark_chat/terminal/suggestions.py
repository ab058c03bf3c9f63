"""How the input may go on, by what was sent before: shown dim behind the cursor until it is taken or passed over."""

from collections.abc import Callable

from prompt_toolkit.auto_suggest import AutoSuggest, Suggestion
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document

from turbospark_chat.terminal.pastes import is_long


class HistorySuggestions(AutoSuggest):
    """Suggests the rest of the line of the latest input that began like this one; nothing while a question waits."""

    def __init__(self, is_asking: Callable[[], bool]) -> None:
        self._is_asking = is_asking

    def get_suggestion(self, buffer: Buffer, document: Document) -> Suggestion | None:
        """Return what may come after the text before the cursor."""
        text = document.text
        if not text.strip() or self._is_asking():
            return None
        for entry in reversed(buffer.history.get_strings()):
            if entry.startswith(text) and not is_long(entry):
                rest = entry[len(text) :].partition("\n")[0]
                if rest:
                    return Suggestion(rest)
        return None
