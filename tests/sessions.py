"""A chat session driven turn by turn. Every turn is held against the rules that hold for all of them."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from chat_templates import Family
from fakes import ChatBytes, HashModel, HashState

from turbospark_chat.chat.chat_model import ChatModel, ChatTokenizer
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.reasoning import find_tags
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnResult, TurnsDropped
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.producer import LogitProducer, ScriptedProducer
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.errors import ModelWarning
from turbospark_chat.models.model_states import ModelStates
from turbospark_chat.models.runner import Runner

# No letter is a fixed point of HashModel's sum, or replies would be that letter over and over.
LETTERS = tuple(b"bcdfghijk .\n")


class CancelAfter:
    """A cancel flag that is raised once it has been looked at so many times; None never."""

    def __init__(self, n_looks: int | None) -> None:
        self._left = n_looks

    def is_set(self) -> bool:
        if self._left is None:
            return False
        self._left -= 1
        return self._left < 0

    def wait(self, timeout: float) -> bool:
        return self.is_set()


class CancelAtToken:
    """A cancel flag that is raised as soon as so many tokens of the reply were reported."""

    def __init__(self, n_tokens: int) -> None:
        self._n_tokens = n_tokens
        self.n_seen = 0

    def is_set(self) -> bool:
        return self.n_seen >= self._n_tokens

    def wait(self, timeout: float) -> bool:
        return self.is_set()


NEVER = CancelAfter(None)


def load_template(source: str | None, controls: Sequence[str], **specials: Any) -> ChatTemplate:
    """A template whose warnings about itself are no concern of the test."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelWarning)
        return ChatTemplate(
            source, control_spellings=controls, **{"bos_token": None, "eos_token": None} | specials
        )


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading ids are the same."""
    for position, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return position
    return min(len(left), len(right))


class Chat:
    """A session over a producer, and what its last turn reported.

    `cold` makes a fresh producer that says what this one would: with it each reply is compared with a cold run.
    """

    def __init__(
        self,
        producer: LogitProducer,
        tokenizer: ChatTokenizer,
        template: ChatTemplate,
        *,
        source: str = "",
        stop_ids: dict[int, StopReason] | None = None,
        context_length: int = 4096,
        system: str | None = None,
        check_memory: Callable[[int], None] = lambda n_positions: None,
        cold: Callable[[], LogitProducer] | None = None,
        n_slots: int = 0,
        **options: str,
    ) -> None:
        self.producer, self.tokenizer, self.template, self.cold = producer, tokenizer, template, cold
        self.n_slots = n_slots
        model = ChatModel(
            producer, tokenizer, template, stop_ids or {}, context_length,
            reasoning_tags=find_tags(source), check_memory=check_memory,
            states=ModelStates(producer, KvPrefix, lambda cancel: {}) if isinstance(producer, Runner) else None,
        )  # fmt: skip
        self.session = ChatSession(model, system=system)
        for name, text in ({"temperature": "0"} | options).items():
            self.session.set_option(name, text)
        self.events: list[TurnEvent] = []

    @property
    def record(self) -> tuple[int, ...]:
        """The ids the producer's cache holds."""
        record: Any = self.producer.record  # type: ignore[attr-defined]
        return record.ids if isinstance(record, KvPrefix) else record

    @property
    def turns(self) -> list[tuple[str, str]]:
        """What was said: messages and replies."""
        return [(turn.user.content, turn.reply.content) for turn in self.session.conversation.turns]

    @property
    def shown(self) -> str:
        """The answer as it was shown during the last turn."""
        return "".join(e.text for e in self.events if isinstance(e, ReplyText) and not e.is_reasoning)

    @property
    def thought(self) -> str:
        """The thinking as it was shown during the last turn."""
        return "".join(e.text for e in self.events if isinstance(e, ReplyText) and e.is_reasoning)

    @property
    def dropped(self) -> list[TurnsDropped]:
        """The notices of dropped turns in the last turn."""
        return [event for event in self.events if isinstance(event, TurnsDropped)]

    def say(self, text: str, cancel: Any = NEVER) -> TurnResult:
        """Send a message."""
        return self._take(self.session.send, cancel, text)

    def retry(self, cancel: Any = NEVER) -> TurnResult:
        """Answer the last message again."""
        return self._take(self.session.retry, cancel)

    def read_ahead(self, draft: str = "", cancel: Any = NEVER) -> int:
        """Have the model read what is certain of the next prompt."""
        return self.session.read_ahead(draft, cancel=cancel)

    def go_on(self, cancel: Any = NEVER) -> TurnResult:
        """Continue the last reply."""
        return self._take(self.session.continue_reply, cancel)

    def prompt_ids(self, result: TurnResult) -> tuple[int, ...]:
        """The prompt of a turn, as far as it was fed."""
        return result.raw.kv_backed_token_ids[: result.raw.prompt_tokens]

    def _take(self, take: Callable[..., TurnResult], cancel: Any, *arguments: str) -> TurnResult:
        before, turns, self.events = self.record, self.session.conversation.turns, []

        def on_event(event: TurnEvent) -> None:
            self.events.append(event)
            if isinstance(event, ReplyText) and isinstance(cancel, CancelAtToken):
                cancel.n_seen = event.n_tokens

        result = take(*arguments, cancel=cancel, on_event=on_event)
        self._check_ids(result, before)
        if result.turn is not None:
            is_new, is_continued = take == self.session.send, take == self.session.continue_reply
            if not self.session.options.keep_reasoning:
                begun_ids = turns[-1].generated_ids if is_continued else ()
                self._check_prompt(result, turns if is_new else turns[:-1], begun_ids)
            if not is_continued:
                self._check_reply(result.turn.reply)
        return result

    def _check_ids(self, result: TurnResult, before: Sequence[int]) -> None:
        """The cache holds what the result says, kept what it could, and the reply is a cold engine's."""
        raw, prompt = result.raw, self.prompt_ids(result)
        assert raw.kv_backed_token_ids == self.record
        if len(prompt) < raw.prompt_tokens:  # cancelled
            return
        if self.session.options.completion.reuse:
            n_live = min(common_length(before, prompt), len(prompt) - 1)
            if self.n_slots:
                assert raw.reused_prefix_tokens >= n_live
            else:
                assert raw.reused_prefix_tokens == n_live
        if self.cold is not None:
            assert list(raw.token_ids) == greedy(self.cold(), prompt, raw.new_tokens)

    def _check_prompt(self, result: TurnResult, turns: Sequence[Turn], begun_ids: Sequence[int]) -> None:
        """The prompt's ids say what the template renders, and what there is of a reply that goes on."""
        assert result.turn is not None
        begun = self.tokenizer.decode(begun_ids, show_control=True)
        bos = self.tokenizer.decode(self.tokenizer.with_bos([]), show_control=True)
        said = self.tokenizer.decode(self.prompt_ids(result), show_control=True)
        rendered = (text + begun for text in self._rendered(turns, result.turn.user))
        assert any(said in (text, bos + text) for text in rendered)

    def _rendered(self, turns: Sequence[Turn], user: Message) -> Iterator[str]:
        """The prompt's text with all turns, then with fewer and fewer of the oldest."""
        for first_turn in range(len(turns) + 1):
            conversation = Conversation(system=self.session.conversation.system, turns=turns[first_turn:])
            messages = [*conversation.messages(), user]
            yield self.template.render(messages, add_generation_prompt=True).text

    def _check_reply(self, reply: Message) -> None:
        """What was shown is kept, but for halves of characters at a cut."""
        for shown, kept in ((self.shown, reply.content), (self.thought, reply.reasoning or "")):
            assert shown.startswith(kept)
            assert set(shown[len(kept) :]) <= {"\ufffd"}


def greedy(producer: LogitProducer, prompt_ids: Sequence[int], n_tokens: int) -> list[int]:
    """The reply of a producer that starts from nothing."""
    logits = producer.produce_chunk(prompt_ids, 0, need_logits=True)
    ids = []
    for position in range(len(prompt_ids), len(prompt_ids) + n_tokens):
        assert logits is not None
        ids.append(int(logits.argmax()))
        logits = producer.produce(ids[-1], position)
    return ids


def chat_tokenizer(family: Family, *, pieces: Sequence[str] = ()) -> ChatBytes:
    """Bytes with the family's control tokens; BOS only where the family's models want one."""
    controls = [spelling for spelling in family.control_spellings if "unused" not in spelling]
    bos = family.bos_token if family.bos_token in ("<s>", "<bos>", "<|begin_of_text|>") else None
    visible = [spelling for spelling in controls if "think>" in spelling]
    return ChatBytes(controls, bos=bos, visible=visible, pieces=pieces)


def hash_runner(says: Sequence[int] = LETTERS, *, n_slots: int = 0) -> LogitProducer:
    """A HashModel behind the real runner, with ids enough for any tokenizer here, that says only `says`."""
    pool = SessionPool[HashState](n_slots) if n_slots else None
    return Runner(HashModel(vocab_size=512, says=says), KvPrefix, pool=pool)


def hash_chat(
    family: Family,
    *,
    says: Sequence[int] = LETTERS,
    pieces: Sequence[str] = (),
    producer: LogitProducer | None = None,
    n_slots: int = 0,
    **more: Any,
) -> Chat:
    """A chat with such a model, or the one given, each turn compared with a cold run."""
    tokenizer = chat_tokenizer(family, pieces=pieces)
    return Chat(
        producer or hash_runner(says, n_slots=n_slots), tokenizer, _load(family, tokenizer),
        source=family.source, cold=lambda: hash_runner(says), n_slots=n_slots, **{"max_tokens": "8"} | more,
    )  # fmt: skip


def scripted_chat(
    family: Family,
    *replies: str | Sequence[int],
    pieces: Sequence[str] = (),
    kind: type[ScriptedProducer] = ScriptedProducer,
    **more: Any,
) -> Chat:
    """A chat whose model says these replies: text by bytes and control tokens, or ids."""
    tokenizer = chat_tokenizer(family, pieces=pieces)
    script = [
        tokenizer.encode(reply, parse_special=True) if isinstance(reply, str) else reply for reply in replies
    ]
    # Gemma ends its turns with another token than its texts.
    end = family.eos_token if family.eos_token in family.turn_ends else min(family.turn_ends)
    end_id = tokenizer.control_ids[end]
    producer = kind(script, vocab_size=tokenizer.n_tokens, end_id=end_id)
    return Chat(producer, tokenizer, _load(family, tokenizer), source=family.source or "", **more)


def _load(family: Family, tokenizer: ChatBytes) -> ChatTemplate:
    return load_template(
        family.source, tuple(tokenizer.control_ids), bos_token=family.bos_token, eos_token=family.eos_token
    )
