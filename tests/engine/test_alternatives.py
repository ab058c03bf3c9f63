"""What else was likely is told for each token, and the cache is left as it was."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from checked_engine import MODELS, TEN, TEN_REPLY, Engine, Flag, every_model
from fakes import HashModel
from numpy.typing import NDArray

from turbospark_chat.engine.alternatives import Alternative, TokenChoice, explain_tokens
from turbospark_chat.errors import NoFiniteLogitsError


def explain(
    engine: Engine,
    ids: Sequence[int],
    n_tokens: int,
    *,
    held_ids: Sequence[int],
    n_alternatives: int = 2,
    n_known: int = 97,
    cancel: Flag | None = None,
) -> tuple[TokenChoice, ...]:
    return explain_tokens(
        engine.runner, ids, len(ids) - n_tokens,
        held_ids=held_ids, n_alternatives=n_alternatives, n_known=n_known, spell="<{}>".format,
        cancel=cancel or Flag(),
    )  # fmt: skip


def replied(make_model=HashModel, **how: object) -> tuple[Engine, list[int]]:  # type: ignore[no-untyped-def]
    """An engine after a reply, and the ids of prompt and reply."""
    engine = Engine(make_model())
    raw = engine.run(TEN, **{"max_new_tokens": 6} | how)
    return engine, [*TEN, *raw.token_ids]


class FixedModel(HashModel):
    """Says the same of every position."""

    def __init__(self, logits: list[float]) -> None:
        super().__init__(vocab_size=len(logits))
        self._logits = np.array(logits, np.float32)

    def logits(self, state: object) -> NDArray[np.float32]:
        return self._logits


def test_probabilities_are_the_models_own_and_the_chosen_token_is_among_them() -> None:
    engine = Engine(FixedModel([math.log(4), math.log(1), math.log(3), math.log(2)]))
    first, second = explain(engine, [0, 0, 2, 1], 2, held_ids=())
    assert (first.token_id, first.text, first.rank) == (2, "<2>", 2)
    assert first.probability == pytest.approx(0.3)
    assert [(one.token_id, one.text) for one in first.alternatives] == [(0, "<0>"), (2, "<2>")]
    assert [one.probability for one in first.alternatives] == pytest.approx([0.4, 0.3])
    assert (second.token_id, second.rank) == (1, 4)
    assert second.alternatives[:2] == first.alternatives
    assert second.alternatives[2:] == (Alternative(1, "<1>", second.probability),)
    assert second.probability == pytest.approx(0.1)


def test_of_equals_the_lowest_id_comes_first() -> None:
    choices = explain(Engine(FixedModel([0, 1, 1, 1])), [0, 1, 2, 3], 3, held_ids=())
    assert [choice.rank for choice in choices] == [1, 2, 3]
    assert [one.token_id for one in choices[2].alternatives] == [1, 2, 3]


@pytest.mark.parametrize(("n_alternatives", "n_given"), [(0, 2), (1, 2), (5, 5), (20, 5)])
def test_more_alternatives_than_there_are_tokens_are_all_of_them(n_alternatives: int, n_given: int) -> None:
    engine = Engine(FixedModel([5, 4, 3, 2, 1]))  # D16
    (choice,) = explain(engine, [0, 4], 1, held_ids=(), n_alternatives=n_alternatives)
    assert len(choice.alternatives) == n_given
    assert choice.alternatives[0].token_id == 0


def test_rows_of_padding_and_nan_have_no_probability() -> None:
    engine = Engine(FixedModel([1, -math.inf, 1, 9]))
    (choice,) = explain(engine, [0, 1], 1, held_ids=(), n_alternatives=9, n_known=3)
    assert [one.token_id for one in choice.alternatives] == [0, 2, 1]
    assert (choice.probability, choice.rank) == (0.0, 3)
    assert choice.alternatives[0].probability == pytest.approx(0.5)


def test_a_model_that_gives_nothing_finite_cannot_say() -> None:
    engine, ids = replied()
    record = engine.runner.record.ids
    engine.model.logits = lambda state: np.full(97, np.nan, np.float32)  # type: ignore[method-assign]
    with pytest.warns(match="NaN"), pytest.raises(NoFiniteLogitsError):
        explain(engine, ids, 3, held_ids=record)
    assert engine.runner.record.ids == record


@every_model
@pytest.mark.parametrize("n_tokens", [0, 1, 3, 6])
@pytest.mark.parametrize("ends_by_itself", [False, True])
def test_what_greedy_chose_was_the_likeliest_and_the_cache_is_as_it_was(  # type: ignore[no-untyped-def]
    make_model, n_tokens: int, ends_by_itself: bool
) -> None:
    engine, ids = replied(make_model)
    if ends_by_itself:  # all of the reply is in the cache
        engine.run([*ids, 1], is_prefill_only=True)
    record = engine.runner.record.ids
    choices = explain(engine, ids, n_tokens, held_ids=record)
    assert [(choice.token_id, choice.rank) for choice in choices] == [
        (token, 1) for token in ids[len(ids) - n_tokens :]
    ]
    assert engine.runner.record.ids == record
    # The run checks that the state is what the record says, and that only what is new is evaluated.
    raw = engine.run([*record, 50, 51], max_new_tokens=4)
    assert raw.reused_prefix_tokens == len(record)
    assert raw.token_ids == Engine(make_model()).run([*record, 50, 51], max_new_tokens=4).token_ids


@pytest.mark.parametrize("polls", range(6))
@every_model
def test_cancelled_it_tells_the_earliest_and_record_and_state_agree(make_model, polls: int) -> None:  # type: ignore[no-untyped-def]
    engine, ids = replied(make_model)
    record = engine.runner.record.ids
    choices = explain(engine, ids, 4, held_ids=record, cancel=Flag(polls=polls))
    assert [choice.token_id for choice in choices] == ids[-4:][: len(choices)]
    left = engine.runner.record.ids
    assert left == record[: len(left)]
    if make_model is MODELS["full"]:
        assert (len(choices), left) == (min(polls, 4), record)
    assert (
        engine.run([*ids, 50], max_new_tokens=4).token_ids
        == Engine(make_model()).run([*ids, 50], max_new_tokens=4).token_ids
    )


@pytest.mark.parametrize("n_boundaries", range(12))
@every_model
def test_a_fault_at_any_point_leaves_record_and_state_agreeing(make_model, n_boundaries: int) -> None:  # type: ignore[no-untyped-def]
    engine, ids = replied(make_model)
    record, left_to_pass = engine.runner.record.ids, iter(range(n_boundaries))

    def fail(name: str) -> None:
        if next(left_to_pass, None) is None:
            engine.model.on_boundary = lambda name: None
            raise RuntimeError(name)

    engine.model.on_boundary = fail
    with pytest.raises(RuntimeError):
        explain(engine, ids, 5, held_ids=record)
    left = engine.runner.record.ids
    assert left == record[: len(left)] and len(left) == len(engine.runner.state)
    if make_model is MODELS["full"]:
        assert left == record
    assert (
        engine.run([*ids, 50], max_new_tokens=4).token_ids
        == Engine(make_model()).run([*ids, 50], max_new_tokens=4).token_ids
    )


def test_only_the_tokens_asked_about_are_computed_again() -> None:
    engine, ids = replied()
    evaluated = engine.model.evaluated
    explain(engine, ids, 2, held_ids=engine.runner.record.ids)
    assert engine.model.evaluated - evaluated == 2


def test_a_cache_that_went_on_elsewhere_is_brought_back() -> None:
    engine, ids = replied()
    record = (*ids, 60, 61, 62)
    engine.run(record, is_prefill_only=True)
    explain(engine, ids, 2, held_ids=record)
    assert engine.runner.record.ids == record
    explain(engine, ids, 2, held_ids=record, cancel=Flag(polls=1))  # not what may take long
    assert engine.runner.record.ids == tuple(ids)


def test_of_a_cache_nobody_knows_the_ids_are_left() -> None:
    engine, ids = replied()
    engine.run(list(range(50, 60)), max_new_tokens=4)
    explain(engine, ids, 2, held_ids=())
    assert engine.runner.record.ids == tuple(ids[:-1])
    assert list(TEN_REPLY) == ids[10:14]


def test_a_cache_that_held_something_else_holds_it_again() -> None:
    engine, ids = replied()
    other = list(range(50, 60))
    engine.run(other, is_prefill_only=True)
    explain(engine, ids, 2, held_ids=other)
    assert engine.runner.record.ids == tuple(other)


def test_once_cancelled_nothing_is_computed_for_a_state_that_could_not_go_back() -> None:
    engine, ids = replied(MODELS["recurrent"])
    evaluated = engine.model.evaluated
    explain(engine, ids, 2, held_ids=engine.runner.record.ids, cancel=Flag(polls=0))
    assert engine.model.evaluated == evaluated


def test_a_state_that_its_ids_do_not_describe_is_built_anew() -> None:
    engine, ids = replied()
    engine.runner.record.taint()
    explain(engine, ids, 2, held_ids=())
    assert engine.run([*ids, 50], max_new_tokens=4).reused_prefix_tokens == len(ids) - 1
