"""A reply while it streams: sorted into thinking and answer, passed on, and kept at the end."""

from dataclasses import replace

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.prompt_encoder import PromptTokenizer, ids_saying
from turbospark_chat.chat.reasoning import Piece, ReasoningSplitter, join
from turbospark_chat.chat.turn_result import ReplyText, TurnEventSink
from turbospark_chat.engine.progress import Prefill, Progress, Tail


class Reply:
    """Collects what a run reports. `begun` is a turn whose reply is being continued."""

    def __init__(
        self,
        splitter: ReasoningSplitter,
        tokenizer: PromptTokenizer,
        on_event: TurnEventSink,
        begun: Turn | None = None,
    ) -> None:
        self._splitter, self._tokenizer, self._on_event = splitter, tokenizer, on_event
        self._generated = begun.generated if begun else ""
        self._token_ids = list(begun.generated_ids) if begun else []
        self._pieces = splitter.push(self._generated)  # shown before, but a tag may go on
        self._n_tokens = 0
        self._ends_in_half_a_character = False

    def take(self, progress: Progress) -> None:
        """Handle one event of the run."""
        if isinstance(progress, Prefill):
            self._on_event(progress)
            return
        pieces = self._splitter.push(progress.text)
        if isinstance(progress, Tail):
            pieces += self._splitter.finish()
            self._ends_in_half_a_character = progress.has_partial_character
        else:
            self._token_ids.append(progress.token_id)
            self._n_tokens += 1
        self._generated += progress.text
        self._pieces += pieces
        for piece in pieces or [Piece("", False)]:
            self._on_event(ReplyText(piece.text, piece.is_reasoning, self._n_tokens))

    def finished(self, user: Message, *, complete: bool) -> Turn:
        """Return the turn. Half a character where a reply was cut was shown as U+FFFD, but is not kept."""
        generated, pieces = self._generated, self._pieces
        if self._ends_in_half_a_character and not complete:
            generated = generated.removesuffix("\ufffd")
            pieces = [*pieces[:-1], replace(pieces[-1], text=pieces[-1].text.removesuffix("\ufffd"))]
        content, reasoning = join(pieces, is_reasoning=False), join(pieces, is_reasoning=True)
        reply = Message("assistant", content, reasoning=reasoning or None, complete=complete)
        return Turn(user, reply, generated, ids_saying(generated, self._token_ids, self._tokenizer))
