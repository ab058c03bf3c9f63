"""What the turns of a session cost together, for `/stats`."""

from rich.table import Table

from turbospark_chat.chat.turn_result import TurnResult
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.status_bar import rate_text


class Totals:
    """Adds up results."""

    def __init__(self) -> None:
        self.last: TurnResult | None = None
        self._n_turns = 0
        self._prompt_tokens = 0
        self._reused_tokens = 0
        self._ahead_tokens = 0
        self._prefilled_tokens = 0
        self._new_tokens = 0
        self._proposed_tokens = 0
        self._accepted_tokens = 0
        self._prefill_seconds = 0.0
        self._decode_seconds = 0.0

    def add(self, turn: TurnResult) -> None:
        """Count a turn."""
        self.last, result = turn, turn.raw
        self._ahead_tokens += turn.n_ahead
        self._n_turns += 1
        self._prompt_tokens += result.prompt_tokens
        self._reused_tokens += result.reused_prefix_tokens
        self._prefilled_tokens += result.prefilled_tokens
        self._new_tokens += result.new_tokens
        self._proposed_tokens += result.proposed_tokens
        self._accepted_tokens += result.accepted_tokens
        self._prefill_seconds += result.prefill_seconds
        self._decode_seconds += result.decode_seconds

    def table(self) -> Table:
        """Return the last turn beside all turns."""
        table = Table("", "last turn", "all turns", box=None, pad_edge=False)
        if self.last is None:
            table.add_row("turns", "–", "0")
            return table
        turn, last = self.last, self.last.raw
        table.add_row("turns", "1", str(self._n_turns))
        table.add_row("prompt tokens", str(last.prompt_tokens), str(self._prompt_tokens))
        table.add_row("  reused from the cache", str(last.reused_prefix_tokens), str(self._reused_tokens))
        if self._ahead_tokens:
            table.add_row("  of these read ahead", str(turn.n_ahead), str(self._ahead_tokens))
        table.add_row("  computed", str(last.prefilled_tokens), str(self._prefilled_tokens))
        table.add_row("tokens out", str(last.new_tokens), str(self._new_tokens))
        if self._proposed_tokens:
            table.add_row("  proposed ahead", str(last.proposed_tokens), str(self._proposed_tokens))
            table.add_row("  of these accepted", str(last.accepted_tokens), str(self._accepted_tokens))
        table.add_row("prefill seconds", f"{last.prefill_seconds:.2f}", f"{self._prefill_seconds:.2f}")
        table.add_row("decode seconds", f"{last.decode_seconds:.2f}", f"{self._decode_seconds:.2f}")
        table.add_row("prefill rate", rate_text(last.prefill_rate), "")
        table.add_row("decode rate", rate_text(last.decode_rate), "")
        table.add_row("stop reason", last.reason, "")
        table.add_row("peak memory pressure", last.peak_memory_pressure.label, "")
        if turn.miss is not None:
            table.add_row("computed again because", harmless(str(turn.miss)), "")
        return table
