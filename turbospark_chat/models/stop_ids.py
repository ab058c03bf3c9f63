"""The ids that end a reply, gathered from every place a model names one. Knows no template and no loop."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

from turbospark_chat.errors import ModelWarning
from turbospark_chat.models.control_names import END_OF_SEQUENCE_NAMES, END_OF_TURN_NAMES, TOOL_CALL_NAMES
from turbospark_chat.models.vocabulary import Vocabulary, known_ids


@dataclass(frozen=True, slots=True)
class StopIds:
    """Ids after which a model says no more, by what they mean; no id has two meanings."""

    end_of_turn: frozenset[int]
    end_of_sequence: frozenset[int]
    tool_calls: frozenset[int]

    @property
    def all(self) -> frozenset[int]:
        """Every id that stops."""
        return self.end_of_turn | self.end_of_sequence | self.tool_calls


def gather_stop_ids(vocabulary: Vocabulary, *, declared: int | Sequence[int] | None = None) -> StopIds:
    """Join the metadata's ids, those `declared` elsewhere (as a generation config does) and the known names.

    A known spelling tells what an id means, else the key that names it does. Warns with ModelWarning of a
    declared id beyond the vocabulary, and where nothing declares an end of sequence.
    """
    declared_ids = () if declared is None else (declared,) if isinstance(declared, int) else tuple(declared)
    n_tokens = len(vocabulary.pieces)
    eos_ids = vocabulary.eos_ids + known_ids(declared_ids, n_tokens=n_tokens, named_by="a declared stop id")
    turn = _ids_of(END_OF_TURN_NAMES, vocabulary)
    tools = _ids_of(TOOL_CALL_NAMES, vocabulary)
    sequence = _ids_of(END_OF_SEQUENCE_NAMES, vocabulary)
    if "<|return|>" in vocabulary.control_ids and "<|call|>" in vocabulary.control_ids:
        turn -= _ids_of(frozenset({"<|end|>"}), vocabulary)  # there it ends each message of a turn
    named = turn | tools | sequence
    turn |= set(vocabulary.eot_ids) - named
    tools |= set(vocabulary.eom_ids) - named - turn
    sequence |= set(eos_ids) - turn - tools
    stop_ids = StopIds(frozenset(turn), frozenset(sequence), frozenset(tools))
    if not eos_ids:
        _warn_of_missing_end(stop_ids, vocabulary)
    return stop_ids


def _ids_of(names: frozenset[str], vocabulary: Vocabulary) -> set[int]:
    return {vocabulary.control_ids[name] for name in names if name in vocabulary.control_ids}


def _warn_of_missing_end(stop_ids: StopIds, vocabulary: Vocabulary) -> None:
    spellings = ", ".join(vocabulary.pieces[token_id] for token_id in sorted(stop_ids.all))
    instead = f"stopping at {spellings}" if spellings else "replies end at their token limit only"
    warnings.warn(f"the model names no end-of-sequence token: {instead}", ModelWarning, stacklevel=3)
