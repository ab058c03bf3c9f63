"""A loaded model as a chat sees it: what computes, its tokenizer and its template. Knows no conversation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from turbospark_chat.chat.prompt_encoder import PromptTokenizer
from turbospark_chat.chat.reasoning import ReasoningTags, find_tags
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.pressure import PressureProbe
from turbospark_chat.engine.producer import LogitProducer
from turbospark_chat.engine.raw_completion import TokenText


class ChatTokenizer(TokenText, PromptTokenizer, Protocol):
    """What a chat needs of a tokenizer. Any thread may use it."""

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of text; with `parse_special` the spelling of a control token is that token."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A loaded model. `check_memory` may refuse a number of positions before they are computed."""

    producer: LogitProducer
    tokenizer: ChatTokenizer
    template: ChatTemplate
    stop_ids: Mapping[int, StopReason]  # those that the model's file names
    context_length: int
    reasoning_tags: ReasoningTags | None = None
    arithmetic: str = ""  # what computes, for people
    probe: PressureProbe | None = None
    check_memory: Callable[[int], None] = lambda n_positions: None

    def with_template(self, source: str) -> "ChatModel":
        """Return the model with another template, and the reasoning tags that one mentions.

        Raises:
            TemplateError: it cannot be parsed.
        """
        template = self.template.with_source(source)
        return replace(self, template=template, reasoning_tags=find_tags(source))

    def end_ids(self) -> dict[int, StopReason]:
        """Return the ids that end a reply: those the model names, and those its template ends a turn with."""
        spellings = self.template.turn_end_spellings()
        by_template = {self.tokenizer.control_ids[name]: StopReason.END_OF_TURN for name in spellings}
        return {**by_template, **self.stop_ids}
