"""The status bar: a snapshot of live values, and how it is drawn in a given width. Paints nothing itself."""

from dataclasses import dataclass

from rich.text import Text

from turbospark_chat.engine.completion import RawDecodeResult
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.terminal.vitals import Vitals

SEPARATOR = " · "
_FEW_TOKENS = 16
MAX_ROWS = 2


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
    last: RawDecodeResult | None = None
    activity: Activity | None = None


def rate_text(rate: float | None) -> str:
    """Return a rate for people; a dash where no time was measured."""
    return "–" if rate is None else f"{rate:.0f} tok/s" if rate >= 10 else f"{rate:.1f} tok/s"


def size_text(n_bytes: int) -> str:
    """Return a size for people."""
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.0f} MB"


def status_fields(status: StatusSnapshot) -> list[Text]:
    """Return the bar's fields in order, the most important first."""
    used, length = status.context_used, status.context_length
    nearly_full = used > length * 0.9
    fields = [
        Text(status.model, "bar.model"),
        Text(f"ctx {used}/{length}, {length - used} left", "bar.warn" if nearly_full else ""),
    ]
    if status.activity is not None:
        fields += _activity_fields(status.activity)
    elif status.last is not None:
        fields += _last_turn_fields(status.last)
    pressure = status.vitals.memory_pressure
    styles = {MemoryPressure.WARN: "bar.warn", MemoryPressure.CRITICAL: "bar.critical"}
    fields.append(
        Text(f"mem {pressure.label} {size_text(status.vitals.resident_bytes)}", styles.get(pressure, ""))
    )
    return fields


def _activity_fields(activity: Activity) -> list[Text]:
    queued = [Text(f"{activity.n_queued} queued")] if activity.n_queued else []
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
    progress = f"prefill {activity.prefill_done}/{activity.prefill_total}"
    rate = activity.prefill_rate
    if rate is not None:
        left = (activity.prefill_total - activity.prefill_done) / rate
        progress += f" {rate_text(rate)}, {left:.1f} s left"
    return [
        Text(progress, "bar.busy"),
        Text(f"reused {activity.reused}"),
        *queued,
        Text("Ctrl-C stops", "bar.busy"),
    ]


def _prefill_text(last: RawDecodeResult) -> str:
    """Return the rate, or of a few tokens the time: their rate says more of what surrounds them."""
    if 0 < last.prefilled_tokens < _FEW_TOKENS:
        return f"{1000 * last.prefill_seconds:.0f} ms"
    return rate_text(last.prefill_rate)


def _last_turn_fields(last: RawDecodeResult) -> list[Text]:
    fields = [
        Text(
            f"reused {last.reused_prefix_tokens}/{last.prompt_tokens}",
            "bar.good" if last.reused_prefix_tokens else "",
        ),
        Text(f"prefill {_prefill_text(last)}"),
        Text(f"decode {rate_text(last.decode_rate)}"),
        Text(f"{last.new_tokens} out"),
        Text(last.reason, "bar.warn" if last.reason.is_cut_short else ""),
    ]
    if last.peak_memory_pressure > MemoryPressure.NORMAL:
        fields.append(Text(f"peak {last.peak_memory_pressure.label}", "bar.warn"))
    return fields


def draw_status(status: StatusSnapshot, width: int) -> Text:
    """Return the bar for `width` columns: fields whole, in at most two rows, the last ones left out where they must."""
    rows = [Text(style="bar")]
    for field in status_fields(status):
        needed = field.cell_len + (len(SEPARATOR) if rows[-1].plain else 0)
        if rows[-1].plain and rows[-1].cell_len + needed > width:
            if len(rows) == MAX_ROWS:
                break
            rows.append(Text(style="bar"))
        if rows[-1].plain:
            rows[-1].append(SEPARATOR)
        rows[-1].append_text(field)
    for row in rows:
        row.truncate(max(width, 1), overflow="ellipsis")  # a number cut short would read as another number
    return Text("\n").join(rows)
