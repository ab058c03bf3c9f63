"""A reply while it streams: sorted into thinking and answer, passed on, and kept at the end."""

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.reasoning import Piece, ReasoningSplitter, join
from turbospark_chat.chat.turn_result import ReplyText, TurnEventSink
from turbospark_chat.engine.progress import Prefill, Progress, Tail


class Reply:
    """Collects what a run reports. `begun` is a turn whose reply is being continued."""

    def __init__(
        self, splitter: ReasoningSplitter, on_event: TurnEventSink, begun: Turn | None = None
    ) -> None:
        self._splitter, self._on_event = splitter, on_event
        self._pieces: list[Piece] = []
        self._generated = ""
        self._n_tokens = 0
        self._lost_character = False
        if begun is not None:
            splitter.push(begun.generated)  # its pieces were shown before; only the state matters
            self._pieces = [Piece(begun.reply.reasoning or "", True), Piece(begun.reply.content, False)]
            self._generated = begun.generated

    def take(self, progress: Progress) -> None:
        """Handle one event of the run."""
        if isinstance(progress, Prefill):
            self._on_event(progress)
            return
        pieces = self._splitter.push(progress.text)
        if isinstance(progress, Tail):
            pieces += self._splitter.finish()
            self._lost_character = progress.has_partial_character
        else:
            self._n_tokens += 1
        self._generated += progress.text
        self._pieces += pieces
        for piece in pieces or [Piece("", False)]:
            self._on_event(ReplyText(piece.text, piece.is_reasoning, self._n_tokens))

    def finished(self, user: Message, *, complete: bool) -> Turn:
        """Return the turn. A character cut in half was shown as U+FFFD, but is not kept."""
        content, reasoning = join(self._pieces, is_reasoning=False), join(self._pieces, is_reasoning=True)
        generated = self._generated
        if self._lost_character:
            content, generated = content.removesuffix("\ufffd"), generated.removesuffix("\ufffd")
        reply = Message("assistant", content, reasoning=reasoning or None, complete=complete)
        return Turn(user, reply, generated)
