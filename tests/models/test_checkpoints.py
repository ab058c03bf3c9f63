"""Checkpoints: which are kept, and what going back costs under the real runner, in tokens evaluated."""

import random
from collections.abc import Sequence
from functools import partial

import pytest
from fakes import RecurrentModel
from hybrid_model import HybridEngine, HybridModel
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.models.checkpoints import MOST_CHECKPOINTS, Checkpoints
from turbospark_chat.models.runner import Runner


def taken_at(lengths: Sequence[int], capacity: int = 8) -> Checkpoints[str]:
    checkpoints: Checkpoints[str] = Checkpoints(capacity)
    for length in lengths:
        checkpoints.add(length, f"copy at {length}")
    return checkpoints


# --- which are kept ---


@pytest.mark.parametrize(("asked", "found"), [(3, None), (4, 4), (8, 4), (9, 9), (99, 9)])
def test_the_newest_at_or_before_a_length_is_found(asked: int, found: int | None) -> None:  # 6
    checkpoints = taken_at([4, 9])
    assert checkpoints.newest(asked) == (None if found is None else (found, f"copy at {found}"))


def test_a_copy_at_a_length_replaces_it_and_all_past_it() -> None:
    checkpoints = taken_at([4, 9, 12])
    checkpoints.add(9, "of another branch")
    assert checkpoints.lengths == (4, 9)
    assert checkpoints.copies == ("copy at 4", "of another branch")


def test_a_fork_and_its_origin_go_their_own_ways() -> None:
    checkpoints = taken_at([4, 9, 12])
    fork = checkpoints.until(10)
    assert fork.lengths == (4, 9)
    fork.cut(4)
    fork.add(7, "of the fork")
    assert (fork.lengths, checkpoints.lengths) == ((4, 7), (4, 9, 12))


@given(gaps=st.lists(st.integers(1, 1000), max_size=60), capacity=st.integers(1, 9))
def test_memory_is_bounded_and_the_first_and_the_newest_are_kept(
    gaps: list[int], capacity: int
) -> None:  # G7
    lengths = [sum(gaps[: index + 1]) for index in range(len(gaps))]
    for count in range(1, len(lengths) + 1):
        kept = taken_at(lengths[:count], capacity).lengths
        assert list(kept) == sorted(kept)
        assert len(kept) == min(count, capacity)
        assert kept[-1] == lengths[count - 1]
        assert capacity == 1 or kept[0] == lengths[0]


@pytest.mark.parametrize("n_turns", [50, 200, 1000])
@pytest.mark.parametrize("n_drafts", [0, 5])
def test_going_back_costs_what_is_gone_back_for_however_long_the_conversation(
    n_turns: int, n_drafts: int
) -> None:
    """A turn marks where it begins, the pieces of its draft, and the end of its prompt.

    Copies spread evenly lose a seventh of the conversation when a turn is taken back: 1,900 positions after 50 turns.
    """
    worst: dict[int, float] = {1: 0, 2: 0, 4: 0, 8: 0}
    for seed in range(10):
        rng, checkpoints, length, beginnings = random.Random(seed), taken_at([]), 0, []
        for _ in range(n_turns):
            beginnings.append(length)
            n_message = rng.randint(10, 60)
            pieces = [n_message * piece // (n_drafts + 1) for piece in range(n_drafts + 1)]
            for marked in (*pieces, n_message - 1):
                checkpoints.add(length + marked, "")
            length += n_message + rng.choice([20, 100, 300, 600])
        for n_back in worst:
            common = beginnings[-n_back]
            found = checkpoints.newest(common)
            n_anew = common - (found[0] if found else 0)
            worst[n_back] = max(worst[n_back], n_anew / (length - common))
    assert worst[1] < 1  # less than the turn that is taken back
    assert max(worst.values()) < 4


# --- the cases' recurrent model, with a checkpoint every two tokens ---


def test_the_checkpoint_before_the_divergence_is_restored_and_one_token_evaluated() -> None:  # 6
    model = RecurrentModel(every=2)
    runner = Runner(model, KvPrefix)
    runner.produce_chunk([5, 11, 23, 42], 0, need_logits=True)
    assert runner.state.value == 3809
    assert runner.state.checkpoints.lengths[-1] == 4  # past what the prompts share, so not restored
    for _ in range(2):  # what is restored is a copy
        model.evaluated = 0
        assert runner.try_reuse_prefix([5, 11, 9]) == 2
        logits = runner.produce_chunk([9], 2, need_logits=True)
        assert (model.evaluated, runner.state.value, int(logits.argmax())) == (1, 5918, 1)
        for position in range(3, 9):
            runner.produce(7, position)


# --- a hybrid model: what going back costs ---

SYSTEM = [90, 91, 92, 93, 94]
MODELS = {
    "all attention": HybridModel,
    "window": partial(HybridModel, window=5),
    "window with slack": partial(HybridModel, window=5, window_slack=6),
}
every_model = pytest.mark.parametrize("make_model", MODELS.values(), ids=MODELS)


class Talk:
    """A conversation as ids, whose every turn follows the one before. Replies are of seven ids, the last not fed."""

    def __init__(self, engine: HybridEngine, *, is_system_ahead: bool = True) -> None:
        self.engine = engine
        self._turns: list[tuple[int, ...]] = [tuple(SYSTEM)]  # the ids up to the end of each
        if is_system_ahead:
            self.engine.prefill(SYSTEM)

    def say(self, message: Sequence[int]) -> int:
        """Take a turn; return how many ids of its prompt were evaluated."""
        self._prompt = (*self._turns[-1], *message)
        return self.retry()

    def retry(self) -> int:
        """Take the latest turn again."""
        result = self.engine.run(self._prompt, n_new=7)
        self._turns = [turn for turn in self._turns if len(turn) < len(self._prompt)]
        self._turns.append((*self._prompt, *result.token_ids))
        return len(self._prompt) - result.reused_prefix_tokens

    def undo(self, n_turns: int = 1) -> None:
        """Forget the latest turns."""
        del self._turns[-n_turns:]

    def say_all(self, messages: Sequence[Sequence[int]]) -> None:
        for message in messages:
            self.say(message)


ONE, TWO, THREE = [10, 11, 12, 13], [20, 21, 22], [30, 31, 32, 33, 34]


@every_model
def test_a_turn_evaluates_its_own_message_and_the_id_that_was_not_fed(make_model) -> None:
    talk = Talk(HybridEngine(make_model()))
    assert [talk.say(message) for message in (ONE, TWO, THREE)] == [len(ONE), 1 + len(TWO), 1 + len(THREE)]


@every_model
def test_a_retry_evaluates_one_token_each_time(make_model) -> None:  # 2
    talk = Talk(HybridEngine(make_model()), is_system_ahead=False)
    for message in (ONE, TWO, THREE):
        talk.say(message)
        assert [talk.retry() for _ in range(3)] == [1, 1, 1]


@every_model
@pytest.mark.parametrize(
    ("message", "n_evaluated"),
    [
        (THREE, 1 + len(THREE)),
        # One that begins as the old one did shares more with it, but there is a checkpoint only before its last id.
        ([TWO[0], 9, 9], 1 + 3),
        ([*TWO[:-1], 9, 9], 2),
        ([*TWO, 9], 2),
    ],
)
def test_a_new_message_after_an_undo_evaluates_what_follows_the_last_turn(
    make_model, message, n_evaluated: int
) -> None:  # 6
    talk = Talk(HybridEngine(make_model()))
    talk.say_all([ONE, TWO])
    talk.undo()
    assert talk.say(message) == n_evaluated
    talk.undo()
    assert talk.say([8, 8]) in (2, 1 + 2)  # where the two before parted is marked since, if they did
    assert talk.retry() == 1


@every_model
def test_where_conversations_part_is_marked_so_that_the_third_comes_back_to_it(make_model) -> None:  # 6, T51
    engine, n_evaluated = HybridEngine(make_model()), []
    for number in range(4):
        talk = Talk(engine, is_system_ahead=False)
        n_evaluated.append(talk.say([*range(1, 21), 30 + number, 40]))
    assert n_evaluated[2:] == [2, 2]


@every_model
def test_branches_and_undos_of_several_turns_go_back_to_the_turn_they_follow(make_model) -> None:
    talk = Talk(HybridEngine(make_model()))
    talk.say_all([ONE, TWO, THREE])
    talk.undo(2)
    assert talk.say([7, 8]) == 1 + 2
    talk.undo(2)
    assert talk.say(TWO) == len(TWO)  # behind the system prompt, all of which was fed


@every_model
def test_a_conversation_begun_anew_goes_back_to_the_system_prompt_that_was_brought_in_ahead(
    make_model,
) -> None:
    for is_ahead, n_evaluated in ((True, len(TWO)), (False, len(SYSTEM) + len(TWO))):
        talk = Talk(HybridEngine(make_model()), is_system_ahead=is_ahead)
        talk.say_all([ONE, TWO, THREE])
        talk.undo(3)
        assert talk.say(TWO) == n_evaluated


@every_model
def test_prompts_that_share_only_their_first_id_are_computed_anew(make_model) -> None:  # A13
    engine = HybridEngine(make_model())
    engine.run([1, 10, 11], n_new=3)
    assert engine.run([1, 20, 21], n_new=3).reused_prefix_tokens == 0


def test_a_window_and_a_recurrent_state_evaluate_one_token_of_the_same_prompt() -> None:  # A8
    engine = HybridEngine(HybridModel(window=4))
    for n_evaluated in (12, 1, 1):
        engine.run(range(10, 22))
        assert engine.n_evaluated == n_evaluated


@every_model
def test_a_restored_checkpoint_is_a_copy(make_model) -> None:  # A11
    engine = HybridEngine(make_model())
    engine.prefill(SYSTEM)
    prompt = [*SYSTEM, *ONE]
    replies = []
    for _ in range(3):
        result = engine.run(prompt, n_new=20)
        replies.append(result.token_ids)
        assert len(prompt) - result.reused_prefix_tokens == (1 if replies[1:] else len(ONE))
    assert replies[0] == replies[1] == replies[2]


@every_model
def test_fifty_turns_keep_a_few_checkpoints_with_the_newest_and_the_oldest_in_reach(make_model) -> None:  # G7
    talk = Talk(HybridEngine(make_model()))
    state = talk.engine.runner.state.recurrent
    rng = random.Random(1)
    talk.engine.compares = False
    for turn in range(50):
        message = [rng.randrange(97) for _ in range(rng.randint(2, 9))]
        assert talk.say(message) == len(message) + bool(turn)
        assert len(state.checkpoint_lengths) <= MOST_CHECKPOINTS
    talk.engine.compares = True
    one_memory = state.fork(0).n_bytes * 2  # of two layers, which share the empty one
    assert state.n_bytes == (1 + MOST_CHECKPOINTS) * one_memory
    assert talk.retry() == 1
    talk.undo()
    assert talk.say(THREE) == 1 + len(THREE)
    talk.undo(50)
    assert talk.say(THREE) == len(THREE)
