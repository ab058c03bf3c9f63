"""A turn as one JSON object: what scripts read."""

import json

from turbospark_chat.chat.turn_result import TurnResult


def turn_record(result: TurnResult, *, model: str, arithmetic: str) -> str:
    """Return the object as one line. A turn cancelled before its first token has an empty reply."""
    raw, turn = result.raw, result.turn
    record = {
        "model": model,
        "arithmetic": arithmetic,
        "reply": turn.reply.content if turn else "",
        "reasoning": turn.reply.reasoning if turn else None,
        "reason": raw.reason,
        "token_ids": list(raw.token_ids),
        "prompt_tokens": raw.prompt_tokens,
        "reused_prefix_tokens": raw.reused_prefix_tokens,
        "prefilled_tokens": raw.prefilled_tokens,
        "new_tokens": raw.new_tokens,
        "prefill_seconds": round(raw.prefill_seconds, 6),
        "decode_seconds": round(raw.decode_seconds, 6),
        "kv_position": raw.kv_position,
        "peak_memory_pressure": raw.peak_memory_pressure.label,
        "session_slot_evicted": raw.session_slot_evicted,
        "truncated": result.n_dropped_turns > 0,
        "dropped_turns": result.n_dropped_turns,
        "dropped_tokens": result.n_dropped_tokens,
    }
    return json.dumps(record, ensure_ascii=False)
