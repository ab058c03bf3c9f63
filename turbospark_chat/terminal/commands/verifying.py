"""The command that proves the cache right: computed anew, and compared with the one in use."""

from collections.abc import Sequence

from rich.text import Text

from turbospark_chat.chat.turn_result import TurnEventSink
from turbospark_chat.chat.verification import Verification
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.terminal.commands.command import command
from turbospark_chat.terminal.commands.context import CommandContext, Outcome
from turbospark_chat.terminal.rows import grid


@command(needs_idle=True)
def verify(context: CommandContext, argument: str) -> None:
    """Compute the cache anew from its tokens and compare it with the one in use."""
    model = context.session.model

    def compare(cancel: CancelFlag, on_event: TurnEventSink) -> Outcome:
        found = model.verify(
            cancel=cancel, on_progress=lambda done, total: on_event(Prefill(done, total, reused=0))
        )
        return Text("stopped", "notice") if found is None else grid(_rows(found))

    context.start(compare)


def _rows(found: Verification) -> Sequence[tuple[str, str]]:
    """Return what was compared, and what came of it."""
    where = f" in {found.differs_most}" if found.cache_difference else ""
    return [
        ("positions", f"{found.n_positions}, of {found.n_ids} tokens"),
        (
            "cache",
            f"differs by {found.cache_difference:.1e}{where}; up to {found.cache_tolerance:g} is rounding",
        ),
        ("logits", f"differ by {found.logit_difference:.1e}; up to {found.logit_tolerance:g} is rounding"),
        ("likeliest token", "the same" if found.is_same_token else "another"),
        (
            "verdict",
            "sound" if found.is_sound else "wrong: this is not what its tokens give; `/clear` drops it",
        ),
    ]
