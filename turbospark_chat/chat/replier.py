"""Answers with one model: builds the prompt, runs it, and can say afterwards what the reply might have been.

Remembers what its prompts said; holds no conversation.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.live_state import LiveState
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.prompt_ahead import PromptAhead
from turbospark_chat.chat.prompt_builder import PromptBuilder
from turbospark_chat.chat.reasoning import ReasoningSplitter, ReasoningTags
from turbospark_chat.chat.receipt import Cause, Miss, describe_miss
from turbospark_chat.chat.reply import Reply
from turbospark_chat.chat.reply_run import ReplyRun
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult, TurnsDropped
from turbospark_chat.chat.visible_tags import show_tags
from turbospark_chat.chat.window import OverflowPolicy, WindowOverflowError
from turbospark_chat.engine.alternatives import TokenChoice, explain_tokens
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.engine.reuse_miss import ReuseMiss

_MOST_CHARACTERS_A_TOKEN = 8  # of a draft that may fit


class Replier:
    """Answers user messages. What it is given it leaves as it was: whoever asks keeps the turns.

    `first_turn` is the first one that went into the last prompt; those before it stay out of the next.
    """

    def __init__(self, model: ChatModel) -> None:
        self.model = model
        self.prompts = PromptBuilder(model)
        self.live = LiveState(model)
        self.first_turn = 0
        self._ahead = PromptAhead()
        # Until a turn is taken: positions that a file's state, or another template, said of this conversation.
        self._n_before = 0
        self._has_new_template = False
        self._run: ReplyRun | None = None  # of the reply under way

    def begin(self, model: ChatModel) -> None:
        """Answer with this model from now on; the cache keeps what it holds.

        It is as if nothing had been said, unless only the template is another one.
        """
        self._n_before, self._has_new_template = 0, False
        if model is self.model:
            self.prompts.forget_last()
        elif model.producer is self.model.producer:
            held_ids = self.live.ids
            self._n_before, self._has_new_template = len(self.prompts.said.ids), True
            self.prompts, self.live = self.prompts.for_model(model), LiveState(model)
            self.live.note(held_ids)
        else:
            self.prompts, self.live = PromptBuilder(model), LiveState(model)
        self.model = model
        self.live.expect_return()
        self._ahead = PromptAhead()
        self.first_turn = 0

    def first_turn_of(self, turns: Sequence[Turn], before: Sequence[Turn]) -> int:
        """Return where the prompt of `turns` begins: those it left out stay out while only the oldest go."""
        n_removed = len(before) - len(turns)
        is_rest = n_removed >= 0 and tuple(turns) == tuple(before[n_removed:])
        return max(self.first_turn - n_removed, 0) if is_rest else 0

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
        window = self.prompts.fit(
            system, turns, [user], options, begun_ids=begun_ids, first_turn=self.first_turn
        )
        if window.n_dropped:
            on_event(TurnsDropped(window.n_dropped, window.dropped_tokens))
        opening_ids = window.prompt_ids[: len(window.prompt_ids) - len(begun_ids)]
        tags = options.think_tags or self.model.reasoning_tags
        reply = Reply(
            self._splitter(opening_ids, tags), show_tags(self.model.tokenizer, tags), on_event, begun
        )
        raw = self._generate(opening_ids, reply, options, cancel, tags)
        miss = self._ahead.missed_by(window.prompt_ids) or self._describe(
            raw.miss, system, turns, options, is_window_moved=window.n_dropped > 0
        )
        raw, n_ahead = self._ahead.take(raw)
        turn = reply.finished(user, complete=not raw.reason.is_cut_short)
        if _came_to_nothing(raw, turn.reply):
            return TurnResult(None, raw, window.n_dropped, window.dropped_tokens, n_ahead, miss)
        self.first_turn, self._n_before, self._has_new_template = window.first_turn, 0, False
        said = (*turns[window.first_turn :], turn)
        self.prompts.note(system, said, (*opening_ids, *turn.generated_ids))
        return TurnResult(turn, raw, window.n_dropped, window.dropped_tokens, n_ahead, miss)

    def read_ahead(
        self,
        system: str | None,
        turns: Sequence[Turn],
        draft: str,
        options: ChatOptions,
        *,
        cancel: CancelFlag,
    ) -> int:
        """Bring what is certain of the next prompt into the cache; return how many positions were read so by now.

        Nothing is read where turns would have to be left out for it, or reuse is off, nor of a draft so long that to
        encode it takes time in which somebody may want to send it.

        Raises:
            DoesNotFitError, TemplateError: the next turn will say so.
        """
        is_long = len(draft) > _MOST_CHARACTERS_A_TOKEN * self.model.context_length
        if not options.completion.reuse or is_long or cancel.is_set():
            return 0
        ids = self.certain_ids(system, turns, draft, options)
        if self.live.n_live(ids) < len(ids):
            self.model.check_memory(len(ids))
            with self.live.running():
                raw = self._ahead.read(self.model, ids, options.completion, cancel)
                self.live.note(raw.kv_backed_token_ids)
            self._ahead.note_miss(
                raw.miss, self._describe(raw.miss, system, tuple(turns), options, is_window_moved=False)
            )
        return self._ahead.count(self.live.n_live(ids))

    def certain_ids(
        self, system: str | None, turns: Sequence[Turn], draft: str, options: ChatOptions
    ) -> Sequence[int]:
        """Return what the next prompt begins with if its message begins with `draft`: see `PromptBuilder`."""
        return self.prompts.certain_ids(system, turns, draft, options, first_turn=self.first_turn)

    def save_state(self, path: Path, *, most_bytes: int | None, cancel: CancelFlag | None) -> None:
        """Write the live state to a file, as far as it was said: what was only a draft is nobody's business.

        Raises:
            StateFileError: it could not be written, takes more than `most_bytes`, or was cancelled.
        """
        n_said = self.prompts.n_said(self.live.ids)
        self.live.save(path, n_positions=n_said, most_bytes=most_bytes, cancel=cancel)

    def take_up_state(self, path: Path, *, cancel: CancelFlag | None) -> int:
        """Go on from the state in a file, and take what it was computed from for what was said.

        Raises:
            StateFileError: it is damaged, of another model or template, or was cancelled; nothing has changed.
        """
        n_positions = self.live.load(path, cancel=cancel)
        self.prompts.remember(self.live.ids)
        self._n_before = n_positions
        return n_positions

    def complete(
        self, text: str, options: ChatOptions, *, cancel: CancelFlag, on_event: TurnEventSink
    ) -> TurnResult:
        """Continue raw text: no template, and spellings of control tokens are those tokens.

        Raises:
            EmptyPromptError, DoesNotFitError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        tokenizer = self.model.tokenizer
        prompt_ids = tokenizer.with_bos(tokenizer.encode(text, parse_special=True))
        reply = Reply(ReasoningSplitter(None), tokenizer, on_event)
        raw = self._generate(prompt_ids, reply, options, cancel, None)
        self.prompts.remember(raw.kv_backed_token_ids)
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
        ids = self.prompts.fit(
            system, earlier, [last.user], options, begun_ids=last.generated_ids, first_turn=self.first_turn
        ).prompt_ids
        self.model.check_memory(len(ids))
        held_ids = self.live.ids
        with self.live.running():
            choices = explain_tokens(
                self.model.producer,
                ids,
                len(ids) - min(max(n_tokens, 0), len(last.generated_ids)),
                held_ids=held_ids,
                n_alternatives=n_alternatives,
                n_known=self.model.tokenizer.n_tokens,
                spell=self.model.spell,
                cancel=cancel,
            )
            self.live.note(held_ids)
        return choices

    def _generate(
        self,
        opening_ids: Sequence[int],
        reply: Reply,
        options: ChatOptions,
        cancel: CancelFlag,
        tags: ReasoningTags | None,
    ) -> RawDecodeResult:
        with self.live.running():
            self._run = ReplyRun(self.model, reply, options, cancel, tags=tags)
            try:
                raw = self._run.generate(opening_ids)
            finally:
                self._run = None
            self.live.note(raw.kv_backed_token_ids)
        return raw

    def _describe(
        self,
        miss: ReuseMiss | None,
        system: str | None,
        turns: tuple[Turn, ...],
        options: ChatOptions,
        *,
        is_window_moved: bool,
    ) -> Miss | None:
        """Return what a prompt missed of this conversation; a draft, or another branch's turns, are none of it."""
        if miss is None:
            return None
        said, shown = self.prompts.said, turns[self.first_turn :]
        # What was read since is missed again only where the conversation was changed twice.
        is_same = not self._ahead.has_missed and said.system == system
        n_said = len(said.ids) or self._n_before
        with suppress(WindowOverflowError):
            n_said = min(n_said, len(self.certain_ids(system, turns, "", options)))
        is_same = self._has_new_template or (is_same and shown[: len(said.turns)] == said.turns)
        cause = Cause.TEMPLATE if is_same else Cause.EDITED
        cause = Cause.WINDOW_DROPPED if is_window_moved else cause
        return describe_miss(miss, n_said=n_said, cause=cause, spell=self.model.spell)

    def _splitter(self, opening_ids: Sequence[int], tags: ReasoningTags | None) -> ReasoningSplitter:
        """Return a splitter that starts inside a thought where the prompt ends with the opening tag."""
        # Enough to spell any tag and the white space after it, however the tokenizer cuts them.
        ending = self.model.tokenizer.decode(opening_ids[-16:], show_control=True).rstrip()
        return ReasoningSplitter(tags, inside=tags is not None and ending.endswith(tags.opening))


def _came_to_nothing(raw: RawDecodeResult, reply: Message) -> bool:
    """Whether a reply was cut short before it said anything new, so that no turn is kept for it."""
    is_cancelled = raw.reason is StopReason.CANCELLED
    return raw.reason.is_cut_short and (raw.new_tokens == 0 or (is_cancelled and reply.is_empty))
