"""What can be found out about a chat template by rendering small conversations, and no other way.

A template says what it supports only by raising, in its own words, or by leaving text out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turbospark_chat.chat.message import ROLES, Message, ToolCall
from turbospark_chat.chat.message_shape import MessageShape
from turbospark_chat.chat.rendered_prompt import Control, RenderedPrompt
from turbospark_chat.errors import TemplateError

# Lower-case letters only, so that no template has a reason to change them.
_SYSTEM = Message("system", "probesystem")
_USER = Message("user", "probequestion")
_REPLY = Message("assistant", "probereply")
_NEXT_USER = Message("user", "probenext")
_CALL = Message("assistant", "", tool_calls=(ToolCall("probetool", {"probekey": "probevalue"}),))


@dataclass(frozen=True, slots=True)
class TemplateTraits:
    """How a template wants its messages, and what it writes around them."""

    shape: MessageShape
    takes_system: bool  # False where a system message raises or does not appear
    opens_reply: bool  # whether add_generation_prompt changes anything
    turn_end_spellings: frozenset[str]


class Render(Protocol):
    """Renders exactly the messages given; raises TemplateError where the template does."""

    def __call__(
        self, messages: Sequence[Message], *, shape: MessageShape, add_generation_prompt: bool = False
    ) -> RenderedPrompt:
        """Return the render."""


def probe_traits(render: Render) -> TemplateTraits:
    """Return the traits of the template behind `render`."""
    part_roles = _part_roles(render)
    shape = MessageShape(part_roles=part_roles, argument_text=_wants_argument_text(render, part_roles))
    with_system, without = _attempt(render, [_SYSTEM, _USER], shape), _attempt(render, [_USER], shape)
    return TemplateTraits(
        shape=shape,
        takes_system=without is None or (with_system is not None and _SYSTEM.content in with_system.text),
        opens_reply=without is None
        or without != _attempt(render, [_USER], shape, add_generation_prompt=True),
        turn_end_spellings=_turn_end_spellings(_attempt(render, [_USER, _REPLY, _NEXT_USER], shape)),
    )


def _attempt(
    render: Render, messages: Sequence[Message], shape: MessageShape, *, add_generation_prompt: bool = False
) -> RenderedPrompt | None:
    try:
        return render(messages, shape=shape, add_generation_prompt=add_generation_prompt)
    except TemplateError:
        return None


def _part_roles(render: Render) -> frozenset[str]:
    """Return the roles whose content appears only when it is a list of parts."""
    messages = [_USER, _REPLY, _NEXT_USER]

    def shows_all(part_roles: frozenset[str]) -> bool:
        prompt = _attempt(render, messages, MessageShape(part_roles=part_roles))
        return (
            prompt is not None
            and all(message.content in prompt.text for message in messages)
            and "'type'" not in prompt.text  # the list itself, as Python prints it
        )

    choices = (frozenset[str](), ROLES, ROLES - {"assistant"}, frozenset({"assistant"}))
    return next(filter(shows_all, choices), frozenset())


def _wants_argument_text(render: Render, part_roles: frozenset[str]) -> bool:
    """Return whether an object as tool arguments raises, or is printed as Python would."""

    def shown(*, argument_text: bool) -> str | None:
        prompt = _attempt(render, [_USER, _CALL], MessageShape(part_roles, argument_text))
        return None if prompt is None else prompt.text

    as_object = shown(argument_text=False)
    if as_object is not None and "'probekey'" not in as_object:
        return False
    return '"probekey"' in (shown(argument_text=True) or "")


def _turn_end_spellings(prompt: RenderedPrompt | None) -> frozenset[str]:
    """Return the control spellings between a reply and the next user message."""
    spellings: set[str] = set()
    in_between = False
    for segment in prompt.segments if prompt else ():
        if isinstance(segment, Control):
            spellings.add(segment.spelling)
            continue
        if _REPLY.content in segment.text:
            in_between = True
            spellings.clear()
        if in_between and _NEXT_USER.content in segment.text:
            return frozenset(spellings)
    return frozenset()
