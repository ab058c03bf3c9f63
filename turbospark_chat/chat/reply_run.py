"""The generation of one reply: a run of the engine, or two where its thinking is ended in between.

Knows a reply and what ends its thinking; no conversation and no template.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.reasoning import ReasoningTags
from turbospark_chat.chat.reply import Closing, Reply
from turbospark_chat.chat.visible_tags import show_tags
from turbospark_chat.engine.completion import RawDecodeResult
from turbospark_chat.engine.progress import Prefill, Progress, ProgressSink, Tail
from turbospark_chat.engine.raw_completion import CancelFlag, TokenText, run_prefill, run_raw_completion

_LOOK_SECONDS = 0.02  # between two looks at whether to answer, while a paced run waits


class ReplyRun:
    """Generates a reply. `answer_now` may be called from any thread, all else belongs to the model's.

    The thought is ended as if the model had written the closing tag: the run stops at a token, the tag goes to what
    was generated, and a second run goes on from there. A stop token or the budget that ends a run before wins, and
    a thought is left open where there would be no room for an answer behind the tag.
    """

    def __init__(
        self,
        model: ChatModel,
        reply: Reply,
        options: ChatOptions,
        cancel: CancelFlag,
        *,
        tags: ReasoningTags | None,
    ) -> None:
        self._model, self._reply = model, reply
        self._tokenizer = show_tags(model.tokenizer, tags)
        self._closing = Closing.of(tags, model.tokenizer) if tags else Closing("", ())
        self._max_thinking = options.max_thinking_tokens
        self._config = replace(
            options.completion,
            stop_ids=model.end_ids(),
            stop_strings=(*options.completion.stop_strings, *model.end_texts()),
        )
        self._flag = _EitherFlag(cancel, self._must_answer)
        self._is_asked = False
        self._end = 0  # the most ids that the reply may have, those it begins with included
        self._tail: Tail | None = None  # of the run that was stopped for an answer

    def answer_now(self) -> None:
        """End the thinking at the next token, also one that is only about to begin; an answer goes on as it is."""
        self._is_asked = True

    def generate(self, opening_ids: Sequence[int]) -> RawDecodeResult:
        """Generate the reply to a prompt, behind what there is of it already, and return what all of it took.

        The ids of a tag that ended the thinking count as tokens of the reply, unless it began with them.

        Raises:
            EmptyPromptError, DoesNotFitError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        reply, most = self._reply, self._config.max_new_tokens
        room = self._end = self._model.context_length - len(opening_ids)
        n_wanted = len(reply.token_ids) + (most or 0)
        self._model.check_memory(len(opening_ids) + min(n_wanted, room))
        if most == 0:
            return self._prefill(opening_ids)
        if self._is_spent() and self._has_room(n_answer=most or 1):
            reply.end_thought(self._closing)
        if most is not None:
            self._end = min(len(reply.token_ids) + most, room)
        first = self._run(opening_ids, most, self._take)
        if self._tail is None:
            return first
        reply.end_thought(self._closing, self._tail)
        token_ids = reply.token_ids[first.prompt_tokens - len(opening_ids) :]
        second = self._run(opening_ids, self._end - len(reply.token_ids), self._take_rest)
        return _sum(first, second, (*token_ids, *second.token_ids))

    def _run(
        self, opening_ids: Sequence[int], max_new_tokens: int | None, on_progress: ProgressSink
    ) -> RawDecodeResult:
        model, begun_ids = self._model, self._reply.token_ids
        return run_raw_completion(
            model.producer,
            _MidText(self._tokenizer) if begun_ids else self._tokenizer,
            [*opening_ids, *begun_ids],
            replace(self._config, max_new_tokens=max_new_tokens),
            max_context=model.context_length,
            cancel=self._flag,
            on_progress=on_progress,
            n_begun=len(begun_ids),
            probe=model.probe,
        )

    def _prefill(self, opening_ids: Sequence[int]) -> RawDecodeResult:
        model = self._model
        return run_prefill(
            model.producer,
            self._tokenizer,
            [*opening_ids, *self._reply.token_ids],
            self._config,
            max_context=model.context_length,
            cancel=self._flag,
            on_progress=self._reply.take,
        )

    def _take(self, progress: Progress) -> None:
        if isinstance(progress, Tail) and self._flag.must_answer:
            self._tail = progress
        else:
            self._reply.take(progress)

    def _take_rest(self, progress: Progress) -> None:
        if not isinstance(progress, Prefill):  # of the tag; the prompt was reported already
            self._reply.take(progress)

    def _must_answer(self) -> bool:
        """Whether to stop for an answer; not before the run has said something, while it reads the prompt.

        Once only: a model that then begins another thought thinks on, hidden as the first.
        """
        if self._tail is not None:
            return False
        is_due = self._is_spent() or (self._is_asked and self._reply.is_thinking)
        return is_due and self._reply.n_tokens > 0 and self._has_room(n_answer=1)

    def _is_spent(self) -> bool:
        """Whether the reply has thought for as long as it may. What comes before an answer is all thinking."""
        most = self._max_thinking
        return most is not None and self._reply.is_thinking and len(self._reply.token_ids) >= most

    def _has_room(self, *, n_answer: int) -> bool:
        return len(self._reply.token_ids) + len(self._closing.ids) + n_answer <= self._end


class _EitherFlag:
    """Raised with the user's flag, and when the thinking must end: `must_answer` says that it was that."""

    def __init__(self, cancel: CancelFlag, is_answer_due: Callable[[], bool]) -> None:
        self._cancel, self._is_answer_due = cancel, is_answer_due
        self.must_answer = False

    def is_set(self) -> bool:
        if self._cancel.is_set():
            return True
        self.must_answer = self._is_answer_due()
        return self.must_answer

    def wait(self, timeout: float) -> bool:
        while timeout > 0:
            if self._cancel.wait(min(timeout, _LOOK_SECONDS)):
                return True
            self.must_answer = self._is_answer_due()
            if self.must_answer:
                return True
            timeout -= _LOOK_SECONDS
        return False


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


def _sum(first: RawDecodeResult, second: RawDecodeResult, token_ids: tuple[int, ...]) -> RawDecodeResult:
    """Return two runs as one that gave these ids: it began as the first did and ended as the second."""
    return replace(
        second,
        prompt_tokens=first.prompt_tokens,
        reused_prefix_tokens=first.reused_prefix_tokens,
        miss=first.miss,
        new_tokens=len(token_ids),
        token_ids=token_ids,
        prefill_seconds=first.prefill_seconds + second.prefill_seconds,
        decode_seconds=first.decode_seconds + second.decode_seconds,
        proposed_tokens=first.proposed_tokens + second.proposed_tokens,
        accepted_tokens=first.accepted_tokens + second.accepted_tokens,
        session_slot_evicted=first.session_slot_evicted or second.session_slot_evicted,
        peak_memory_pressure=max(first.peak_memory_pressure, second.peak_memory_pressure),
    )
