"""Answers with one model: builds the prompt, runs it, and can say afterwards what the reply might have been.

Remembers what its last prompt said and what its last run left in the cache; holds no conversation.
"""

from collections.abc import Sequence
from dataclasses import replace

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.context_use import ContextUse, Recompute, recompute, use_by_role
from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.prompt_builder import PromptBuilder
from turbospark_chat.chat.reasoning import ReasoningSplitter, ReasoningTags
from turbospark_chat.chat.reply import Reply
from turbospark_chat.chat.reply_run import ReplyRun
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult, TurnsDropped
from turbospark_chat.chat.visible_tags import show_tags
from turbospark_chat.chat.window import OverflowPolicy, WindowOverflowError
from turbospark_chat.engine.alternatives import TokenChoice, explain_tokens
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.kv_prefix import common_length
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import TemplateError


class Replier:
    """Answers user messages. What it is given it leaves as it was: whoever asks keeps the turns.

    `first_turn` is the first one that went into the last prompt; those before it stay out of the next.
    """

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._run: ReplyRun | None = None  # of the reply under way
        self._held_ids: tuple[int, ...] = ()  # what the last run left in the cache; nothing where it raised
        self.begin(model)

    def begin(self, model: ChatModel) -> None:
        """Answer with this model from now on, and as if nothing had been said; the cache keeps what it holds."""
        if model.producer is not self._model.producer:
            self._held_ids = ()
        self._model = model
        self._prompts = PromptBuilder(model)
        self.first_turn = 0

    def reply(
        self,
        system: str | None,
        turns: tuple[Turn, ...],
        user: Message,
        options: ChatOptions,
        *,
        begun: Turn | None = None,
        cancel: CancelFlag,
        on_event: TurnEventSink,
    ) -> TurnResult:
        """Generate a reply to `user` after these turns, or the rest of `begun`'s.

        Raises:
            DoesNotFitError, TemplateError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        begun_ids = begun.generated_ids if begun else ()
        window = self._prompts.fit(
            system, turns, [user], options, begun_ids=begun_ids, first_turn=self.first_turn
        )
        if window.n_dropped:
            on_event(TurnsDropped(window.n_dropped, window.dropped_tokens))
        opening_ids = window.prompt_ids[: len(window.prompt_ids) - len(begun_ids)]
        tags = options.think_tags or self._model.reasoning_tags
        reply = Reply(
            self._splitter(opening_ids, tags), show_tags(self._model.tokenizer, tags), on_event, begun
        )
        raw = self._generate(opening_ids, reply, options, cancel, tags)
        turn = reply.finished(user, complete=not raw.reason.is_cut_short)
        if _came_to_nothing(raw, turn.reply):
            return TurnResult(None, raw, window.n_dropped, window.dropped_tokens)
        self.first_turn = window.first_turn
        said = (*turns[window.first_turn :], turn)
        self._prompts.note(system, said, (*opening_ids, *turn.generated_ids))
        return TurnResult(turn, raw, window.n_dropped, window.dropped_tokens)

    def complete(
        self, text: str, options: ChatOptions, *, cancel: CancelFlag, on_event: TurnEventSink
    ) -> TurnResult:
        """Continue raw text: no template, and spellings of control tokens are those tokens.

        Raises:
            EmptyPromptError, DoesNotFitError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        tokenizer = self._model.tokenizer
        prompt_ids = tokenizer.with_bos(tokenizer.encode(text, parse_special=True))
        reply = Reply(ReasoningSplitter(None), tokenizer, on_event)
        raw = self._generate(prompt_ids, reply, options, cancel, None)
        turn = reply.finished(Message("user", text), complete=not raw.reason.is_cut_short)
        return TurnResult(turn, raw, 0, 0)

    def answer_now(self) -> None:
        """Have the reply under way end its thinking, from any thread; without one nothing happens."""
        run = self._run
        if run is not None:
            run.answer_now()

    def explain(
        self,
        system: str | None,
        turns: tuple[Turn, ...],
        options: ChatOptions,
        n_tokens: int,
        *,
        n_alternatives: int,
        cancel: CancelFlag,
    ) -> tuple[TokenChoice, ...]:
        """Return the choices at the last tokens of the last turn's reply.

        Raises:
            DoesNotFitError, TemplateError, NoFiniteLogitsError: why the model cannot say.
        """
        *earlier, last = turns
        completion = replace(options.completion, max_new_tokens=0)
        options = replace(options, completion=completion, on_overflow=OverflowPolicy.DROP)
        ids = self._prompts.fit(
            system, earlier, [last.user], options, begun_ids=last.generated_ids, first_turn=self.first_turn
        ).prompt_ids
        self._model.check_memory(len(ids))
        tokenizer, held_ids, self._held_ids = self._model.tokenizer, self._held_ids, ()
        spellings = {token_id: spelling for spelling, token_id in tokenizer.control_ids.items()}

        def spell(token_id: int) -> str:
            return spellings.get(token_id) or tokenizer.token_bytes(token_id).decode("utf-8", "replace")

        choices = explain_tokens(
            self._model.producer,
            ids,
            len(ids) - min(max(n_tokens, 0), len(last.generated_ids)),
            held_ids=held_ids,
            n_alternatives=n_alternatives,
            n_known=tokenizer.n_tokens,
            spell=spell,
            cancel=cancel,
        )
        self._held_ids = held_ids
        return choices

    def count_tokens(self, system: str | None, turns: Sequence[Turn], options: ChatOptions) -> int:
        """Return how many tokens the conversation takes in a prompt, 0 before its first turn."""
        if not turns:
            return 0
        return len(self._prompts.encode(system, turns[self.first_turn :], [], options))

    def count_by_role(self, system: str | None, turns: Sequence[Turn], options: ChatOptions) -> ContextUse:
        """Return who said how many of them."""
        return use_by_role(
            system,
            turns[self.first_turn :],
            self._model.tokenizer,
            total=self.count_tokens(system, turns, options),
            context_length=self._model.context_length,
            keep_reasoning=options.keep_reasoning,
        )

    def recomputed_after(
        self,
        system: str | None,
        turns: Sequence[Turn],
        options: ChatOptions,
        *,
        first_turn: int,
        following: Sequence[Message] = (),
        model: ChatModel | None = None,
    ) -> Recompute:
        """Return what of a conversation the cache would not serve, were its turns from `first_turn` on next.

        `model` is this one with another template, if there is to be one.

        Raises:
            TemplateError: the template refuses the turns.
        """
        prompts = self._prompts if model is None else PromptBuilder(model)
        held_ids = self._held_ids if options.completion.reuse else ()
        if not turns and not following:
            return recompute(self._before_any_message(prompts, system, options), held_ids)
        options = replace(options, on_overflow=OverflowPolicy.DROP)
        try:
            prompt_ids = prompts.fit(system, turns, following, options, first_turn=first_turn).prompt_ids
        except WindowOverflowError as error:  # and the next turn will not fit either
            return Recompute(error.n_prompt, error.n_prompt)
        return recompute(prompt_ids, held_ids)

    def _before_any_message(
        self, prompts: PromptBuilder, system: str | None, options: ChatOptions
    ) -> Sequence[int]:
        """Return the ids a prompt begins with whatever its first message says; none where none were computed yet."""
        if not self._held_ids:
            return ()
        try:
            one, other = (prompts.encode(system, (), [Message("user", text)], options) for text in "ab")
        except TemplateError:  # that is for the next message to say
            return ()
        return one[: common_length(one, other)]

    def _generate(
        self,
        opening_ids: Sequence[int],
        reply: Reply,
        options: ChatOptions,
        cancel: CancelFlag,
        tags: ReasoningTags | None,
    ) -> RawDecodeResult:
        self._held_ids = ()
        self._run = ReplyRun(self._model, reply, options, cancel, tags=tags)
        try:
            raw = self._run.generate(opening_ids)
        finally:
            self._run = None
        self._held_ids = raw.kv_backed_token_ids
        return raw

    def _splitter(self, opening_ids: Sequence[int], tags: ReasoningTags | None) -> ReasoningSplitter:
        """Return a splitter that starts inside a thought where the prompt ends with the opening tag."""
        # Enough to spell any tag and the white space after it, however the tokenizer cuts them.
        ending = self._model.tokenizer.decode(opening_ids[-16:], show_control=True).rstrip()
        return ReasoningSplitter(tags, inside=tags is not None and ending.endswith(tags.opening))


def _came_to_nothing(raw: RawDecodeResult, reply: Message) -> bool:
    """Whether a reply was cut short before it said anything new, so that no turn is kept for it."""
    is_cancelled = raw.reason is StopReason.CANCELLED
    return raw.reason.is_cut_short and (raw.new_tokens == 0 or (is_cancelled and reply.is_empty))
