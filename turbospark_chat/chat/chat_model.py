"""A loaded model as a chat sees it: what computes, its tokenizer and its template. Knows no conversation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from turbospark_chat.chat.prompt_encoder import PromptTokenizer
from turbospark_chat.chat.reasoning import ReasoningTags, find_tags
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.chat.verification import Verification
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.pressure import PressureProbe
from turbospark_chat.engine.producer import LogitProducer
from turbospark_chat.engine.raw_completion import CancelFlag, TokenText
from turbospark_chat.errors import UsageError


class ChatTokenizer(TokenText, PromptTokenizer, Protocol):
    """What a chat needs of a tokenizer. Any thread may use it."""

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of text; with `parse_special` the spelling of a control token is that token."""


class ModelStates(Protocol):
    """What may be done with the states behind a producer; all of it on the thread that owns the producer."""

    @property
    def held_ids(self) -> tuple[int, ...]:
        """The ids behind the live state."""

    def n_live(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt the live state holds, and can go back to."""

    def n_parked(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions of a prompt a parked state would serve."""

    def expect_return(self) -> None:
        """Note that another conversation follows: the state that serves its prompt stays whole where they differ."""

    def save(
        self,
        path: Path,
        *,
        template: str,
        n_positions: int | None = None,
        most_bytes: int | None = None,
        cancel: CancelFlag | None = None,
    ) -> None:
        """Write the live state to a file, bound to this model and template; cut to `n_positions` if that is less.

        Raises:
            StateFileError: it could not be written, takes more than `most_bytes`, or was cancelled; what was there
                before still is.
        """

    def load(self, path: Path, *, template: str, cancel: CancelFlag | None = None) -> int:
        """Go on from the state in a file; return how many positions it holds.

        Raises:
            StateFileError: it is damaged, of another model or template, or was cancelled; the live state stays.
        """

    def verify(self, *, cancel: CancelFlag, on_progress: Callable[[int, int], None]) -> Verification | None:
        """Compare the live state with one computed anew from its ids; None where that is cancelled.

        `on_progress` is told how many of how many ids are computed. The live state stays as it is.
        """


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A loaded model. `check_memory` may refuse a number of positions before they are computed.

    Without `states` there is nothing to park, save or load.
    """

    producer: LogitProducer
    tokenizer: ChatTokenizer
    template: ChatTemplate
    stop_ids: Mapping[int, StopReason]  # those that the model's file names
    context_length: int
    reasoning_tags: ReasoningTags | None = None
    arithmetic: str = ""  # what computes, for people
    probe: PressureProbe | None = None
    check_memory: Callable[[int], None] = lambda n_positions: None
    states: ModelStates | None = None

    def with_template(self, source: str) -> "ChatModel":
        """Return the model with another template, and the reasoning tags that one mentions.

        Raises:
            TemplateError: it cannot be parsed.
        """
        template = self.template.with_source(source)
        return replace(self, template=template, reasoning_tags=find_tags(source))

    def verify(self, *, cancel: CancelFlag, on_progress: Callable[[int, int], None]) -> Verification | None:
        """Compare what the model has computed with the same computed anew: see `ModelStates`.

        Raises:
            UsageError: there is nothing to compare.
            MemoryOverflowError: there is no memory for the same once more.
        """
        held_ids = () if self.states is None else self.states.held_ids
        if self.states is None or not held_ids:
            raise UsageError("nothing to verify: the model holds nothing that token ids describe")
        self.check_memory(2 * len(held_ids))
        return self.states.verify(cancel=cancel, on_progress=on_progress)

    def end_ids(self) -> dict[int, StopReason]:
        """Return the ids that end a reply: those the model names, and those its template ends a turn with."""
        spellings = self.template.turn_end_spellings()
        by_template = {self.tokenizer.control_ids[name]: StopReason.END_OF_TURN for name in spellings}
        return {**by_template, **self.stop_ids}

    def end_texts(self) -> tuple[str, ...]:
        """Return the texts that end a reply where no token does."""
        text = self.template.turn_end_text()
        return () if text is None else (text,)

    def spell(self, token_id: int) -> str:
        """Return a token as text for people, a control token by its spelling."""
        for spelling, control_id in self.tokenizer.control_ids.items():
            if control_id == token_id:
                return spelling
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")
