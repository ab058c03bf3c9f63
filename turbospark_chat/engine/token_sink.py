"""Where sampled tokens go: detokenized, checked for stop strings, reported. Knows no logits and no cache."""

from turbospark_chat.engine.detokenizer import Detokenizer
from turbospark_chat.engine.progress import ProgressSink, Tail, Token
from turbospark_chat.engine.stop_matcher import StopMatcher


class TokenSink:
    """Turns ids into text events, in order, and notices when a stop string is complete."""

    def __init__(self, detokenizer: Detokenizer, stops: StopMatcher, on_progress: ProgressSink) -> None:
        self._detokenizer = detokenizer
        self._stops = stops
        self._on_progress = on_progress
        self._token_ids: list[int] = []

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every id committed so far."""
        return tuple(self._token_ids)

    @property
    def n_tokens(self) -> int:
        """How many ids were committed so far."""
        return len(self._token_ids)

    @property
    def stop_string(self) -> str | None:
        """The stop string that the text has reached, if any."""
        return self._stops.matched

    def commit(self, token_id: int) -> None:
        """Take one sampled id and report the text that became visible."""
        text = self._stops.push(self._detokenizer.push(token_id))
        self._token_ids.append(token_id)
        self._on_progress(Token(token_id, text))

    def finish(self) -> None:
        """Report what the detokenizer and the stop matcher still hold, as one Tail. Call it once, at the end."""
        has_partial_character = self._detokenizer.has_partial_character
        text = self._stops.push(self._detokenizer.finish()) + self._stops.finish()
        self._on_progress(Tail(text, has_partial_character and self.stop_string is None))
