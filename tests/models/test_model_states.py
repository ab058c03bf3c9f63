"""A state kept in a file: taken up it goes on as if it had never been away, and nothing else is ever taken up."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fakes import HashModel, RecurrentModel
from tiny_model import COMPILED_SIZES, write_tiny_model

from turbospark_chat.engine.kv_prefix import KvPrefix, MediaId
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.errors import StateFileError
from turbospark_chat.models.loader import Arithmetic, load_model
from turbospark_chat.models.model_states import ModelStates
from turbospark_chat.models.runner import Runner
from turbospark_chat.models.state_file import StoredState, read_state, write_state

PROMPT = [5, 11, 23, 42]  # the reply to it is 43, 2, 56
PARTS = {"model file": "m", "tokenizer": "t", "n layers": "2", "rope theta": "10000.0", "cache": "float32"}
TEMPLATE = "{{ messages }}"


@dataclass
class Engine:
    """A runner, the states behind it, and the replies it gives."""

    runner: Runner[KvPrefix, Any]
    states: ModelStates[KvPrefix, Any]

    @classmethod
    def over(cls, model: Any, parts: dict[str, str] | None = None, *, n_slots: int = 0) -> "Engine":
        runner: Runner[KvPrefix, Any] = Runner(
            model, KvPrefix, pool=SessionPool[Any](n_slots) if n_slots else None
        )
        return cls(runner, ModelStates(runner, KvPrefix, lambda cancel: PARTS if parts is None else parts))

    @property
    def n_evaluated(self) -> int:
        model: Any = self.runner.model
        return int(model.evaluated)

    def feed(self, ids: Sequence[int]) -> None:
        """Hold exactly these ids."""
        self.runner.reset()
        self.runner.produce_chunk(ids, 0, need_logits=False)

    def reply(self, prompt: Sequence[int], n_tokens: int = 3) -> list[int]:
        """Answer greedily, reusing what there is; the last token is not fed."""
        reused = self.runner.try_reuse_prefix(prompt)
        logits = self.runner.produce_chunk(prompt[reused:], reused, need_logits=True)
        reply: list[int] = []
        while True:
            assert logits is not None
            reply.append(int(np.argmax(logits)))
            if len(reply) == n_tokens:
                return reply
            logits = self.runner.produce(reply[-1], len(prompt) + len(reply) - 1)

    def save(self, path: Path) -> None:
        self.states.save(path, template=TEMPLATE)

    def load(self, path: Path) -> int:
        return self.states.load(path, template=TEMPLATE)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "1.state"


def written(path: Path, ids: Sequence[int], make_model: Callable[[], Any] = HashModel) -> Path:
    engine = Engine.over(make_model())
    engine.feed(ids)
    engine.save(path)
    return path


def test_a_state_comes_back_with_its_filled_length_and_goes_on_as_if_never_saved(path: Path) -> None:  # 20
    engine = Engine.over(HashModel())
    assert engine.load(written(path, PROMPT[:3])) == 3
    assert (engine.states.held_ids, len(engine.runner.state)) == ((5, 11, 23), 3)
    assert engine.reply(PROMPT) == [43, 2, 56]
    assert engine.n_evaluated == 3  # 42 at position 3, and the two of the reply at 4 and 5
    assert [position for position, _ in engine.runner.state.entries] == [0, 1, 2, 3, 4, 5]


def test_a_shorter_prompt_cuts_what_was_taken_up(path: Path) -> None:  # 20, A12
    engine = Engine.over(HashModel())
    ids = [*PROMPT, 9, 8, 7, 6, 5, 4]
    assert engine.load(written(path, ids)) == 10
    assert engine.reply(PROMPT, n_tokens=1) == [43]
    assert (engine.n_evaluated, len(engine.runner.state)) == (1, 4)


def test_taking_up_over_other_content_is_as_taking_up_in_a_fresh_engine(path: Path) -> None:  # 20, A15
    written(path, PROMPT[:3])
    used, fresh = Engine.over(HashModel()), Engine.over(HashModel())
    used.reply(list(range(30, 60)), n_tokens=8)
    for engine in (used, fresh):
        assert engine.load(path) == 3
    assert used.states.held_ids == fresh.states.held_ids
    assert used.reply(PROMPT) == fresh.reply(PROMPT) == [43, 2, 56]


def test_the_live_state_is_parked_for_one_that_is_taken_up(path: Path) -> None:
    engine = Engine.over(HashModel(), n_slots=2)
    engine.feed(other := list(range(30, 60)))
    engine.load(written(path, PROMPT[:3]))
    assert engine.states.n_parked([*other, 1]) == 30


def test_a_file_is_a_snapshot_that_serves_twice(path: Path) -> None:  # A11
    written(path, PROMPT[:3])
    before = path.read_bytes()
    engine = Engine.over(HashModel())
    for _ in range(2):
        engine.load(path)
        assert engine.reply(PROMPT, n_tokens=20)[:3] == [43, 2, 56]
    assert path.read_bytes() == before


def test_no_more_is_written_than_is_asked_for(path: Path) -> None:
    engine = Engine.over(HashModel())
    engine.feed([*PROMPT, 9, 8, 7])
    engine.states.save(path, template=TEMPLATE, n_positions=4)
    assert read_state(path).ids == engine.states.held_ids == tuple(PROMPT)
    engine.states.save(path, template=TEMPLATE, n_positions=99)
    assert read_state(path).ids == tuple(PROMPT)


@pytest.mark.parametrize(
    "make_model",
    [lambda: HashModel(window=4), lambda: RecurrentModel(marks=True)],
    ids=["ring", "recurrent"],
)
def test_states_that_cannot_simply_go_back_go_on_too(path: Path, make_model: Callable[[], Any]) -> None:
    warm, cold = Engine.over(make_model()), Engine.over(make_model())
    ids = list(range(30, 42))
    assert warm.load(written(path, ids, make_model)) == 12
    assert warm.reply([*ids, 7], n_tokens=5) == cold.reply([*ids, 7], n_tokens=5)
    assert warm.n_evaluated == 5


@pytest.mark.parametrize("name", [*PARTS, "version of this program"])
def test_what_was_computed_with_anything_else_is_refused_by_its_name(path: Path, name: str) -> None:  # 20
    written(path, PROMPT[:3])
    engine = Engine.over(HashModel(), {**PARTS, name: "another"})
    engine.feed([1, 2])
    with pytest.raises(StateFileError, match=f"it was computed with another {name}$"):
        engine.load(path)
    assert engine.states.held_ids == (1, 2)


def test_what_was_computed_with_something_that_is_unknown_here_is_refused(path: Path) -> None:
    engine = Engine.over(HashModel(), {**PARTS, "adapter": "a"})
    engine.feed(PROMPT)
    engine.save(path)
    with pytest.raises(StateFileError, match="another adapter"):
        Engine.over(HashModel()).load(path)


def test_another_template_is_refused(path: Path) -> None:  # 20
    written(path, PROMPT[:3])
    with pytest.raises(StateFileError, match="another template"):
        Engine.over(HashModel()).states.load(path, template=TEMPLATE + " ")


def test_fingerprints_that_cannot_be_had_leave_everything_as_it_was(path: Path) -> None:
    def fail(cancel: object) -> dict[str, str]:
        raise StateFileError(path, "the model file has changed")

    before = written(path, PROMPT[:3]).read_bytes()
    runner = Runner(HashModel(), KvPrefix)
    states = ModelStates(runner, KvPrefix, fail)
    runner.produce_chunk([1, 2], 0, need_logits=False)
    for use in (states.load, states.save):
        with pytest.raises(StateFileError, match="has changed"):
            use(path, template=TEMPLATE)
    assert (states.held_ids, path.read_bytes()) == ((1, 2), before)


@pytest.mark.parametrize(
    "ids", [(), (5, MediaId(7, b"digest")), (5, MediaId(7, None))], ids=["nothing", "picture", "undescribed"]
)
def test_what_ids_alone_do_not_describe_is_not_written(path: Path, ids: Sequence[int]) -> None:
    engine = Engine.over(HashModel())
    if ids:
        engine.feed(ids)
    with pytest.raises(StateFileError, match="nothing to keep"):
        engine.save(path)
    assert not path.exists()


def test_ids_that_the_model_does_not_have_are_refused(path: Path) -> None:
    engine = Engine.over(HashModel(vocab_size=42))
    with pytest.raises(StateFileError, match="token ids that the model does not have"):
        engine.load(written(path, PROMPT))


# The real caches: numpy's and the kernels', with and without sliding windows, which 300 positions are well past

Load = Callable[..., Engine]


@pytest.fixture(
    params=[(kind, with_kernels) for kind in ("llama", "gemma3") for with_kernels in (False, True)],
    ids=lambda param: f"{param[0]} {'compiled' if param[1] else 'numpy'}",
)
def load(request: pytest.FixtureRequest, compiled: Arithmetic, tmp_path: Path) -> Load:
    """Load a tiny model and put an engine over it."""
    architecture, with_kernels = request.param
    file = write_tiny_model(
        tmp_path / "tiny.gguf", architecture=architecture, kind="Q8_0", sizes=COMPILED_SIZES
    )

    def load(*, window_slack: int = 8) -> Engine:
        arithmetic = compiled if with_kernels else Arithmetic()
        loaded = load_model(file, available_bytes=10**9, arithmetic=arithmetic, window_slack=window_slack)
        assert loaded.model.arithmetic.startswith("compiled" if with_kernels else "numpy")
        return Engine.over(loaded.model)

    return load


@pytest.mark.parametrize("window_slack", [8, 0, 100])
def test_replies_after_taking_up_are_those_of_the_run_that_was_never_saved(
    load: Load, path: Path, window_slack: int
) -> None:  # 20
    live, warm = load(), load(window_slack=window_slack)
    prompt = [*range(2, 240), *range(2, 60)]
    prompt += live.reply(prompt, n_tokens=9)[:-1]
    live.save(path)
    assert warm.load(path) == len(prompt) > 300
    question = [*prompt, *range(100, 120)]
    assert warm.reply(question, n_tokens=20) == live.reply(question, n_tokens=20)
    for (name, one), (_, other) in zip(
        warm.runner.state.as_floats(), live.runner.state.as_floats(), strict=True
    ):
        # Without slack the prompt is cut before its last token, which moves the last digits.
        np.testing.assert_allclose(one, other, atol=1e-3, err_msg=name)


def test_what_was_taken_up_goes_back_as_far_as_it_can_and_never_to_a_wrong_state(
    load: Load, path: Path
) -> None:  # 20, 5
    live, warm, cold = load(), load(), load()
    prompt = [*range(2, 240), *range(2, 60)]
    live.reply(prompt, n_tokens=1)
    live.save(path)
    warm.load(path)
    for n_kept in (295, 290, 200, 20):
        question = [*prompt[:n_kept], 250, 251, 252]
        cold.runner.reset()
        assert warm.reply(question, n_tokens=6) == cold.reply(question, n_tokens=6)


def test_the_file_is_as_long_as_its_positions(load: Load, path: Path) -> None:  # G9
    engine = load()
    engine.feed([7] * 300)
    engine.save(path)
    n_bytes = sum(array.nbytes for array in engine.runner.state.export().values())
    assert n_bytes <= engine.runner.state.n_bytes
    assert n_bytes + 300 * 8 <= path.stat().st_size <= n_bytes + 300 * 8 + 8192


def test_arrays_of_another_length_are_refused(load: Load, path: Path) -> None:
    engine = load()
    engine.feed([7] * 20)
    engine.save(path)
    stored = read_state(path)
    write_state(path, StoredState(stored.fingerprints, stored.ids[:-1], stored.arrays))
    engine.feed([1, 2, 3])
    with pytest.raises(StateFileError, match="does not fit: "):
        engine.load(path)
    assert engine.states.held_ids == (1, 2, 3)
