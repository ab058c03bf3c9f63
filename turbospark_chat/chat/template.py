"""A model's chat template: messages in, a prompt out in which control tokens and text are told apart.

Knows the messages and what the model's file says about its template; no tokenizer and no ids.
"""

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateSyntaxError

from turbospark_chat.chat.control_guard import ControlGuard
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.message_shape import MessageShape
from turbospark_chat.chat.rendered_prompt import RenderedPrompt
from turbospark_chat.chat.template_environment import TemplateEnvironment
from turbospark_chat.chat.template_traits import probe_traits
from turbospark_chat.errors import ModelWarning, TemplateError
from turbospark_chat.regular_file import read_regular_file

_CHATML_END = "<|im_end|>"
_CHATML = (
    "{% for message in messages %}"
    f"{{{{ '<|im_start|>' + message.role + '\n' + message.content + '{_CHATML_END}\n' }}}}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


_MOST_BYTES = 4_000_000  # of a template; the longest ones known have some ten thousand
_ANOTHER = "give another template with `--template FILE`"


class ChatTemplate:
    """A compiled chat template. Renders are a function of the messages and of the time the session began.

    Args:
        source: the template, or None where the model has none: ChatML stands in, and a ModelWarning says so.
        control_spellings: every control token of the model, by its text.
        clock: asked at construction and by `new_session`, never in between.

    Raises:
        TemplateError: the template cannot be parsed.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_token: str | None,
        eos_token: str | None,
        control_spellings: Collection[str],
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.fallback = "ChatML" if source is None else None
        self.source = _CHATML if source is None else source
        self._guard = ControlGuard(control_spellings)
        self._template = _compile(self.source, TemplateEnvironment(self._guard))
        self._control_spellings = control_spellings
        self._specials = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        self._clock = clock
        self._began = clock()
        self._traits = probe_traits(self._render_exactly)
        if self.fallback:
            _warn(f"the model has no chat template: using {self.fallback}, which it may not know")
        if not self._traits.opens_reply:
            _warn(
                "the chat template ignores `add_generation_prompt`: replies may not begin where they should"
            )

    def with_source(self, source: str) -> "ChatTemplate":
        """Return another template for the same model; this one stays as it is.

        Raises:
            TemplateError: the new one cannot be parsed.
        """
        return ChatTemplate(
            source,
            bos_token=self._specials["bos_token"],
            eos_token=self._specials["eos_token"],
            control_spellings=self._control_spellings,
            clock=self._clock,
        )

    def new_session(self) -> None:
        """Set the template's clock to now. Otherwise it stands still, so that prompts begin alike."""
        self._began = self._clock()

    def turn_end_spellings(self) -> frozenset[str]:
        """Return the control spellings that the template writes between a reply and the next user message.

        A model that generates one of them has ended its turn.
        """
        return self._traits.turn_end_spellings

    def turn_end_text(self) -> str | None:
        """Return the plain text that ends a turn of a model which has no token for it, as one without a template."""
        return _CHATML_END if self.fallback and _CHATML_END not in self._control_spellings else None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        """Render a conversation.

        Where the template does not take a system message, its text opens the first user message. Where it
        refuses roles that do not alternate, empty replies are left out and user messages in a row become one.

        Args:
            tools: JSON schemas of the tools the model may call.
            extra: further variables for the template, such as `enable_thinking`.

        Raises:
            TemplateError: the template failed or refused the conversation; with its own words.
        """
        if not self._traits.takes_system:
            messages = _fold_system(messages)

        def attempt(messages: Sequence[Message]) -> RenderedPrompt:
            return self._render_exactly(
                messages,
                shape=self._traits.shape,
                add_generation_prompt=add_generation_prompt,
                tools=tools,
                extra=extra,
            )

        try:
            return attempt(messages)
        except TemplateError:
            alternating = _alternate(messages)
            if alternating == list(messages):
                raise
        return attempt(alternating)

    def _render_exactly(
        self,
        messages: Sequence[Message],
        *,
        shape: MessageShape,
        add_generation_prompt: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> RenderedPrompt:
        protect = self._guard.protect
        variables = protect(extra or {}) | {
            "messages": [
                # The role is one of four words, and templates write it into control tokens.
                protect(shape.variables(message)) | {"role": message.role}
                for message in messages
            ],
            "tools": None if tools is None else protect(list(tools)),
            "add_generation_prompt": add_generation_prompt,
            "strftime_now": self._began.strftime,
            **self._specials,
        }
        try:
            rendered = self._template.render(variables)
        except Exception as error:  # a template can raise whatever an expression can
            problem = " ".join(self._guard.restore(str(error) or type(error).__name__).split())
            raise TemplateError(
                f"the chat template failed: {problem}; take the last message back, or {_ANOTHER}"
            ) from error
        return self._guard.segments(rendered)


def read_template(path: str) -> str:
    """Return the text of a template file.

    Raises:
        TemplateError: it cannot be read.
    """
    try:
        return read_regular_file(Path(path).expanduser(), most_bytes=_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise TemplateError(f"{path}: cannot read the template: {error.strerror or error}") from error


def _compile(source: str, environment: TemplateEnvironment) -> Template:
    try:
        return environment.compile_template(source)
    except TemplateSyntaxError as error:
        problem = f"line {error.lineno}: {error.message}"
        raise TemplateError(f"the chat template cannot be parsed: {problem}; {_ANOTHER}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # beyond what Python compiles
        problem = " ".join(str(error).split()) or type(error).__name__
        raise TemplateError(f"the chat template cannot be compiled: {problem}; {_ANOTHER}") from error


def _warn(problem: str) -> None:
    warnings.warn(problem, ModelWarning, stacklevel=3)


def _fold_system(messages: Sequence[Message]) -> list[Message]:
    """Put system text in front of the next user message's text, or at the end in one of its own."""
    folded: list[Message] = []
    waiting: list[str] = []
    for message in messages:
        if message.role == "system":
            waiting += [message.content] if message.content else []
        elif message.role == "user" and waiting:
            folded.append(replace(message, content="\n\n".join([*waiting, message.content])))
            waiting = []
        else:
            folded.append(message)
    return [*folded, Message("user", "\n\n".join(waiting))] if waiting else folded


def _alternate(messages: Sequence[Message]) -> list[Message]:
    """Leave out empty replies, and join user messages that then follow each other."""
    alternating: list[Message] = []
    for message in messages:
        if message.role == "assistant" and message.is_empty:
            continue
        if message.role == "user" and alternating and alternating[-1].role == "user":
            message = replace(message, content=f"{alternating.pop().content}\n\n{message.content}")
        alternating.append(message)
    return alternating
