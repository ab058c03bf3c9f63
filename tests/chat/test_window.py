"""The prompt that fits: whole turns, the oldest left out first, never silently and never in the middle."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.chat.turn_result import TurnsDropped
from turbospark_chat.chat.window import (
    SHARE_LEFT_BY_A_DROP,
    OverflowPolicy,
    Window,
    WindowOverflowError,
    fit_window,
)

SYSTEM = 10


def fit(turns: list[int], message: int, **how: Any) -> Window:
    """Fit a system prompt, turns and a message of so many tokens; each token says what it belongs to."""

    def encode(first_turn: int) -> list[int]:
        kept = [index for index, size in enumerate(turns) if index >= first_turn for _ in range(size)]
        return [-1] * SYSTEM + kept + [-2] * message

    defaults: dict[str, Any] = {
        "first_turn": 0,
        "max_tokens": 16,
        "policy": OverflowPolicy.DROP,
        "context_length": 64,
    }
    return fit_window(encode, n_turns=len(turns), **defaults | how)


@pytest.mark.parametrize(
    ("turns", "message", "how", "first_turn"),
    [
        pytest.param([20, 20], 18, {}, 1, id="G2 one exchange dropped"),
        pytest.param([20, 20, 20], 18, {}, 2, id="G2 two exchanges dropped"),
        pytest.param([20, 20, 20], 38, {}, 3, id="G2 the longest message that fits"),
        pytest.param([20], 18, {}, 0, id="G2 exactly full"),
        pytest.param([5] * 8, 18, {}, 6, id="short turns make room for the turns to come"),
        pytest.param([5, 20], 18, {}, 1, id="but not a turn that is most of what is left"),
        pytest.param([20, 20], 18, {"max_tokens": None}, 1, id="a quarter kept free where nothing limits"),
        pytest.param([20, 20], 53, {"max_tokens": None}, 2, id="G4 one token left, nothing more to drop"),
        pytest.param([20, 20], 54, {"max_tokens": 0}, 2, id="C11 a prompt that is only brought in"),
        pytest.param([20, 5], 18, {"first_turn": 1}, 1, id="a turn once left out stays out"),
        pytest.param(
            [30, 20], 33, {"max_tokens": None, "policy": OverflowPolicy.ERROR, "first_turn": 1}, 1,
            id="G4 without dropping, one token is room enough",
        ),
    ],
)  # fmt: skip
def test_the_oldest_whole_turns_leave_the_prompt(
    turns: list[int], message: int, how: dict[str, Any], first_turn: int
) -> None:
    window = fit(turns, message, **how)
    left_out = turns[how.get("first_turn", 0) : first_turn]
    assert (window.first_turn, window.n_dropped) == (first_turn, len(left_out))
    assert window.dropped_tokens == sum(left_out)
    assert len(window.prompt_ids) == SYSTEM + sum(turns[first_turn:]) + message
    assert list(window.prompt_ids)[:SYSTEM] == [-1] * SYSTEM


def test_room_for_a_reply_without_a_limit_is_a_quarter_of_the_context_and_at_most_512() -> None:
    assert [fit([4], message, max_tokens=None).first_turn for message in (34, 35)] == [0, 1]
    assert fit([100], 8191 - 512 - SYSTEM, context_length=8192, max_tokens=None).first_turn == 1
    assert fit([1], 8191 - 512 - SYSTEM, context_length=8192, max_tokens=None).first_turn == 0


def test_in_the_smallest_context_one_token_of_a_reply_still_has_room() -> None:
    window = fit_window(
        lambda first_turn: [0] * (3 - first_turn),
        first_turn=0, n_turns=2, context_length=3, max_tokens=None, policy=OverflowPolicy.DROP,
    )  # fmt: skip
    assert window.first_turn == 1


@pytest.mark.parametrize(
    ("message", "max_tokens", "n_prompt", "n_reserved"),
    [
        pytest.param(39, 16, 49, 16, id="G2 a message above 38 tokens"),
        pytest.param(54, None, 64, 1, id="G4 the prompt alone fills the context"),
        pytest.param(55, 0, 65, 0, id="C11 not even to be brought in"),
    ],
)
@pytest.mark.parametrize("policy", OverflowPolicy)
def test_a_message_too_long_by_itself_is_refused_with_its_own_numbers(
    message: int, max_tokens: int | None, n_prompt: int, n_reserved: int, policy: OverflowPolicy
) -> None:
    with pytest.raises(WindowOverflowError) as caught:
        fit([20, 20, 20], message, max_tokens=max_tokens, policy=policy)
    error = caught.value
    assert (error.n_prompt, error.n_reserved, error.context_length) == (n_prompt, n_reserved, 64)
    assert error.n_droppable == 0 and error.exit_code == 4
    assert str(error) == (
        f"does not fit the context: {n_prompt} prompt tokens and {n_reserved} for the reply exceed 64;"
        " shorten the message, lower `max_tokens`, or raise `--ctx`"
    )


@pytest.mark.parametrize("policy", [OverflowPolicy.ERROR, OverflowPolicy.ASK])
@pytest.mark.parametrize(("first_turn", "n_droppable"), [(0, 2), (1, 1)])
def test_a_policy_that_forbids_dropping_says_what_would_help(
    policy: OverflowPolicy, first_turn: int, n_droppable: int
) -> None:  # T65
    with pytest.raises(WindowOverflowError) as caught:
        fit([20, 20, 20], 18, policy=policy, first_turn=first_turn)
    whole = SYSTEM + 20 * (3 - first_turn) + 18
    assert caught.value.n_droppable == n_droppable
    assert str(caught.value) == (
        f"does not fit the context: {whole} prompt tokens and 16 for the reply exceed 64;"
        # Counted from the oldest turn of the conversation, since that is what `/forget` does.
        " leave out its oldest 2 turns with `/forget 2` or `--on-overflow drop`"
    )


@given(
    turns=st.lists(st.integers(1, 40), max_size=6),
    message=st.integers(0, 60),
    context_length=st.integers(1, 120),
    max_tokens=st.none() | st.integers(0, 60),
    policy=st.sampled_from(OverflowPolicy),
    data=st.data(),
)
def test_a_window_fits_and_gives_up_no_more_than_it_must_or_a_quarter(
    turns: list[int], message: int, context_length: int, max_tokens: int | None, policy: Any, data: Any
) -> None:
    started = data.draw(st.integers(0, len(turns)))
    least = 1 if max_tokens is None else max_tokens
    how = {"context_length": context_length, "max_tokens": max_tokens, "policy": policy}
    try:
        window = fit(turns, message, first_turn=started, **how)
    except WindowOverflowError as error:
        n_short = SYSTEM + sum(turns[started + error.n_droppable :]) + message
        if error.n_droppable:
            assert policy is not OverflowPolicy.DROP and n_short + least <= context_length
        else:
            assert SYSTEM + message + least > context_length and error.n_prompt == SYSTEM + message
        return
    assert len(window.prompt_ids) + least <= context_length
    assert window.first_turn == started + window.n_dropped
    wanted = least if max_tokens is not None else max(1, min(context_length // 4, 512))
    if policy is OverflowPolicy.DROP and window.first_turn < len(turns):
        assert len(window.prompt_ids) + wanted <= context_length
    if window.n_dropped:
        assert policy is OverflowPolicy.DROP
        n_one_more = len(window.prompt_ids) + turns[window.first_turn - 1]
        least_left = (context_length - wanted) * SHARE_LEFT_BY_A_DROP
        assert n_one_more + wanted > context_length or len(window.prompt_ids) >= least_left
        if window.first_turn < len(turns):
            assert len(window.prompt_ids) - turns[window.first_turn] < least_left


@pytest.mark.parametrize(
    ("n_turns", "said"), [(1, "1 exchange dropped"), (2, "2 exchanges dropped")], ids=["one", "two"]
)
def test_a_drop_is_said_in_one_line_with_its_tokens(n_turns: int, said: str) -> None:  # G2, T63
    assert str(TurnsDropped(n_turns, 40)) == f"{said} from the prompt to fit the context (40 tokens)"
