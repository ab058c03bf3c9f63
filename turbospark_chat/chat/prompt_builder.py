"""Builds the prompt of the next turn: rendered, fitted to the context, and with the ids that its text already has.

Knows what the last prompt said and in which ids; no producer and no cache.
"""

from collections.abc import Sequence

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.generated_prompt import NOTHING_SAID, Said, parts_as_generated
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.prompt_encoder import PromptPart, encode_prompt
from turbospark_chat.chat.window import Window, fit_window


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._said = NOTHING_SAID

    def encode(
        self,
        system: str | None,
        turns: Sequence[Turn],
        following: Sequence[Message],
        options: ChatOptions,
    ) -> list[int]:
        """Return the prompt ids of all these turns, and of messages to answer if there are any."""
        model = self._model
        conversation = Conversation(system=system, turns=turns)
        parts: Sequence[PromptPart] | None = None
        if options.keep_reasoning:
            tags = {options.think_tags, model.reasoning_tags, None}
            parts = parts_as_generated(conversation, following, model.template, tags, said=self._said)
        if parts is None:
            messages = [*conversation.messages(), *following]
            parts = model.template.render(messages, add_generation_prompt=bool(following)).segments
        return encode_prompt(parts, model.tokenizer, known_ids=self._said.ids)

    def fit(
        self,
        system: str | None,
        turns: Sequence[Turn],
        following: Sequence[Message],
        options: ChatOptions,
        *,
        first_turn: int,
        begun_ids: Sequence[int] = (),
    ) -> Window:
        """Return the prompt of the turns that fit, from `first_turn` on at most, and of what follows them.

        Raises:
            WindowOverflowError: it does not fit even without any turn, or no turn may be left out.
            TemplateError: the template refuses it.
        """
        return fit_window(
            lambda first: [*self.encode(system, turns[first:], following, options), *begun_ids],
            first_turn=min(first_turn, len(turns)),
            n_turns=len(turns),
            context_length=self._model.context_length,
            max_tokens=options.completion.max_new_tokens,
            policy=options.on_overflow,
        )

    def note(self, system: str | None, turns: tuple[Turn, ...], ids: Sequence[int]) -> None:
        """Remember that these ids say these turns, so that the next prompt begins with them."""
        self._said = Said(system, turns, tuple(ids))
