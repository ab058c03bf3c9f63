"""What a command costs in computing, said before it is done; and the numbers that commands take."""

from collections.abc import Callable, Sequence

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.context_use import KEEP, Keep, Recompute
from turbospark_chat.chat.conversation import Turn
from turbospark_chat.errors import StoreError, UsageError
from turbospark_chat.terminal.commands.answer import say
from turbospark_chat.terminal.commands.context import CommandContext


def say_cost(
    context: CommandContext,
    what: str,
    turns: Sequence[Turn],
    *,
    system: str | None | Keep = KEEP,
    model: ChatModel | None = None,
) -> None:
    """Say what is about to be done, and how many tokens the next message has to compute again for it.

    `turns` under the prompt `system` are what will be left of the conversation. `model` is the present one with
    another template.

    Raises:
        TemplateError: the template refuses what would be left.
    """
    cost = context.session.costs.recomputed_after(turns, system=system, model=model)
    say(context, f"{what}: {cost_text(cost, 'with the next message')}")


def cost_text(cost: Recompute, when: str) -> str:
    """Return a cost for people, and when it comes."""
    if not cost.n_recomputed:
        return "nothing is computed again"
    return f"{cost.n_recomputed} of {cost.n_prompt} tokens are computed again {when}"


def change(context: CommandContext, make: Callable[[], object]) -> None:
    """Make a change of the conversation and have it noted, also where it was made but could not be stored."""
    try:
        make()
    except StoreError:
        context.conversation_changed()
        raise
    context.conversation_changed()


def read_count(argument: str, usage: str) -> int:
    """Return the whole number above 0 that an argument is; 1 without one.

    Raises:
        UsageError: it is none.
    """
    if not argument:
        return 1
    if not argument.isdecimal() or len(argument) > 9 or int(argument) < 1:
        raise UsageError(f"`{usage}` takes a whole number above 0, not `{argument[:20]}`")
    return int(argument)
