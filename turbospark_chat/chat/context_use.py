"""What a conversation takes of the context, and what a change of it would cost: token counts for people.

Values, and who said what; it asks no producer, and reuse never depends on it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from turbospark_chat.chat.chat_model import ChatTokenizer
from turbospark_chat.chat.conversation import Turn


class Keep(Enum):
    """Stands for a system prompt that stays as it is, where None would be none at all."""

    SYSTEM = auto()


KEEP: Final = Keep.SYSTEM


@dataclass(frozen=True, slots=True)
class ContextUse:
    """Tokens of the prompt by who said them. `template` is what the chat template writes around it.

    Text is counted by itself, so the parts may be some tokens off where it merges with what stands beside it.
    """

    system: int
    user: int
    assistant: int
    template: int
    total: int
    context_length: int


@dataclass(frozen=True, slots=True)
class Recompute:
    """Of the `n_prompt` tokens of a conversation, the last `n_recomputed` are not in the cache."""

    n_recomputed: int
    n_prompt: int


def use_by_role(
    system: str | None,
    turns: Sequence[Turn],
    tokenizer: ChatTokenizer,
    *,
    total: int,
    context_length: int,
    keep_reasoning: bool,
) -> ContextUse:
    """Return who said how much of a prompt of `total` tokens, which holds these turns."""

    def count(text: str) -> int:
        return len(tokenizer.encode_continuation(text))

    in_system = count(system or "") if total else 0
    in_user = sum(count(turn.user.content) for turn in turns)
    in_replies = sum(
        len(turn.generated_ids) if keep_reasoning else count(turn.reply.content) for turn in turns
    )
    in_template = max(total - in_system - in_user - in_replies, 0)
    return ContextUse(in_system, in_user, in_replies, in_template, total, context_length)
