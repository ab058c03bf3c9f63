"""A reply while it streams: sorted into thinking and answer, passed on, and kept at the end. Knows no engine run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.prompt_encoder import PromptTokenizer, ids_saying, without_half_characters
from turbospark_chat.chat.reasoning import Piece, ReasoningSplitter, ReasoningTags, join
from turbospark_chat.chat.turn_result import ReplyText, TurnEventSink
from turbospark_chat.engine.progress import Prefill, Progress, Tail, Token


@dataclass(frozen=True, slots=True)
class Closing:
    """What ends a thought where the model has not: text, and the ids that say it."""

    text: str
    ids: tuple[int, ...]

    @classmethod
    def of(cls, tags: ReasoningTags, tokenizer: PromptTokenizer) -> "Closing":
        """Return the closing tag on a line of its own; where it is a control token, it is that token."""
        encode = tokenizer.encode_continuation
        before, after = "\n", "\n\n"
        text = f"{before}{tags.closing}{after}"
        tag_id = tokenizer.control_ids.get(tags.closing)
        if tag_id is None:
            return cls(text, tuple(encode(text)))
        return cls(text, (*encode(before), tag_id, *encode(after)))


class Reply:
    """Collects what the runs of one reply report. `begun` is a turn whose reply is being continued."""

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
        self._n_begun = len(self._token_ids)

    @property
    def is_thinking(self) -> bool:
        """Whether a thought was opened and is not closed."""
        return self._splitter.is_thinking

    @property
    def token_ids(self) -> Sequence[int]:
        """The reply's ids so far, those it began with included."""
        return self._token_ids

    @property
    def n_tokens(self) -> int:
        """How many of them came since it began."""
        return len(self._token_ids) - self._n_begun

    def take(self, progress: Progress) -> None:
        """Handle one event of a run; a Tail ends the reply."""
        if isinstance(progress, Prefill):
            self._on_event(progress)
            return
        pieces = self._splitter.push(progress.text)
        if isinstance(progress, Token):
            self._token_ids.append(progress.token_id)
        else:
            pieces += self._splitter.finish()
        self._generated += progress.text
        self._show(pieces or [Piece("", self.is_thinking)])

    def end_thought(self, closing: Closing, tail: Tail | None = None) -> None:
        """Close the thought, so that the next run answers.

        `tail` is what the run that was stopped for it held back: half a character is left out, and where the rest
        closes the thought nothing is added. Without any run before, `closing` is something the reply began with.
        """
        if tail is not None:
            rest = tail.text.removesuffix("\ufffd") if tail.has_partial_character else tail.text
            self._generated += rest
            self._show(self._splitter.push(rest))
            self._token_ids = list(ids_saying(self._generated, self._token_ids, self._tokenizer))
        if self.is_thinking:
            self._generated += closing.text
            self._token_ids += closing.ids
            self._n_begun += len(closing.ids) if tail is None else 0
            self._show(self._splitter.push(closing.text))

    def finished(self, user: Message, *, complete: bool) -> Turn:
        """Return the turn. Half a character where a reply was cut was shown as U+FFFD, but is not kept."""
        generated, pieces = self._generated, self._pieces
        ids = ids_saying(generated, self._token_ids, self._tokenizer)
        if not complete:
            generated, ids = without_half_characters(generated, ids, self._tokenizer)
            pieces = _without_end(pieces, len(self._generated) - len(generated))
        content, reasoning = join(pieces, is_reasoning=False), join(pieces, is_reasoning=True)
        reply = Message("assistant", content, reasoning=reasoning or None, complete=complete)
        return Turn(user, reply, generated, ids)

    def _show(self, pieces: list[Piece]) -> None:
        self._pieces += pieces
        for piece in pieces:
            self._on_event(ReplyText(piece.text, piece.is_reasoning, self.n_tokens))


def _without_end(pieces: Sequence[Piece], n_characters: int) -> list[Piece]:
    """Return the pieces without so many characters at their end."""
    pieces = list(pieces)
    while n_characters > 0:
        last = pieces.pop()
        kept = last.text[: max(len(last.text) - n_characters, 0)]
        n_characters -= len(last.text) - len(kept)
        if kept:
            pieces.append(replace(last, text=kept))
    return pieces
