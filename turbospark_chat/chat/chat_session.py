"""A chat: render, fit, generate, record, turn by turn. Knows a producer, a tokenizer and a template, never a model.

All methods that generate belong on the thread that owns the producer. A turn that raises, or is cancelled before
its first token, leaves the conversation as it was; what was prefilled for it stays in the cache and serves the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.prompt_encoder import (
    PromptTokenizer,
    encode_prompt,
    encode_segments,
    segments_after,
)
from turbospark_chat.chat.reasoning import ReasoningSplitter, ReasoningTags
from turbospark_chat.chat.reply import Reply
from turbospark_chat.chat.template import ChatTemplate, RenderedPrompt, Text
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult, TurnsDropped
from turbospark_chat.chat.window import Window, fit_window
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.pressure import PressureProbe
from turbospark_chat.engine.producer import LogitProducer
from turbospark_chat.engine.raw_completion import CancelFlag, TokenText, run_prefill, run_raw_completion
from turbospark_chat.errors import UsageError


class ChatTokenizer(TokenText, PromptTokenizer, Protocol):
    """What a chat needs of a tokenizer."""

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Return the ids of text; with `parse_special` the spelling of a control token is that token."""


@dataclass(frozen=True, slots=True)
class ChatModel:
    """A loaded model, as a chat sees it. `check_memory` may refuse a number of positions before they are computed."""

    producer: LogitProducer
    tokenizer: ChatTokenizer
    template: ChatTemplate
    stop_ids: Mapping[int, StopReason]
    context_length: int
    reasoning_tags: ReasoningTags | None = None
    probe: PressureProbe | None = None
    check_memory: Callable[[int], None] = lambda n_positions: None


@dataclass(frozen=True, slots=True)
class _Generated:
    """The ids of the last prompt and its reply, and the turns they belong to."""

    turns: tuple[Turn, ...]
    ids: tuple[int, ...]


class ChatSession:
    """A conversation with a model."""

    def __init__(
        self, model: ChatModel, *, system: str | None = None, options: ChatOptions | None = None
    ) -> None:
        self._model = model
        spellings = model.template.turn_end_spellings()
        by_template = {model.tokenizer.control_ids[name]: StopReason.END_OF_TURN for name in spellings}
        self._stop_ids = {**by_template, **model.stop_ids}
        self.conversation = Conversation(system=system)
        self.options = options or ChatOptions()
        self._first_turn = 0
        self._last = _Generated((), ())

    @property
    def context_length(self) -> int:
        """The most positions a turn may use."""
        return self._model.context_length

    def send(self, content: str, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Answer a new user message and append the turn."""
        return self._take_turn(Message("user", content), self.conversation.append, cancel, on_event)

    def retry(self, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Answer the last user message again; the old reply is replaced once there is a new one.

        Raises:
            UsageError: there is no turn yet.
        """
        old = self._last_turn()
        self.undo()
        try:
            result = self._take_turn(old.user, self.conversation.append, cancel, on_event)
        except BaseException:
            self.conversation.append(old)
            raise
        if result.turn is None:
            self.conversation.append(old)
        return result

    def continue_reply(self, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Go on with a last reply that was cut short.

        Raises:
            UsageError: there is no turn yet, or its reply ended by itself.
        """
        old = self._last_turn()
        if old.reply.complete:
            raise UsageError("nothing to continue: the last reply ended by itself")
        return self._take_turn(old.user, self.conversation.replace_last, cancel, on_event, begun=old)

    def complete(self, text: str, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Continue raw text: no template, no conversation, and spellings of control tokens are those tokens."""
        tokenizer = self._model.tokenizer
        prompt_ids = tokenizer.with_bos(tokenizer.encode(text, parse_special=True))
        reply = Reply(ReasoningSplitter(None), on_event)
        raw = self._generate(prompt_ids, cancel, reply)
        turn = reply.finished(Message("user", text), complete=not raw.reason.is_cut_short)
        return TurnResult(turn, raw, 0, 0)

    def undo(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Take back the newest turns; the cache still serves what is left."""
        self._first_turn = 0
        return self.conversation.undo(n_turns)

    def forget(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Take out the oldest turns."""
        self._first_turn = 0
        return self.conversation.forget(n_turns)

    def leave_out(self, n_turns: int) -> None:
        """Keep the oldest `n_turns` of those in the prompt out of it from now on; the conversation keeps them."""
        self._first_turn = min(self._first_turn + n_turns, len(self.conversation.turns))

    def count_tokens(self) -> int:
        """Return how many tokens the conversation takes in a prompt, 0 before its first turn."""
        if not self.conversation.turns:
            return 0
        messages = self.conversation.messages(first_turn=self._first_turn)
        prompt = self._model.template.render(messages, add_generation_prompt=False)
        return len(encode_prompt(prompt, self._model.tokenizer, known_ids=self._last.ids))

    def clear(self) -> None:
        """Begin a new conversation under the same system prompt; a clock in the template moves on."""
        self.conversation.clear()
        self._model.template.new_session()
        self._first_turn = 0

    def _last_turn(self) -> Turn:
        if not self.conversation.turns:
            raise UsageError("there is no reply yet")
        return self.conversation.turns[-1]

    def _take_turn(
        self,
        user: Message,
        keep: Callable[[Turn], None],
        cancel: CancelFlag,
        on_event: TurnEventSink,
        *,
        begun: Turn | None = None,
    ) -> TurnResult:
        """Generate a reply to `user`, or the rest of `begun`'s, and keep the turn unless nothing came."""
        window = self._fit(user, begun)
        n_dropped = window.first_turn - self._first_turn
        if n_dropped:
            on_event(TurnsDropped(n_dropped, window.dropped_tokens))
        reply = Reply(self._splitter(window.prompt_ids, begun), on_event, begun)
        raw = self._generate(window.prompt_ids, cancel, reply)
        self._first_turn = window.first_turn
        turn = None
        if raw.new_tokens or raw.reason is not StopReason.CANCELLED:
            turn = reply.finished(user, complete=not raw.reason.is_cut_short)
            keep(turn)
            self._last = _Generated(self.conversation.turns, (*window.prompt_ids, *raw.token_ids))
        return TurnResult(turn, raw, n_dropped, window.dropped_tokens)

    def _generate(self, prompt_ids: Sequence[int], cancel: CancelFlag, reply: Reply) -> RawDecodeResult:
        model = self._model
        config = replace(self.options.completion, stop_ids=self._stop_ids)
        n_positions = len(prompt_ids) + (config.max_new_tokens or 0)
        model.check_memory(min(n_positions, model.context_length))
        if config.max_new_tokens == 0:
            return run_prefill(
                model.producer, model.tokenizer, prompt_ids, config,
                max_context=model.context_length, cancel=cancel, on_progress=reply.take,
            )  # fmt: skip
        return run_raw_completion(
            model.producer, model.tokenizer, prompt_ids, config,
            max_context=model.context_length, cancel=cancel, on_progress=reply.take, probe=model.probe,
        )  # fmt: skip

    def _fit(self, user: Message, begun: Turn | None) -> Window:
        n_turns = len(self.conversation.turns) - (begun is not None)
        return fit_window(
            lambda first_turn: self._encode(first_turn, n_turns, user, begun),
            first_turn=min(self._first_turn, n_turns),
            n_turns=n_turns,
            context_length=self.context_length,
            max_tokens=self.options.completion.max_new_tokens,
            policy=self.options.on_overflow,
        )

    def _encode(self, first_turn: int, n_turns: int, user: Message, begun: Turn | None) -> Sequence[int]:
        messages = [*self.conversation.messages(first_turn=first_turn, n_turns=n_turns), user]
        if begun is None and first_turn == self._first_turn and (exact := self._as_generated(messages)):
            return exact
        prompt = self._model.template.render(messages, add_generation_prompt=True)
        if begun is not None:
            prompt = RenderedPrompt((*prompt.segments, Text(begun.generated)))
        return encode_prompt(prompt, self._model.tokenizer, known_ids=self._last.ids)

    def _as_generated(self, messages: Sequence[Message]) -> Sequence[int]:
        """With `keep_reasoning`: the last turn's very ids, then what the template puts after that reply.

        Empty where that cannot be done: other turns than those ids belong to, or a template that drops the reply.
        """
        last, turns = self._last, self.conversation.turns
        if not self.options.keep_reasoning or not turns or last.turns != turns:
            return ()
        mark = "reply-stands-here"
        while any(mark in message.content for message in messages):
            mark += "-"
        marked = [*messages[:-2], replace(messages[-2], content=mark, reasoning=None), messages[-1]]
        after = segments_after(self._model.template.render(marked, add_generation_prompt=True), mark)
        return [*last.ids, *encode_segments(after, self._model.tokenizer)] if after else ()

    def _splitter(self, prompt_ids: Sequence[int], begun: Turn | None) -> ReasoningSplitter:
        """Return a splitter that starts inside a thought where the prompt ends with the opening tag."""
        tags = self._model.reasoning_tags
        if tags is None:
            return ReasoningSplitter(None)
        ending = self._model.tokenizer.decode(prompt_ids[-16:])
        return ReasoningSplitter(tags, inside=begun is None and ending.rstrip().endswith(tags.opening))
