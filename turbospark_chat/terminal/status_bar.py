"""The status bar: a snapshot of live values, and how it is drawn in a given width. Paints nothing itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from turbospark_chat.chat.turn_result import TurnResult
from turbospark_chat.engine.completion import RawDecodeResult
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.terminal.vitals import Vitals

SEPARATOR = " · "
_FEW_TOKENS = 16
HINT = "Enter sends · Ctrl-J begins a new line · /help lists commands"


@dataclass(frozen=True, slots=True)
class Activity:
    """A turn under way: prompt tokens done, of how many, how many of them reused; then tokens out. Seconds.

    `n_untimed` of the tokens out were there when the clock of `decode_seconds` began.
    """

    prefill_done: int = 0
    prefill_total: int = 0
    reused: int = 0
    prefill_seconds: float = 0.0
    n_tokens: int = 0
    decode_seconds: float = 0.0
    n_queued: int = 0
    n_untimed: int = 1
    is_turn: bool = True  # otherwise it has no numbers

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens per second so far."""
        computed = self.prefill_done - self.reused
        return computed / self.prefill_seconds if computed > 0 and self.prefill_seconds > 0 else None

    @property
    def decode_rate(self) -> float | None:
        """Decode steps per second so far."""
        n_timed = self.n_tokens - self.n_untimed
        return n_timed / self.decode_seconds if n_timed > 0 and self.decode_seconds > 0 else None


@dataclass(frozen=True, slots=True)
class StatusSnapshot:
    """Everything the bar shows, at one moment."""

    model: str
    context_length: int
    context_used: int
    vitals: Vitals
    last: TurnResult | None = None
    activity: Activity | None = None
    draft_tokens: int | None = None  # of what is typed; None for nothing
    n_ahead: int = 0  # tokens of the next prompt that were read while nothing else ran
    branch: str = ""  # empty on the only one
    vi_mode: str = ""


def rate_text(rate: float | None) -> str:
    """Return a rate for people; a dash where no time was measured."""
    return "–" if rate is None else f"{rate:.0f} tok/s" if rate >= 10 else f"{rate:.1f} tok/s"


def size_text(n_bytes: int) -> str:
    """Return a size for people."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def prefill_text(activity: Activity) -> str:
    """Return how far a prefill is, and once there is a rate, how long the rest will take."""
    progress = f"prefill {activity.prefill_done}/{activity.prefill_total}"
    rate = activity.prefill_rate
    if rate is None:
        return progress
    left = (activity.prefill_total - activity.prefill_done) / rate
    return f"{progress} {rate_text(rate)}, {left:.1f} s left"


def standing_fields(status: StatusSnapshot) -> list[Text]:
    """Return what is so whatever the turns do, the most important first."""
    used, length = status.context_used, status.context_length
    draft = status.draft_tokens
    nearly_full = used + (draft or 0) > length * 0.9
    fields = [
        Text(status.model, "bar.model"),
        Text(f"ctx {used}/{length}, {length - used} left", "bar.warn" if nearly_full else ""),
    ]
    if draft is not None:
        fields.append(Text(f"draft {draft}", "bar.warn" if used + draft > length else ""))
    if status.n_ahead:
        fields.append(Text(f"ahead {status.n_ahead}"))
    pressure = status.vitals.memory_pressure
    styles = {MemoryPressure.WARN: "bar.warn", MemoryPressure.CRITICAL: "bar.critical"}
    memory = f"mem {pressure.label} {size_text(status.vitals.resident_bytes)}"
    fields.append(Text(memory, styles.get(pressure, "")))
    names = [f"branch {status.branch}"] if status.branch else []
    return [*fields, *(Text(name) for name in (*names, status.vi_mode) if name)]


def turn_fields(status: StatusSnapshot) -> list[Text]:
    """Return what the turn under way does, or what the last one did."""
    if status.activity is not None:
        return _activity_fields(status.activity)
    if status.last is not None:
        return _last_turn_fields(status.last)
    return [Text(hint) for hint in HINT.split(SEPARATOR)]


def _activity_fields(activity: Activity) -> list[Text]:
    queued = [Text(f"{activity.n_queued} queued")] if activity.n_queued else []
    if not activity.is_turn:
        return [Text("working", "bar.busy"), *queued, Text("Ctrl-C stops", "bar.busy")]
    if activity.n_tokens:
        return [
            Text(f"reused {activity.reused}/{activity.prefill_total}", "bar.good" if activity.reused else ""),
            Text(f"decode {rate_text(activity.decode_rate)}", "bar.busy"),
            Text(f"{activity.n_tokens} out"),
            *queued,
            Text("Ctrl-C stops", "bar.busy"),
        ]
    if not activity.prefill_total:
        return [Text("prefill", "bar.busy"), *queued]
    return [
        Text(prefill_text(activity), "bar.busy"),
        Text(f"reused {activity.reused}"),
        *queued,
        Text("Ctrl-C stops", "bar.busy"),
    ]


def _prefill_cost(last: RawDecodeResult) -> str:
    """Return the rate, or of a few tokens the time: their rate says more of what surrounds them."""
    if 0 < last.prefilled_tokens < _FEW_TOKENS:
        return f"{1000 * last.prefill_seconds:.0f} ms"
    return rate_text(last.prefill_rate)


def _reused(result: TurnResult) -> list[Text]:
    """Return what was continued, and why it was not more, or that a draft was read ahead."""
    raw, miss = result.raw, result.miss
    share = f"reused {raw.reused_prefix_tokens}/{raw.prompt_tokens}"
    if result.n_ahead:
        share += f" ({result.n_ahead} ahead)"
    fields = [Text(share, "bar.good" if raw.reused_prefix_tokens else "")]
    if miss is not None:
        fields.append(Text(f"{miss.cause} at {miss.position}", "bar.warn"))
    return fields


def _last_turn_fields(result: TurnResult) -> list[Text]:
    last = result.raw
    fields = [
        *_reused(result),
        Text(f"prefill {_prefill_cost(last)}"),
        Text(f"decode {rate_text(last.decode_rate)}"),
        Text(f"{last.new_tokens} out"),
        Text(last.reason, "bar.warn" if last.reason.is_cut_short else ""),
    ]
    if last.peak_memory_pressure > MemoryPressure.NORMAL:
        fields.append(Text(f"peak {last.peak_memory_pressure.label}", "bar.warn"))
    return fields


def draw_status(status: StatusSnapshot, width: int) -> Text:
    """Return the bar for `width` columns: two rows, of each the fields that fit whole, at least the first."""
    # Two rows always: a bar that grows and shrinks makes everything above it jump.
    rows = [_row(fields, width) for fields in (standing_fields(status), turn_fields(status))]
    return Text("\n").join(rows)


def _row(fields: Sequence[Text], width: int) -> Text:
    row = Text(style="bar")
    for field in fields:
        separator = SEPARATOR if row.plain else ""
        if row.plain and row.cell_len + len(separator) + field.cell_len > width:
            break
        row.append(separator).append_text(field)
    row.truncate(max(width, 1), overflow="ellipsis")  # a number cut short would read as another number
    return row
