"""The promise: whatever happened before, a turn says what a cold engine says, and record, cache and position agree.

Random schedules of turns, edits, rewinds, branches, drafts read ahead, states parked, saved and taken up, guesses
checked in batches, cancels at every boundary, faults inside a forward pass, thoughts that are ended, looks at the
alternatives, other conversations on the same model and window drops; against models that show every misplaced token,
with full attention, in a ring and recurrent with checkpoints, and against tiny transformers in both arithmetics.

Run as a program it takes more of them, on one model after another, and prints the seed that repeats the run:

    python tests/test_reuse.py --schedules 10000
"""

import secrets
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pytest
from fakes import ChatBytes, HashModel, RecurrentModel
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from numpy.typing import NDArray
from sessions import CancelAfter
from tiny_model import CHATML, COMPILED_TOLERANCE, load_tiny_model

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.options import OPTIONS
from turbospark_chat.chat.reasoning import ReasoningTags
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnResult
from turbospark_chat.engine.completion import CompletionConfig, PrefillMode, StopReason
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.errors import DoesNotFitError, StateFileError, UsageError
from turbospark_chat.models.loader import Arithmetic
from turbospark_chat.models.model_states import ModelStates
from turbospark_chat.models.runner import Runner
from turbospark_chat.models.state import Model

MakeModel = Callable[[], Model]  # type: ignore[type-arg]

CONTEXT = 160
# Letters, white space, halves of characters, a whole one, control tokens: replies that re-tokenise badly.
SAYABLE = [*b"abcdefghij \n", 0xC3, 0xA9, 0xF0, 256, 257, 257]
MESSAGES = st.sampled_from(["", "a", "hi there", "é😀", "<|im_end|>", "count\nto ten", "x" * 40])


# Thinks from its prompt on, and its closing tag is a letter that the models say now and then.
THINKING = CHATML.replace("assistant\n", "assistant\n<")
TAGS = ReasoningTags("<", "j")
CLOSING = "\nj\n\n"

DRAFTS = st.sampled_from(
    ["", "a", "hi", "hi th", "hi there", "é😀", "<|im_end|>", "x" * 25, "x" * 40, "y" * 200]
)
POLLS = st.none() | st.integers(0, 12)
FAILS_IN = st.none() | st.integers(0, 9)


class FaultyModel:
    """A model that raises at a chosen forward pass, after it has done its work."""

    def __init__(self, model: Model) -> None:  # type: ignore[type-arg]
        self._model = model
        self.vocab_size = model.vocab_size
        self.make_state = model.make_state
        self.fails_in: int | None = None
        if hasattr(model, "forward_each"):
            self.forward_each = self._forward_each

    def forward(self, tokens: Sequence[int], state: object, *, need_logits: bool) -> NDArray | None:  # type: ignore[type-arg]
        logits = self._model.forward(tokens, state, need_logits=need_logits)
        self._fail_if_due()
        return logits

    def _forward_each(self, tokens: Sequence[int], state: object) -> NDArray:  # type: ignore[type-arg]
        logits = self._model.forward_each(tokens, state)  # type: ignore[attr-defined]
        self._fail_if_due()
        return logits

    def _fail_if_due(self) -> None:
        if self.fails_in is not None:
            self.fails_in -= 1
            if self.fails_in < 0:
                self.fails_in = None
                raise KeyboardInterrupt


class ReuseMachine(RuleBasedStateMachine):
    """Two conversations on one runner, compared with cold runs of the same prompts."""

    make_model: Callable[[], Model]  # type: ignore[type-arg]
    tolerance: float  # between logits of two ways to cut the same prompt into chunks
    tokenizer = ChatBytes()

    @initialize(slots=st.sampled_from([None, 0, 1, 2]), system=st.sampled_from([None, "Be brief."]))
    def begin(self, slots: int | None, system: str | None) -> None:
        self.model = FaultyModel(type(self).make_model())
        pool = None if slots is None else SessionPool(slots)
        self.runner = Runner(self.model, KvPrefix, pool=pool)
        # The second conversation shares not even its first token, so that a pool has something to park.
        self.sessions = [
            self._session(CHATML, system),
            self._session("B" + CHATML, "Other."),
            self._session(THINKING, system),
        ]
        self.held: dict[
            int, tuple[int, ...]
        ] = {}  # the record that a session's turn has left, until the next
        self.session = self.sessions[0]
        self._temporary = TemporaryDirectory()
        self.folder = Path(self._temporary.name)
        self.saved: dict[str, tuple[tuple[int, ...], str]] = {}  # record and template by file
        self.said: list[tuple[int, ...]] = []  # prompts with their replies, of turns that were taken

    def teardown(self) -> None:
        if hasattr(self, "_temporary"):
            self._temporary.cleanup()

    @property
    def has_turns(self) -> bool:
        return bool(self.session.conversation.turns)

    def _session(self, source: str, system: str | None) -> ChatSession:
        controls = tuple(self.tokenizer.control_ids)
        template = ChatTemplate(source, bos_token=None, eos_token=None, control_spellings=controls)
        tags = TAGS if source == THINKING else None
        states = ModelStates(self.runner, KvPrefix, lambda cancel: {"model": "tested"})
        model = ChatModel(
            self.runner, self.tokenizer, template, {}, CONTEXT, reasoning_tags=tags, states=states
        )
        session = ChatSession(model, system=system)
        completion = CompletionConfig(sampling=SamplingConfig(temperature=0), max_new_tokens=6, chunk_size=5)
        session.options = replace(session.options, completion=completion)
        return session

    @rule(text=MESSAGES, polls=POLLS, fails_in=FAILS_IN)
    def send(self, text: str, polls: int | None, fails_in: int | None) -> None:
        self._turn(lambda **how: self.session.send(text, **how), polls, fails_in)

    @rule(text=MESSAGES, polls=POLLS, fails_in=FAILS_IN, asks_at=st.integers(1, 5))
    def send_to_a_thinker(self, text: str, polls: int | None, fails_in: int | None, asks_at: int) -> None:
        self.session = self.sessions[2]
        self._turn(lambda **how: self.session.send(text, **how), polls, fails_in, asks_at)

    @rule(text=MESSAGES)
    def send_in_peace(self, text: str) -> None:
        self._turn(lambda **how: self.session.send(text, **how), None, None)

    @precondition(lambda self: self.has_turns)
    @rule(polls=POLLS, fails_in=FAILS_IN)
    def retry(self, polls: int | None, fails_in: int | None) -> None:
        self._turn(self.session.retry, polls, fails_in)

    @precondition(lambda self: self.has_turns and not self.session.conversation.turns[-1].reply.complete)
    @rule(polls=POLLS, asks_at=st.none() | st.integers(1, 3))
    def go_on(self, polls: int | None, asks_at: int | None) -> None:
        self._turn(self.session.continue_reply, polls, None, asks_at)

    @precondition(lambda self: self.has_turns)
    @rule(n_tokens=st.integers(0, 8), polls=POLLS, fails_in=FAILS_IN)
    def explain(self, n_tokens: int, polls: int | None, fails_in: int | None) -> None:
        """Look at the alternatives; conversation and cache stay as they were."""
        turns, record = self.session.conversation.turns, self.runner.record.ids
        self.model.fails_in = fails_in
        try:
            choices = self.session.explain(n_tokens, n_alternatives=2, cancel=CancelAfter(polls))
        except (DoesNotFitError, KeyboardInterrupt):
            self.held.clear()
        else:
            ids = turns[-1].generated_ids
            asked = ids[max(len(ids) - n_tokens, 0) :]
            assert [choice.token_id for choice in choices] == list(asked[: len(choices)])
            if polls is None:
                assert len(choices) == len(asked)
                # A ring that could not go back, and so holds nothing, is left with what was fed.
                assert (
                    self.held.get(id(self.session)) != record
                    or self.runner.record.ids == record
                    or not record
                )
        finally:
            self.model.fails_in = None
        assert self.session.conversation.turns == turns

    @precondition(lambda self: self.has_turns)
    @rule(change=st.sampled_from(["undo", "rewind 1", "forget", "clear", "edit", "restore", "say again"]))
    def change_conversation(self, change: str) -> None:
        conversation = self.session.conversation
        if change == "undo":
            self.session.undo()
        elif change == "rewind 1":
            self.session.rewind(1)
        elif change == "restore":
            self.session.restore(conversation)
        elif change == "say again":
            turns = [replace(turn, generated_ids=(999, *turn.generated_ids)) for turn in conversation.turns]
            self.session.restore(Conversation(system=conversation.system, turns=turns))
        elif change == "forget":
            self.session.forget()
        elif change == "clear":
            self.session.clear()
        else:
            last = conversation.turns[-1]
            conversation.replace_last(replace(last, reply=replace(last.reply, content="new words")))

    @rule(draft=DRAFTS, polls=POLLS, fails_in=FAILS_IN)
    def read_ahead(self, draft: str, polls: int | None, fails_in: int | None) -> None:
        """Read what is certain of a draft; conversation and options stay as they were."""
        before, record = self.session.conversation.turns, self.runner.record.ids
        self.model.fails_in = fails_in
        try:
            n_ahead = self.session.read_ahead(draft, cancel=CancelAfter(polls))
        except (DoesNotFitError, KeyboardInterrupt):
            pass
        else:
            assert 0 <= n_ahead <= len(self.runner.record)
        finally:
            self.model.fails_in = None
        if self.runner.record.ids != record:
            self.held.clear()
        assert self.session.conversation.turns == before

    @rule(name=st.sampled_from(["a", "b"]))
    def save_state(self, name: str) -> None:
        before = self.runner.record.ids
        with suppress(StateFileError):  # there is nothing to save yet
            self.session.save_state(self.folder / name)
            self.saved[name] = self.runner.record.ids, self.session.model.template.source
        record = self.runner.record.ids
        # Of a draft that was read, or a message that got no reply, nothing is saved.
        assert any(record == said[: len(record)] for said in [(), *self.said])
        assert record == before[: len(record)]
        if record != before:
            self.held.clear()

    @rule(name=st.sampled_from(["a", "b"]), flipped=st.none() | st.integers(0, 10**6))
    def take_up_state(self, name: str, flipped: int | None) -> None:
        """Go on from a state in a file: what was saved, or, where that is damaged or foreign, what there is."""
        path, record = self.folder / name, self.runner.record.ids
        ids, source = self.saved.get(name, ((), ""))
        content = path.read_bytes() if name in self.saved else b""
        if content and flipped is not None:
            damaged = bytearray(content)
            damaged[flipped % len(damaged)] ^= 1
            path.write_bytes(damaged)
        try:
            n_positions = self.session.take_up_state(path)
        except StateFileError:
            assert flipped is not None or not content or source != self.session.model.template.source
            assert self.runner.record.ids == record
        else:
            assert flipped is None
            assert self.runner.record.ids == ids
            assert len(self.runner.state) == n_positions == len(ids)
            self.held.clear()
        if content:
            path.write_bytes(content)

    @rule()
    def park(self) -> None:
        self.runner.expect_return()

    @rule()
    def give_up_a_parked_state(self) -> None:
        self.runner.evict_parked()

    @rule(index=st.integers(0, 2))
    def go_to_another_conversation(self, index: int) -> None:
        self.session = self.sessions[index]

    @rule(name=st.sampled_from(["main", "other", "third"]))
    def go_to_another_branch(self, name: str) -> None:
        is_there = name in self.session.conversation.branches
        (self.session.switch if is_there else self.session.branch_off)(name)

    @rule(system=st.sampled_from([None, "Be brief.", "Be long."]))
    def change_system(self, system: str | None) -> None:
        self.session.set_system(system)

    @rule(
        change=st.sampled_from(
            [("keep_reasoning", "on"), ("keep_reasoning", "off"), ("reuse", "off"), ("reuse", "on")]
            + [
                ("stop", "ab"),
                ("stop", "none"),
                ("max_tokens", "1"),
                ("max_tokens", "6"),
                ("max_tokens", "none"),
            ]
            + [("on_overflow", "error"), ("on_overflow", "drop")]
            + [("max_thinking_tokens", most) for most in ("0", "2", "none")]
            + [("speculate", most) for most in ("0", "2", "5")]
        )
    )
    def change_option(self, change: tuple[str, str]) -> None:
        self.session.options = OPTIONS[change[0]].change(self.session.options, change[1])

    @rule(mode=st.sampled_from(PrefillMode), chunk_size=st.sampled_from([1, 2, 5, 64]))
    def change_prefill(self, mode: PrefillMode, chunk_size: int) -> None:
        completion = replace(self.session.options.completion, prefill_mode=mode, chunk_size=chunk_size)
        self.session.options = replace(self.session.options, completion=completion)

    @invariant()
    def record_and_cache_agree(self) -> None:
        if hasattr(self, "runner"):
            assert len(self.runner.record) == len(self.runner.state)

    def _turn(
        self,
        take: Callable[..., TurnResult],
        polls: int | None,
        fails_in: int | None,
        asks_at: int | None = None,
    ) -> None:
        """Take a turn and compare it with a cold engine; one that cannot be had changes nothing."""
        before = self.session.conversation.turns
        self.model.fails_in = fails_in
        self.held.clear()

        def on_event(event: TurnEvent) -> None:
            if isinstance(event, ReplyText) and event.n_tokens == asks_at:
                self.session.answer_now()

        try:
            result = take(cancel=CancelAfter(polls), on_event=on_event)
        except (DoesNotFitError, UsageError, KeyboardInterrupt):
            assert self.session.conversation.turns == before
            return
        finally:
            self.model.fails_in = None
        raw = result.raw
        assert raw.kv_position == len(raw.kv_backed_token_ids) == len(self.runner.state)
        assert raw.kv_backed_token_ids == self.runner.record.ids
        assert raw.new_tokens == len(raw.token_ids)
        self.held[id(self.session)] = raw.kv_backed_token_ids
        said_nothing = raw.new_tokens == 0 or (result.turn is None or result.turn.reply.is_empty)
        assert (result.turn is None) == (raw.reason is StopReason.CANCELLED and said_nothing)
        if result.turn is None:
            assert self.session.conversation.turns == before
        else:
            self.said.append((*raw.kv_backed_token_ids[: raw.prompt_tokens], *raw.token_ids))
        if raw.kv_position >= raw.prompt_tokens:
            prompt_ids = raw.kv_backed_token_ids[: raw.prompt_tokens]
            assert raw.kv_backed_token_ids == (*prompt_ids, *raw.token_ids)[: raw.kv_position]
            assert self.session.options.keep_reasoning or self._says_the_conversation(
                prompt_ids, before, result
            )
            self._compare(prompt_ids, raw.token_ids, raw.reason)

    def _says_the_conversation(
        self, prompt_ids: Sequence[int], before: tuple[Turn, ...], result: TurnResult
    ) -> bool:
        """Whether the ids spell what the template renders for some of the newest turns, whatever the ids are."""
        spelled = self.tokenizer.decode(prompt_ids, show_control=True)
        turn = result.turn
        if turn is None:
            return True
        is_new = self.session.conversation.turns[:-1] == before
        earlier, begun = (before, "") if is_new else (before[:-1], before[-1].generated)
        conversation = Conversation(system=self.session.conversation.system, turns=earlier)
        # A retry replaces the last reply, `/continue` prolongs it; and a thought may be closed before it begins.
        endings = {text + closing for text in ("", begun) for closing in ("", CLOSING)}
        for first_turn in range(len(earlier) + 1):
            messages = [*conversation.messages(first_turn=first_turn), turn.user]
            text = self.session.model.template.render(messages, add_generation_prompt=True).text
            if any(spelled == text + ending for ending in endings):
                return True
        return False

    def _compare(self, prompt_ids: Sequence[int], token_ids: Sequence[int], reason: StopReason) -> None:
        """A cold engine given the same ids would have chosen the same ones, and ended where this one did."""
        cold = Runner(type(self).make_model(), KvPrefix)
        n_tokens = self.tokenizer.n_tokens  # the model may know more ids, which are never sampled
        logits = cold.produce_chunk(prompt_ids, 0, need_logits=True)[:n_tokens]
        closing = self.tokenizer.encode(CLOSING) if self.session is self.sessions[2] else []
        n_given = 0  # ids to come that nobody chose
        for index, token in enumerate(token_ids):
            if closing and list(token_ids[index : index + len(closing)]) == closing:
                n_given, closing = len(closing), []
            position = len(prompt_ids) + index
            is_chosen = logits[token] >= logits.max() - self.tolerance
            assert n_given or is_chosen, f"the reply differs at position {position}"
            n_given = max(n_given - 1, 0)
            logits = cold.produce(token, position)[:n_tokens]
        if reason is StopReason.END_OF_TURN:
            assert max(logits[256], logits[257]) >= logits.max() - self.tolerance


def run(
    make_model: MakeModel,
    *,
    max_examples: int,
    steps: int,
    tolerance: float = 0.0,
    seed: int | None = None,
) -> None:
    """Run schedules; with a `seed` always the same ones."""
    machine = type(
        "Machine", (ReuseMachine,), {"make_model": staticmethod(make_model), "tolerance": tolerance}
    )
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            derandomize=seed is None and settings.default.derandomize,
        ),
    )


def ring_model() -> Model:  # type: ignore[type-arg]
    return HashModel(window=40, vocab_size=258, says=SAYABLE)


EXACT: dict[str, MakeModel] = {
    "full attention": lambda: HashModel(vocab_size=258, says=SAYABLE),
    "a ring": ring_model,
    "recurrent, with checkpoints": lambda: RecurrentModel(marks=True, vocab_size=258),
    "recurrent, a checkpoint every 7": lambda: RecurrentModel(every=7, vocab_size=258),
}


@pytest.mark.parametrize("name", EXACT)
def test_every_schedule_on_an_exact_model_equals_cold_runs(name: str) -> None:
    run(EXACT[name], max_examples=150 if name == "full attention" else 60, steps=30)


def test_every_schedule_on_a_tiny_llama_equals_cold_runs(tmp_path: Path) -> None:
    model = load_tiny_model(tmp_path).model
    assert model.arithmetic.startswith("numpy")
    run(lambda: model, max_examples=60, steps=20, tolerance=1e-3)


WINDOWED = {"llama__attention__sliding_window": 40}


@pytest.mark.parametrize("is_compiled", [False, True], ids=["numpy", "compiled"])
def test_every_schedule_on_layers_with_windows_equals_cold_runs(
    tmp_path: Path, compiled: Arithmetic, is_compiled: bool
) -> None:
    model = load_tiny_model(tmp_path, compiled if is_compiled else None, window_slack=16, **WINDOWED).model
    assert model.arithmetic.startswith("compiled" if is_compiled else "numpy")
    run(lambda: model, max_examples=40, steps=20, tolerance=COMPILED_TOLERANCE)


def test_every_schedule_on_compiled_kernels_equals_cold_runs(tmp_path: Path, compiled: Arithmetic) -> None:
    model = load_tiny_model(tmp_path, compiled).model
    assert model.arithmetic.startswith("compiled")
    run(lambda: model, max_examples=60, steps=20, tolerance=COMPILED_TOLERANCE)


def main() -> None:
    """Take as many schedules as asked for, in turn on every exact model, and say how to repeat them."""
    parser = ArgumentParser(description="Random schedules against cold runs.")
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    for name, make_model in EXACT.items():
        n_schedules = asked.schedules // len(EXACT)
        run(make_model, max_examples=n_schedules, steps=30, seed=asked.seed)
        print(f"{name}: {n_schedules} schedules, every reply as a cold engine's", flush=True)


if __name__ == "__main__":
    main()
