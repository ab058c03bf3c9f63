"""How a message is spelled out as the plain dicts and strings that a chat template reads."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turbospark_chat.chat.message import Message, ToolCall


@dataclass(frozen=True, slots=True)
class MessageShape:
    """What a template expects where templates differ."""

    part_roles: frozenset[str] = frozenset()  # whose content is [{"type": "text", "text": ...}], not a string
    argument_text: bool = False  # tool arguments as JSON text instead of an object

    def variables(self, message: Message) -> dict[str, Any]:
        """Return the message as template variables; what is empty is left out, so that it cannot render."""
        content = message.content
        variables: dict[str, Any] = {
            "role": message.role,
            "content": [{"type": "text", "text": content}] if message.role in self.part_roles else content,
        }
        if message.reasoning:
            variables["reasoning_content"] = message.reasoning
        if message.tool_calls:
            variables["tool_calls"] = [self._call_variables(call) for call in message.tool_calls]
        return variables

    def _call_variables(self, call: ToolCall) -> dict[str, Any]:
        arguments = _as_object(call.arguments)
        if self.argument_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {"type": "function", "function": {"name": call.name, "arguments": arguments}}


def _as_object(arguments: Mapping[str, Any] | str) -> dict[str, Any] | str:
    """Return the object that JSON text says; text that says none stays as it is."""
    if not isinstance(arguments, str):
        return dict(arguments)
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return parsed if isinstance(parsed, dict) else arguments
