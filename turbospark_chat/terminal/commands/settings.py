"""Commands that show and change how the chat goes on: options, template, model."""

from collections.abc import Iterable, Sequence

from rich.text import Text

from turbospark_chat.chat.context_use import Recompute
from turbospark_chat.chat.options import OPTIONS, Option, find_option
from turbospark_chat.chat.template import read_template
from turbospark_chat.chat.turn_result import TurnEventSink
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.commands.answer import say, show_rows
from turbospark_chat.terminal.commands.command import command, paths
from turbospark_chat.terminal.commands.context import CommandContext, Outcome
from turbospark_chat.terminal.commands.costs import change, cost_text, say_cost
from turbospark_chat.terminal.harmless import harmless


def option_completions(context: CommandContext, typed: str) -> Iterable[str]:
    """Offer option names, then the values of the one that is typed."""
    name, space, value = typed.partition(" ")
    if not space:
        return [row for row in OPTIONS if row.startswith(name.replace("-", "_"))]
    row = OPTIONS.get(name.replace("-", "_"))
    values: Sequence[str] = row.choices if row else ()
    return [f"{name} {choice}" for choice in values if choice.startswith(value.strip())]


@command("[NAME [VALUE]]", completes=option_completions)
def set_(context: CommandContext, argument: str) -> None:
    """Show the settings, or change one from the next turn on."""
    name, _, value = argument.partition(" ")
    if value.strip():
        context.session.set_option(name, value)
    rows = [find_option(name)] if name else list(OPTIONS.values())
    options = context.session.options
    show_rows(context, [(_flag(row), row.show(options), f"{row.help} ({row.values})") for row in rows])


def _flag(row: Option) -> str:
    return "--" + row.name.replace("_", "-")


@command("[FILE]", needs_idle=True, completes=paths)
def template(context: CommandContext, argument: str) -> None:
    """Show the chat template, or use another from a file."""
    session = context.session
    if not argument:
        say(context, session.model.template.source)
        return
    model = session.model.with_template(read_template(argument))
    say_cost(context, f"using the template in {argument}", session.conversation.turns, model=model)
    change(context, lambda: session.set_model(model))


def _model_names(context: CommandContext, typed: str) -> Iterable[str]:
    """Offer the catalogue."""
    return (name for name in context.models.names() if name.startswith(typed))


@command()
def show(context: CommandContext, argument: str) -> None:
    """Describe the model in use."""
    show_rows(context, context.models.describe())


@command("[NAME]", needs_idle=True, completes=_model_names)
def model(context: CommandContext, argument: str) -> None:
    """Say which model answers, or have another one take the conversation over."""
    session, models = context.session, context.models
    if not argument:
        say(context, models.current)
        return
    if argument == models.current:
        raise UsageError(f"{argument} is the model that answers already")
    n_tokens = (
        session.costs.count_tokens()
    )  # the other model's tokenizer may count otherwise, but is not there yet
    say(context, f"loading {argument}: {cost_text(Recompute(n_tokens, n_tokens), 'with the next message')}")

    def take_over(cancel: CancelFlag, on_event: TurnEventSink) -> Outcome:
        model = models.open(argument)
        if cancel.is_set():
            return Text(f"stopped: {models.current} goes on", "notice")
        session.set_model(model)
        models.use(argument, model)
        return Text(harmless(f"{models.current} answers from here on"), "notice")

    context.start(take_over, changes_conversation=True)


@command()
def models(context: CommandContext, argument: str) -> None:
    """List the catalogue, and which models are installed."""
    show_rows(context, context.models.rows())
