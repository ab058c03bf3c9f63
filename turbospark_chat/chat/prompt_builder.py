"""Builds the prompt of the next turn: rendered, fitted to the context, and with the ids that its text already has.

Knows what earlier prompts said and in which ids; no producer and no cache.
"""

from collections.abc import Sequence
from dataclasses import replace

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.generated_prompt import NOTHING_SAID, Said, parts_as_generated
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.prompt_encoder import PromptPart, encode_prompt, whole_characters
from turbospark_chat.chat.window import OverflowPolicy, Window, fit_window
from turbospark_chat.engine.kv_prefix import common_length

# Prompts with their replies: branches and conversations that are gone to and fro, and other replies to a message.
_MOST_REMEMBERED = 64


class PromptBuilder:
    """Builds prompts for one model."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self.said = NOTHING_SAID  # by the last turn
        self._known: tuple[tuple[int, ...], ...] = ()  # the latest first

    def for_model(self, model: ChatModel) -> "PromptBuilder":
        """Return a builder for the same model with another template, which knows the ids that this one does.

        Nothing is said by it yet: a prompt that begins as the last one did would be the other template's.
        """
        other = PromptBuilder(model)
        other._known = self._known
        return other

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
            parts = parts_as_generated(conversation, following, model.template, tags, said=self.said)
        if parts is None:
            messages = [*conversation.messages(), *following]
            parts = model.template.render(messages, add_generation_prompt=bool(following)).segments
        return encode_prompt(parts, model.tokenizer, known=self._known)

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

    def certain_ids(
        self,
        system: str | None,
        turns: Sequence[Turn],
        draft: str,
        options: ChatOptions,
        *,
        first_turn: int = 0,
    ) -> Sequence[int]:
        """Return what the next prompt begins with if its message begins with `draft`, whatever comes after.

        The last piece of the draft is not certain: what is typed next may merge with it.

        Raises:
            WindowOverflowError: turns would have to be left out for it.
            TemplateError: the template refuses it.
        """
        options = replace(options, on_overflow=OverflowPolicy.ERROR)
        endings = ("", "x") if draft else ("a", "b")
        one, other = (
            self.fit(system, turns, [Message("user", draft + ending)], options, first_turn=first_turn)
            for ending in endings
        )
        return one.prompt_ids[: common_length(one.prompt_ids, other.prompt_ids)]

    def note(self, system: str | None, turns: tuple[Turn, ...], ids: Sequence[int]) -> None:
        """Remember that these ids say these turns, so that the next prompt begins with them."""
        self.said = Said(system, turns, tuple(ids))
        self._learn(tuple(ids))

    def remember(self, ids: Sequence[int]) -> None:
        """Remember ids from a cache, wherever that breaks off: a prompt that begins with their text gets them."""
        self._learn(tuple(whole_characters(ids, self._model.tokenizer)))

    def _learn(self, new: tuple[int, ...]) -> None:
        others = [known for known in self._known if new[: len(known)] != known]
        self._known = (new, *others[: _MOST_REMEMBERED - 1])

    def n_said(self, ids: Sequence[int]) -> int:
        """Return how many leading ids are known as those of a prompt with its reply."""
        return max((common_length(ids, known) for known in self._known), default=0)

    def forget_last(self) -> None:
        """Begin another conversation: the ids stay known, but nothing is said in it yet."""
        self.said = NOTHING_SAID
