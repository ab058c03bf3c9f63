"""The figures of a conversation, turn by turn and beside others', as JSON and as tables."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any

FORMAT = 1
_MS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFigures:
    """What a turn took until its first token. `n_new` of its prompt were in no earlier prompt and no reply.

    Where `n_evaluated` and `n_ahead` together are more than `n_new`, so many were evaluated again. Replies differ from
    program to program, and with them the prompts.
    """

    n_prompt: float
    n_new: float  # beyond what the cache held when the turn before had ended
    n_evaluated: float  # from sending to the first token
    n_ahead: float  # before sending, while the message was typed
    seconds: float  # from sending to the first token


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation, once a round."""

    name: str
    is_own: bool
    rounds: Sequence[Sequence[TurnFigures]]

    def turns(self) -> list[TurnFigures]:
        """Return for each turn the medians over the rounds."""
        names = [field.name for field in fields(TurnFigures)]
        return [
            TurnFigures(**{name: median(getattr(figures, name) for figures in turn) for name in names})
            for turn in zip(*self.rounds, strict=True)
        ]

    def ratio_to(self, other: "Talk") -> float:
        """Return how many times as long as in this one the other waits: the median over all turns of all rounds."""
        return median(
            theirs.seconds / ours.seconds
            for own_round, other_round in zip(self.rounds, other.rounds, strict=True)
            for ours, theirs in zip(own_round, other_round, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Paste:
    """Seconds to the first token of a long message, once a round, sent `read_over_ms` after it was pasted."""

    n_tokens: int
    read_over_ms: int
    without: Sequence[float]
    ahead: Sequence[float]

    @property
    def ratio(self) -> float:
        """Which part of the time is left where the message was read ahead: the median of the rounds' own ratios."""
        return median(ahead / without for ahead, without in zip(self.ahead, self.without, strict=True))


@dataclass(frozen=True, slots=True)
class ChatReport:
    """A run: what was measured, on what, and the conversations, ours first."""

    model: str
    n_threads: int
    subjects: Sequence[dict[str, str]]
    talks: Sequence[Talk]
    paste: Paste

    def to_json(self) -> str:
        """Return the report as one JSON object, medians and ratios included for whoever reads it without us."""
        record: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        for talk, values in zip(self.talks, record["talks"], strict=True):
            values["turns"] = [asdict(figures) for figures in talk.turns()]
            values["ratios"] = {
                other.name: talk.ratio_to(other) for other in self.talks if talk.is_own and not other.is_own
            }
        record["paste"]["ratio"] = self.paste.ratio
        return json.dumps(record, ensure_ascii=False, indent=1)


def token_table(report: ChatReport) -> list[tuple[str, ...]]:
    """Return rows of text: for each turn the tokens evaluated before its first, of those that are new in it."""

    def cell(turns: Sequence[TurnFigures]) -> str:
        n_evaluated, n_new = sum(turn.n_evaluated for turn in turns), sum(turn.n_new for turn in turns)
        return f"{n_evaluated:.0f}/{n_new:.0f}"

    heads = ("tokens evaluated, of new ones", *(talk.name for talk in report.talks))
    return [heads, *_turn_rows(report, cell), ("all turns", *(cell(talk.turns()) for talk in report.talks))]


def time_table(report: ChatReport) -> list[tuple[str, ...]]:
    """Return rows of text: for each turn the time to its first token, and how much longer others take."""

    def cell(turns: Sequence[TurnFigures]) -> str:
        return f"{_MS * median(turn.seconds for turn in turns):.1f} ms"

    heads = ("time to first token", *(talk.name for talk in report.talks))
    rows = [heads, *_turn_rows(report, cell), ("median", *(cell(talk.turns()) for talk in report.talks))]
    if not all(talk.is_own for talk in report.talks):
        for own in report.talks:
            if own.is_own:
                ratios = ("–" if talk.is_own else f"{own.ratio_to(talk):.2f}" for talk in report.talks)
                rows.append((f"times as long as {own.name}", *ratios))
    return rows


def paste_line(paste: Paste) -> str:
    """Say what reading ahead is worth for a long message."""
    ahead, without = (_MS * median(seconds) for seconds in (paste.ahead, paste.without))
    return (
        f"a message of {paste.n_tokens} tokens, pasted and sent after {paste.read_over_ms / _MS:g} s: first token"
        f" after {ahead:.1f} ms, {without:.1f} ms if not read ahead, ratio {paste.ratio:.2f}"
    )


def _turn_rows(report: ChatReport, cell: Callable[[Sequence[TurnFigures]], str]) -> list[tuple[str, ...]]:
    columns = [talk.turns() for talk in report.talks]
    return [
        (f"turn {number}", *(cell([figures]) for figures in row))
        for number, row in enumerate(zip(*columns, strict=True), 1)
    ]
