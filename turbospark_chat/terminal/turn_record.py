"""A turn as a JSON object: what scripts read."""

from dataclasses import asdict, dataclass
from typing import Any

from turbospark_chat.chat.turn_result import TurnResult


@dataclass(frozen=True, slots=True)
class TurnOrigin:
    """What answered a turn, and where the turn stands; both None outside a conversation, or where none is stored."""

    model: str
    arithmetic: str
    conversation_id: int | None = None
    turn: int | None = None  # from 1, as `/history` numbers them


def turn_record(result: TurnResult, origin: TurnOrigin) -> dict[str, Any]:
    """Return the object. A turn cancelled before its first token has an empty reply and no number."""
    raw, turn = result.raw, result.turn
    return {
        **asdict(origin),
        "reply": turn.reply.content if turn else "",
        "reasoning": turn.reply.reasoning if turn else None,
        "reason": raw.reason,
        "token_ids": list(raw.token_ids),
        "prompt_tokens": raw.prompt_tokens,
        "reused_prefix_tokens": raw.reused_prefix_tokens,
        "prefilled_tokens": raw.prefilled_tokens,
        "new_tokens": raw.new_tokens,
        "proposed_tokens": raw.proposed_tokens,
        "accepted_tokens": raw.accepted_tokens,
        "prefill_seconds": round(raw.prefill_seconds, 6),
        "decode_seconds": round(raw.decode_seconds, 6),
        "kv_position": raw.kv_position,
        "peak_memory_pressure": raw.peak_memory_pressure.label,
        "session_slot_evicted": raw.session_slot_evicted,
        "miss": asdict(result.miss) if result.miss else None,  # why no more was reused
        "truncated": result.n_dropped_turns > 0,
        "dropped_turns": result.n_dropped_turns,
        "dropped_tokens": result.n_dropped_tokens,
    }
