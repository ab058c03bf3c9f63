"""What was computed of a prompt, kept under a name from one `ts complete` to the next. Part of the composition root."""

import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.receipt import Cause, describe_miss
from turbospark_chat.chat.turn_result import TurnEventSink
from turbospark_chat.chat.warm_states import WarmStates
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import ModelWarning, StateFileError
from turbospark_chat.terminal.script import Generate


class PrefixCache:
    """A named state for scripts that share a long prompt. Where it cannot be used, a ModelWarning says why."""

    def __init__(self, states: WarmStates, name: str | None) -> None:
        """Find the file; without a name nothing is taken up and nothing kept.

        Raises:
            UsageError: no file can be called so.
        """
        self._states, self._path = states, None if name is None else states.of_name(name)
        self._n_taken_up = 0  # positions
        self._first: RawDecodeResult | None = None

    def take_up(self, session: ChatSession) -> None:
        """Begin from what was kept, if anything was."""
        if self._path is None or not session.options.completion.reuse:
            return
        try:
            self._n_taken_up = self._states.read(self._path, session.take_up_state) or 0
        except StateFileError as error:
            _warn(f"the prompt is computed anew: {error}")

    def watch(self, answers: Iterator[Generate]) -> Iterator[Generate]:
        """Yield the same work, and note what the first answer reuses."""
        for generate in answers:
            yield partial(self._note, generate)

    def keep(self, session: ChatSession) -> None:
        """Keep what is computed now, if more of the prompt was computed than reused. The model must be idle."""
        raw = self._first
        if raw is None or self._path is None or not session.options.completion.reuse:
            return
        if raw.reason is StopReason.CANCELLED and not raw.new_tokens:
            return
        n_known, n_reused = min(raw.kv_position, raw.prompt_tokens), raw.reused_prefix_tokens
        if n_known - n_reused > n_reused:
            try:
                if made_room := self._states.write(self._path, session.save_state):
                    _warn(str(made_room))
            except StateFileError as error:
                _warn(f"what was computed is not kept: {error}")

    def summary(self, session: ChatSession) -> str:
        """Say in a line what the first answer reused, and why no more was; nothing where nothing was to be."""
        raw = self._first
        if raw is None or self._path is None:
            return ""
        miss = describe_miss(raw.miss, n_said=self._n_taken_up, cause=Cause.PROMPT, spell=session.model.spell)
        reused = f"reused {raw.reused_prefix_tokens} of {raw.prompt_tokens} prompt tokens"
        return f"{reused}\n" if miss is None else f"{reused}; {miss}\n"

    def _note(self, generate: Generate, cancel: CancelFlag, on_event: TurnEventSink) -> Any:
        result = generate(cancel, on_event)
        self._first = self._first or result.raw
        return result


def _warn(problem: str) -> None:
    warnings.warn(problem, ModelWarning, stacklevel=3)
