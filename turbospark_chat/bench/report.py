"""The figures of a run, kept as JSON and compared with another's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from turbospark_chat.bench.plan import Unit
from turbospark_chat.errors import BenchError

FORMAT = 1
_IS_MORE_BETTER: Mapping[Unit, bool] = {"tok/s": True, "GB/s": True, "ms": False, "s": False, "MB": False}


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, once a round for each subject."""

    name: str
    unit: Unit
    own: Sequence[float]
    peer: Sequence[float] = ()
    is_detail: bool = field(default=False, kw_only=True)  # kept in the JSON, left out of the table

    @property
    def ratio(self) -> float | None:
        """How many times as good as the peer: the median over the rounds, each compared within itself."""
        pairs = [pair for pair in zip(self.own, self.peer, strict=False) if min(pair) > 0]
        if not pairs:
            return None
        return median(a / b if _IS_MORE_BETTER[self.unit] else b / a for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Report:
    """A run: what was measured, on what, and the rows."""

    model: str
    n_threads: int
    subjects: Sequence[Mapping[str, str]]  # this program, and the peer if there was one
    rows: Sequence[Row]
    notes: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as one JSON object, medians and ratios included for whoever reads it without us."""
        record = {"format": FORMAT, **asdict(self)}
        for row, values in zip(self.rows, record["rows"], strict=True):
            values["median"] = median(row.own)
            if row.ratio is not None:
                values["peer_median"], values["ratio"] = median(row.peer), row.ratio
        return json.dumps(record, ensure_ascii=False, indent=1)


def read_report(path: Path) -> Report:
    """Read what `to_json` wrote.

    Raises:
        BenchError: the file is no such report.
    """
    try:
        record: Any = json.loads(path.read_text(encoding="utf-8"))
        rows = [
            Row(row["name"], row["unit"], row["own"], row["peer"], is_detail=bool(row.get("is_detail")))
            for row in record["rows"]
        ]
        if record["format"] != FORMAT or not all(map(_is_sound, rows)):
            raise ValueError
        return Report(record["model"], record["n_threads"], record["subjects"], rows, record["notes"])
    except OSError as error:
        raise BenchError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BenchError(f"{path}: no report of `ts bench --json`; make one and compare with that") from error


def _is_sound(row: Row) -> bool:
    are_numbers = all(isinstance(value, int | float) and 0 <= value < 1e15 for value in (*row.own, *row.peer))
    return isinstance(row.name, str) and row.unit in _IS_MORE_BETTER and bool(row.own) and are_numbers


def table(report: Report, earlier: Report | None = None) -> list[tuple[str, ...]]:
    """Return rows of text, ratios first: to the peer, and to the earlier run where there is one."""
    has_peer = any(row.peer for row in report.rows)
    old = {row.name: row for row in earlier.rows} if earlier else {}
    heads = ["", *(["ratio"] if has_peer else []), *(["to earlier"] if earlier else [])]
    lines = [(*heads, *(subject["name"] for subject in report.subjects), *(["earlier"] if earlier else []))]
    for row in report.rows:
        if row.is_detail:
            continue
        ratios, figures = [], [_figure(row.own, row.unit)]
        if has_peer:
            ratios.append(_ratio_text(row.ratio))
            figures.append(_figure(row.peer, row.unit))
        if earlier:
            before = old[row.name].own if row.name in old else ()
            now = (median(row.own),)
            ratios.append(_ratio_text(Row("", row.unit, now, (median(before),) if before else ()).ratio))
            figures.append(_figure(before, row.unit))
        lines.append((row.name, *ratios, *figures))
    return lines


def _ratio_text(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}"


def _figure(values: Sequence[float], unit: Unit) -> str:
    if not values:
        return "–"
    number = median(values)
    return f"{number:.{0 if number >= 100 else 1 if number >= 10 else 2}f} {unit}"
