"""How the state at hand served a prompt, as facts: what it held, what they share, what could be kept."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReuseReport:
    """The facts of one `try_reuse_prefix`, before it cut or parked anything. `n_kept <= n_common <= n_held`."""

    n_held: int  # positions of the state that served best
    n_common: int  # of them, what the prompt begins with
    n_kept: int  # of those, what the state could go back to
    held_id: int | None  # what stood behind the common ones; None where they are all
    is_tainted: bool  # whether it had consumed something its ids do not describe
    n_evicted: int  # what a state would have served for certain that was thrown away for want of room
