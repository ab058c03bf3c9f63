"""What a session's conversation takes of the context, and what changing it would cost: token counts for people.

Knows whoever answers and what is said; it changes nothing and computes nothing on the model.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.context_use import KEEP, ContextUse, Keep, Recompute, use_by_role
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.prompt_builder import PromptBuilder
from turbospark_chat.chat.replier import Replier
from turbospark_chat.chat.window import OverflowPolicy, WindowOverflowError
from turbospark_chat.errors import TemplateError, UsageError

Present = Callable[[], tuple[Conversation, ChatOptions]]


class SessionCosts:
    """Counts for the conversation and options of the moment. `present` returns them."""

    def __init__(self, replier: Replier, present: Present) -> None:
        self._replier, self._present = replier, present

    def count_tokens(self) -> int:
        """Return how many tokens the conversation takes in a prompt, 0 before its first turn."""
        conversation, options = self._present()
        turns = conversation.turns[self._replier.first_turn :]
        if not conversation.turns:
            return 0
        return len(self._replier.prompts.encode(conversation.system, turns, [], options))

    def count_by_role(self) -> ContextUse:
        """Return who said how many of them."""
        conversation, options = self._present()
        model = self._replier.model
        return use_by_role(
            conversation.system,
            conversation.turns[self._replier.first_turn :],
            model.tokenizer,
            total=self.count_tokens(),
            context_length=model.context_length,
            keep_reasoning=options.keep_reasoning,
        )

    def recomputed_after(
        self,
        turns: Sequence[Turn],
        *,
        system: str | None | Keep = KEEP,
        model: ChatModel | None = None,
    ) -> Recompute:
        """Return how much of these turns, if they were the conversation, the next turn would compute anew.

        An estimate for people, by what the last run left in the cache. `model` is this one with another template.

        Raises:
            TemplateError: the template refuses these turns.
        """
        conversation, _ = self._present()
        is_other = system is not KEEP or model is not None
        first_turn = 0 if is_other else self._replier.first_turn_of(turns, conversation.turns)
        return self._recomputed(
            conversation.system if system is KEEP else system, turns, (), first_turn=first_turn, model=model
        )

    def recomputed_by_retry(self, *, is_same_message: bool) -> Recompute:
        """Return how much another reply to the last message computes anew; of one that is changed, what is before it.

        Raises:
            UsageError: there is no turn yet.
        """
        conversation, _ = self._present()
        if not conversation.turns:
            raise UsageError("there is no reply yet")
        *earlier, last = conversation.turns
        following = [last.user] if is_same_message else []
        return self._recomputed(
            conversation.system, earlier, following, first_turn=self._replier.first_turn, model=None
        )

    def _recomputed(
        self,
        system: str | None,
        turns: Sequence[Turn],
        following: Sequence[Message],
        *,
        first_turn: int,
        model: ChatModel | None,
    ) -> Recompute:
        _, options = self._present()
        prompts = self._replier.prompts if model is None else PromptBuilder(model)
        if not turns and not following:
            prompt_ids: Sequence[int] = ()
            if self._replier.live.ids:  # before anything was computed, nothing is computed anew
                prompt_ids = _before_any_message(prompts, system, options)
        else:
            options = replace(options, on_overflow=OverflowPolicy.DROP)
            try:
                prompt_ids = prompts.fit(system, turns, following, options, first_turn=first_turn).prompt_ids
            except WindowOverflowError as error:  # and the next turn will not fit either
                return Recompute(error.n_prompt, error.n_prompt)
        n_served = self._replier.live.n_served(prompt_ids) if options.completion.reuse else 0
        return Recompute(len(prompt_ids) - n_served, len(prompt_ids))


def _before_any_message(prompts: PromptBuilder, system: str | None, options: ChatOptions) -> Sequence[int]:
    """Return the ids a prompt begins with whatever its first message says."""
    try:
        return prompts.certain_ids(system, (), "", options)
    except TemplateError:  # that is for the next message to say
        return ()
