"""Transcripts of every kind for property tests: text that looks like the marks, fences and ends of the forms."""

from datetime import UTC, timedelta, timezone

from hypothesis import strategies as st

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.transcript import TURN_KEYS, Transcript, TranscriptTurn

PIECES = [
    "\n", "\n\n", "\r\n", "\r", "\\", " ", "\t", "\x00", "\x0b", "\x0c", "\x1b[31m", "\x85", "\u2028", "\ufeff",
    "```", "````", "```py\n", "\n```\n", "~~~", "# ", "- ", "> ", "1. ", "   ", "    ",
    "\n---\n", "<!--", "-->", "--", "</details>", "</article>",
    "\n<!-- turbospark_chat end -->\n", "<!-- turbospark_chat reply {} -->", "\\<!-- turbospark_chat user -->",
    "<!-- turbospark_chat", '{"turns": []}', "漢字", "👩‍👧", "<script>alert(1)</script>", "&amp;",
]  # fmt: skip

texts = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=8).map("".join)
"""Text that UTF-8 can hold."""

_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
_turns = st.builds(
    TranscriptTurn,
    user=st.builds(Message, st.just("user"), texts),
    reply=st.builds(
        Message, st.just("assistant"), texts, reasoning=st.none() | texts, complete=st.booleans()
    ),
    details=st.dictionaries(texts.filter(lambda key: key not in TURN_KEYS), _values, max_size=3),
)
_zones = st.sampled_from([None, UTC, timezone(-timedelta(hours=3, minutes=30))])

transcripts = st.builds(
    Transcript,
    title=texts,
    model=texts,
    created=st.none() | st.datetimes(timezones=_zones),
    system=st.none() | texts,
    turns=st.lists(_turns, max_size=3).map(tuple),
)


def transcript_of(user: str, reply: str, **fields: object) -> Transcript:
    """Return a transcript of one turn; the fields are those of the reply."""
    return Transcript(
        "T", "m", turns=(TranscriptTurn(Message("user", user), Message("assistant", reply, **fields)),)
    )  # type: ignore[arg-type]
