"""Turns to store: whole ones made from a number, and what a run says of how they ended."""

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.turn_result import EndedTurn
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.pressure import MemoryPressure

RAW = RawDecodeResult(
    prompt_tokens=12,
    new_tokens=3,
    token_ids=(7, 8, 9),
    prefill_seconds=0.25,
    decode_seconds=0.5,
    reason=StopReason.END_OF_TURN,
    kv_position=14,
    kv_backed_token_ids=tuple(range(14)),
    reused_prefix_tokens=5,
    session_slot_evicted=False,
    peak_memory_pressure=MemoryPressure.NORMAL,
)


def numbered_turn(number: int, *, n_words: int = 3) -> Turn:
    """Return a turn whose every part follows from its number."""
    words = " ".join(f"word-{number}-{index}" for index in range(n_words))
    reply = Message("assistant", words, reasoning=f"thought {number}")
    generated = f"<think>thought {number}</think>{words}"
    return Turn(
        Message("user", f"message {number}"), reply, generated, tuple(range(number, number + n_words))
    )


def said(text: str, reply: str = "I see.") -> Turn:
    """Return a turn of two texts."""
    return Turn(Message("user", text), Message("assistant", reply), reply, (1, 2))


def ended(turn: Turn, options: ChatOptions | None = None) -> EndedTurn:
    """Return a turn as it ends."""
    return EndedTurn(turn, RAW, options or ChatOptions())
