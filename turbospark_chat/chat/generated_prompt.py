"""A prompt in which replies stand as they were generated: the thinking that templates leave out is back in it.

Knows the template and the turns, and hands on their ids without looking at them.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.prompt_encoder import Ids, PromptPart
from turbospark_chat.chat.reasoning import ReasoningTags, split
from turbospark_chat.chat.rendered_prompt import RenderedPrompt, Segment, Text
from turbospark_chat.chat.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Said:
    """The ids of a prompt and the reply to it, and what they say: these turns under this system prompt."""

    system: str | None
    turns: tuple[Turn, ...]
    ids: tuple[int, ...]


NOTHING_SAID = Said(None, (), ())


def parts_as_generated(
    conversation: Conversation,
    following: Sequence[Message],
    template: ChatTemplate,
    tags: Collection[ReasoningTags | None],
    *,
    said: Said = NOTHING_SAID,
) -> Sequence[PromptPart] | None:
    """Return the parts of the prompt that ends with the message `following`, or with the last reply without one.

    Each reply follows on what opened it when it was generated. What was `said` already is not taken apart again.
    None where a reply was edited since, and where the template alters replies beyond recognition.

    Args:
        tags: those by which replies may have been split into thinking and answer.
    """
    turns = conversation.turns
    is_known = (said.system, said.turns) == (conversation.system, turns)
    parts: list[PromptPart] = [Ids(said.ids)] if is_known else []
    for n_before in range(len(turns) if is_known else 0, len(turns) + 1):
        turn = turns[n_before] if n_before < len(turns) else None
        between = _between(conversation, n_before, [turn.user] if turn else following, template)
        if between is None or (turn and _is_edited(turn, tags)):
            return None
        parts += between
        if turn:
            parts.append(Ids(turn.generated_ids))
    return parts


def _between(
    conversation: Conversation, n_before: int, following: Sequence[Message], template: ChatTemplate
) -> Sequence[Segment] | None:
    """Return what the template writes from the end of turn `n_before - 1` to where the next reply begins."""
    messages = conversation.messages(n_turns=n_before)
    mark = "reply-stands-here"
    while any(mark in message.content for message in (*messages, *following)):
        mark += "-"
    if n_before:
        messages[-1] = replace(messages[-1], content=mark)
    prompt = template.render([*messages, *following], add_generation_prompt=bool(following))
    return _after(prompt, mark) if n_before else prompt.segments


def _after(prompt: RenderedPrompt, mark: str) -> Sequence[Segment] | None:
    """Return what follows the text `mark`, or None where it does not stand exactly once."""
    if prompt.text.count(mark) != 1:
        return None
    for index, segment in enumerate(prompt.segments):
        if isinstance(segment, Text) and mark in segment.text:
            rest = segment.text.partition(mark)[2]
            return [*([Text(rest)] if rest else []), *prompt.segments[index + 1 :]]
    return None


def _is_edited(turn: Turn, tags: Collection[ReasoningTags | None]) -> bool:
    """Whether the reply no longer says what was generated."""
    said = (turn.reply.reasoning or "", turn.reply.content)
    ways = ((pair, inside) for pair in tags for inside in (False, True))
    return all(split(turn.generated, pair, inside=inside) != said for pair, inside in ways)
