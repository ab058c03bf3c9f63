"""A chat: render, fit, generate, record, turn by turn. Knows a producer, a tokenizer and a template, never a model.

All methods that generate belong on the thread that owns the producer. A turn that raises, or is cancelled before
it said anything, leaves the conversation as it was; what was prefilled for it stays in the cache and serves the next.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from turbospark_chat.chat.bias_text import spell_out_biases
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.generated_prompt import NOTHING_SAID, Said, parts_as_generated
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions, find_option
from turbospark_chat.chat.prompt_encoder import PromptPart, PromptTokenizer, encode_prompt
from turbospark_chat.chat.reasoning import ReasoningSplitter, ReasoningTags, find_tags
from turbospark_chat.chat.reply import Reply
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult, TurnsDropped
from turbospark_chat.chat.window import Window, fit_window
from turbospark_chat.engine.completion import CompletionConfig, RawDecodeResult, StopReason
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
    arithmetic: str = ""  # what computes, for people
    probe: PressureProbe | None = None
    check_memory: Callable[[int], None] = lambda n_positions: None


@dataclass(frozen=True, slots=True)
class _MidText:
    """A tokenizer for a reply that goes on: a space it begins with is its own."""

    tokenizer: TokenText
    strips_leading_space: bool = False

    @property
    def n_tokens(self) -> int:
        return self.tokenizer.n_tokens

    def token_bytes(self, token_id: int) -> bytes:
        return self.tokenizer.token_bytes(token_id)


class ChatSession:
    """A conversation with a model."""

    def __init__(
        self, model: ChatModel, *, system: str | None = None, options: ChatOptions | None = None
    ) -> None:
        self._model = model
        self._stop_ids = _stop_ids(model)
        self.conversation = Conversation(system=system)
        self.options = options or ChatOptions()
        self._first_turn = 0
        self._last = NOTHING_SAID

    @property
    def context_length(self) -> int:
        """The most positions a turn may use."""
        return self._model.context_length

    @property
    def arithmetic(self) -> str:
        """What computes, for people."""
        return self._model.arithmetic

    @property
    def template(self) -> ChatTemplate:
        """The chat template in use."""
        return self._model.template

    def set_template(self, source: str) -> None:
        """Render with another template from the next turn on.

        Raises:
            TemplateError: it cannot be parsed; the old one stays.
        """
        template = self._model.template.with_source(source)
        self._model = replace(self._model, template=template, reasoning_tags=find_tags(source))
        self._stop_ids = _stop_ids(self._model)

    def set_option(self, name: str, text: str) -> None:
        """Change an option, from the next turn on, to what a user typed; biases may be given by text.

        Raises:
            SettingError: no such option, or not a value of it.
        """
        row = find_option(name)
        if row.name == "logit_bias":
            text = spell_out_biases(text, self._model.tokenizer.encode_continuation)
        self.options = row.change(self.options, text)

    def send(self, content: str, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Answer a new user message and append the turn.

        Raises:
            DoesNotFitError, TemplateError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        return self._take_turn(Message("user", content), cancel, on_event)

    def retry(self, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Answer the last user message again; the old reply is replaced once there is a new one.

        Raises:
            UsageError: there is no turn yet.
        """
        return self._take_turn(self._last_turn().user, cancel, on_event, replaces_last=True)

    def continue_reply(self, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Go on with a last reply that was cut short.

        Raises:
            UsageError: there is no turn yet, or its reply ended by itself.
        """
        begun = self._last_turn()
        if begun.reply.complete:
            raise UsageError("nothing to continue: the last reply ended by itself")
        return self._take_turn(begun.user, cancel, on_event, replaces_last=True, begun=begun)

    def complete(self, text: str, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Continue raw text: no template, no conversation, and spellings of control tokens are those tokens.

        Raises:
            EmptyPromptError, DoesNotFitError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        tokenizer = self._model.tokenizer
        prompt_ids = tokenizer.with_bos(tokenizer.encode(text, parse_special=True))
        reply = Reply(ReasoningSplitter(None), tokenizer, on_event)
        raw = self._generate(prompt_ids, cancel, reply, self.options.completion)
        turn = reply.finished(Message("user", text), complete=not raw.reason.is_cut_short)
        return TurnResult(turn, raw, 0, 0)

    def undo(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Take back the newest turns; those left out of the prompt come back where there is room again."""
        self._first_turn = 0
        return self.conversation.undo(n_turns)

    def forget(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Take out the oldest turns; for the prompt those it had left out already make no difference."""
        removed = self.conversation.forget(n_turns)
        self._first_turn = max(self._first_turn - len(removed), 0)
        return removed

    def leave_out(self, n_turns: int) -> None:
        """Keep the oldest `n_turns` of those in the prompt out of it from now on; the conversation keeps them."""
        self._first_turn = min(self._first_turn + n_turns, len(self.conversation.turns))

    def count_tokens(self) -> int:
        """Return how many tokens the conversation takes in a prompt, 0 before its first turn."""
        n_turns, keep_reasoning = len(self.conversation.turns), self.options.keep_reasoning
        if n_turns == 0:
            return 0
        return len(self._encode(self._first_turn, n_turns, [], keep_reasoning=keep_reasoning))

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
        cancel: CancelFlag,
        on_event: TurnEventSink,
        *,
        replaces_last: bool = False,
        begun: Turn | None = None,
    ) -> TurnResult:
        """Generate a reply to `user`, or the rest of `begun`'s, and keep the turn unless nothing came."""
        options = self.options  # of the whole turn: another thread may change the next one's meanwhile
        n_turns = len(self.conversation.turns) - replaces_last
        window = self._fit(user, n_turns, begun, options)
        if window.n_dropped:
            on_event(TurnsDropped(window.n_dropped, window.dropped_tokens))
        n_begun = len(begun.generated_ids) if begun else 0
        opening_ids = window.prompt_ids[: len(window.prompt_ids) - n_begun]
        reply = Reply(self._splitter(opening_ids), self._model.tokenizer, on_event, begun)
        raw = self._generate(window.prompt_ids, cancel, reply, options.completion, begun)
        turn = reply.finished(user, complete=not raw.reason.is_cut_short)
        if _came_to_nothing(raw, turn.reply):
            return TurnResult(None, raw, window.n_dropped, window.dropped_tokens)
        self._first_turn = window.first_turn
        turns = (*self.conversation.turns[:n_turns], turn)
        self._last = Said(
            self.conversation.system, turns[window.first_turn :], (*opening_ids, *turn.generated_ids)
        )
        (self.conversation.replace_last if replaces_last else self.conversation.append)(turn)
        return TurnResult(turn, raw, window.n_dropped, window.dropped_tokens)

    def _generate(
        self,
        prompt_ids: Sequence[int],
        cancel: CancelFlag,
        reply: Reply,
        config: CompletionConfig,
        begun: Turn | None = None,
    ) -> RawDecodeResult:
        model = self._model
        tokenizer = _MidText(model.tokenizer) if begun else model.tokenizer
        config = replace(config, stop_ids=self._stop_ids)
        n_positions = len(prompt_ids) + (config.max_new_tokens or 0)
        model.check_memory(min(n_positions, model.context_length))
        if config.max_new_tokens == 0:
            return run_prefill(
                model.producer, tokenizer, prompt_ids, config,
                max_context=model.context_length, cancel=cancel, on_progress=reply.take,
            )  # fmt: skip
        return run_raw_completion(
            model.producer, tokenizer, prompt_ids, config,
            max_context=model.context_length, cancel=cancel, on_progress=reply.take, probe=model.probe,
            n_begun=len(begun.generated_ids) if begun else 0,
        )  # fmt: skip

    def _fit(self, user: Message, n_turns: int, begun: Turn | None, options: ChatOptions) -> Window:
        begun_ids = begun.generated_ids if begun else ()

        def encode(first_turn: int) -> list[int]:
            ids = self._encode(first_turn, n_turns, [user], keep_reasoning=options.keep_reasoning)
            return [*ids, *begun_ids]

        return fit_window(
            encode,
            first_turn=min(self._first_turn, n_turns),
            n_turns=n_turns,
            context_length=self.context_length,
            max_tokens=options.completion.max_new_tokens,
            policy=options.on_overflow,
        )

    def _encode(
        self, first_turn: int, n_turns: int, following: Sequence[Message], *, keep_reasoning: bool
    ) -> list[int]:
        """Return the prompt ids of the turns from `first_turn` to before `n_turns`, and of a message to answer."""
        model, last = self._model, self._last
        turns = self.conversation.turns[first_turn:n_turns]
        conversation = Conversation(system=self.conversation.system, turns=turns)
        parts: Sequence[PromptPart] | None = None
        if keep_reasoning:
            parts = parts_as_generated(
                conversation, following, model.template, model.reasoning_tags, said=last
            )
        if parts is None:
            messages = [*conversation.messages(), *following]
            parts = model.template.render(messages, add_generation_prompt=bool(following)).segments
        return encode_prompt(parts, model.tokenizer, known_ids=last.ids)

    def _splitter(self, opening_ids: Sequence[int]) -> ReasoningSplitter:
        """Return a splitter that starts inside a thought where the prompt ends with the opening tag."""
        tags = self._model.reasoning_tags
        # Enough to spell any tag and the white space after it, however the tokenizer cuts them.
        ending = self._model.tokenizer.decode(opening_ids[-16:], show_control=True).rstrip()
        return ReasoningSplitter(tags, inside=tags is not None and ending.endswith(tags.opening))


def _stop_ids(model: ChatModel) -> dict[int, StopReason]:
    """Return the ids that end a reply: those the model names, and those its template ends a turn with."""
    spellings = model.template.turn_end_spellings()
    by_template = {model.tokenizer.control_ids[name]: StopReason.END_OF_TURN for name in spellings}
    return {**by_template, **model.stop_ids}


def _came_to_nothing(raw: RawDecodeResult, reply: Message) -> bool:
    """Whether a reply was cut short before it said anything new, so that no turn is kept for it."""
    is_cancelled = raw.reason is StopReason.CANCELLED
    return raw.reason.is_cut_short and (raw.new_tokens == 0 or (is_cancelled and reply.is_empty))
