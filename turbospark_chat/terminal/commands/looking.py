"""Commands that look at the conversation and at what it costs; they change nothing."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from turbospark_chat.chat.turn_result import TurnEventSink
from turbospark_chat.engine.alternatives import TokenChoice
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.commands.answer import say, show_rows
from turbospark_chat.terminal.commands.command import command
from turbospark_chat.terminal.commands.context import CommandContext, Outcome
from turbospark_chat.terminal.commands.costs import read_count
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.rows import grid

MOST_TOKENS_EXPLAINED = 64
N_ALTERNATIVES = 5
DEFAULT_TOKENS_EXPLAINED = 8


@command()
def history(context: CommandContext, argument: str) -> None:
    """Show the conversation so far, its turns numbered."""
    lines: list[RenderableType] = []
    conversation = context.session.conversation
    if conversation.system:
        lines.append(_said("system", conversation.system))
    for number, turn in enumerate(conversation.turns, start=1):
        lines.append(_said(f"{number} user", turn.user.content))
        mark = "" if turn.reply.complete else " [unfinished]"
        lines.append(_said(f"{number} assistant", turn.reply.content, mark))
    context.show(Group(*lines) if lines else Text("nothing said yet", "notice"))


def _said(who: str, text: str, mark: str = "") -> Text:
    return Text.assemble((f"{who}: ", "bar.model"), harmless(text), (mark, "notice"))


@command("TEXT")
def search(context: CommandContext, argument: str) -> None:
    """Find a text in the stored conversations; `/load ID@TURN` goes there."""
    if not argument:
        raise UsageError("`/search TEXT` needs a text to look for")
    hits = context.archive.search(argument)
    if not hits:
        say(context, f"nothing stored contains `{argument}`")
        return
    show_rows(context, [(hit.reference, hit.role, hit.snippet) for hit in hits])


@command()
def stats(context: CommandContext, argument: str) -> None:
    """Show what the turns so far cost, and what reuse saved."""
    context.show(context.statistics())


@command(needs_idle=True)
def context_(context: CommandContext, argument: str) -> None:
    """Show what fills the context, by role, in tokens."""
    use = context.session.costs.count_by_role()
    left = use.context_length - use.total
    rows = [
        ("system", use.system), ("user", use.user), ("assistant", use.assistant),
        ("template", use.template), ("all", use.total), ("left", left),
    ]  # fmt: skip
    share = [f"{100 * n / use.context_length:.1f} %" for _, n in rows]
    show_rows(
        context, [(name, str(n), part) for (name, n), part in zip(rows, share, strict=True)], right=(1, 2)
    )


@command("[N]", needs_idle=True)
def why(context: CommandContext, argument: str) -> None:
    """Show the likeliest alternatives at the reply's last N tokens, 8 if not given."""
    n_tokens = read_count(argument, "/why [N]") if argument else DEFAULT_TOKENS_EXPLAINED
    if n_tokens > MOST_TOKENS_EXPLAINED:
        raise UsageError(f"`/why` explains at most {MOST_TOKENS_EXPLAINED} tokens, not {n_tokens}")
    session = context.session

    def explain(cancel: CancelFlag, on_event: TurnEventSink) -> Outcome:
        choices = session.explain(n_tokens, n_alternatives=N_ALTERNATIVES, cancel=cancel)
        if choices:
            return grid(_choice_rows(choices))
        return Text("stopped" if cancel.is_set() else "the last reply has no tokens", "notice")

    context.start(explain)


def _choice_rows(choices: Sequence[TokenChoice]) -> list[tuple[str, ...]]:
    """Return a row a token: what was taken, how likely it was, and what else was likely."""
    rows: list[tuple[str, ...]] = [("token", "chance", "rank", "likeliest")]
    for choice in choices:
        others = "  ".join(f"{_quoted(other.text)} {other.probability:.1%}" for other in choice.alternatives)
        rows.append((_quoted(choice.text), f"{choice.probability:.1%}", str(choice.rank), others))
    return rows


def _quoted(text: str) -> str:
    return repr(harmless(text))
