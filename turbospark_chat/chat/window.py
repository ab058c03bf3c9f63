"""Which turns of a conversation go into the prompt: all, or the newest that fit. Never half a turn."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from turbospark_chat.errors import ContextOverflowError

MOST_ROOM_KEPT_FOR_A_REPLY = 512  # tokens, where no limit on the reply says how many
# Of what a prompt may take. After a drop everything behind the system prompt is computed again, and a window that
# gave up no more than it must would drop, and compute it all, at every turn from then on.
SHARE_LEFT_BY_A_DROP = 0.75


class OverflowPolicy(StrEnum):
    """What to do when a conversation outgrows the context."""

    DROP = "drop"
    ERROR = "error"
    ASK = "ask"


def _turns(n_turns: int) -> str:
    return "turn" if n_turns == 1 else f"{n_turns} turns"


class WindowOverflowError(ContextOverflowError):
    """The prompt does not fit.

    Leaving out its oldest `n_droppable` turns would make it, beside `n_left_out` that are left out already; without
    any, it is too long by itself, and `n_prompt` are the tokens of that.
    """

    def __init__(
        self,
        n_prompt: int,
        n_reserved: int,
        context_length: int,
        *,
        n_droppable: int = 0,
        n_left_out: int = 0,
    ) -> None:
        n_oldest = n_left_out + n_droppable
        advice = (
            f"leave out its oldest {_turns(n_oldest)} with `/forget {n_oldest}` or `--on-overflow drop`"
            if n_droppable
            else "shorten the message, lower `max_tokens`, or raise `--ctx`"
        )
        super().__init__(n_prompt, n_reserved, context_length, advice=advice)
        self.n_droppable = n_droppable


@dataclass(frozen=True, slots=True)
class Window:
    """The prompt that fits: its ids, and the first turn it still contains."""

    prompt_ids: Sequence[int]
    first_turn: int
    n_dropped: int  # turns left out by this fit
    dropped_tokens: int  # tokens that left the prompt with them


def fit_window(
    encode: Callable[[int], Sequence[int]],
    *,
    first_turn: int,
    n_turns: int,
    context_length: int,
    max_tokens: int | None,
    policy: OverflowPolicy,
) -> Window:
    """Leave out the oldest whole turns until the prompt and its reply fit.

    Once any must go, so many go that `SHARE_LEFT_BY_A_DROP` is just left: the turns after this one then have room too.

    Args:
        encode: prompt ids of the conversation from a given turn on, the new message included.
        first_turn: where the last window began; earlier turns stay out.
        n_turns: how many finished turns there are.
        max_tokens: the reply's limit. None asks for some room, and takes what there is once nothing can be dropped.

    Raises:
        WindowOverflowError: it does not fit even alone, or the policy forbids dropping.
    """
    least = 1 if max_tokens is None else max_tokens
    n_reserved = least
    if max_tokens is None and policy is OverflowPolicy.DROP:
        n_reserved = max(least, min(context_length // 4, MOST_ROOM_KEPT_FOR_A_REPLY))
    # Each look renders and encodes all that is left, so that taking one turn out after the other took minutes.
    encode, first = cache(encode), first_turn
    whole = len(encode(first_turn))
    if whole + n_reserved > context_length and first < n_turns:
        fitting = range(first + 1, n_turns)
        first += 1 + bisect_left(
            fitting, True, key=lambda start: len(encode(start)) + n_reserved <= context_length
        )
    least_left = (context_length - n_reserved) * SHARE_LEFT_BY_A_DROP
    if first_turn < first < n_turns:
        shorter = range(first + 1, n_turns + 1)
        first += bisect_left(shorter, True, key=lambda start: len(encode(start)) < least_left)
    prompt_ids = encode(first)
    if len(prompt_ids) + least > context_length:
        raise WindowOverflowError(len(prompt_ids), least, context_length)
    if first > first_turn and policy is not OverflowPolicy.DROP:
        raise WindowOverflowError(
            whole, least, context_length, n_droppable=first - first_turn, n_left_out=first_turn
        )
    return Window(prompt_ids, first, first - first_turn, whole - len(prompt_ids))
