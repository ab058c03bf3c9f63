"""Runs an architecture with compiled kernels, on the weights as the file holds them and a cache of 16-bit numbers."""

from collections.abc import Iterator, Sequence

import numpy as np

from turbospark_chat.models import layers
from turbospark_chat.models.forward_pass import Architecture
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.kernels.layout import FEW, MAX_TOKENS
from turbospark_chat.models.layers import Array
from turbospark_chat.models.packed_kv_cache import PackedKvCache, packed_row_bytes
from turbospark_chat.models.program_builder import ProgramBuilder
from turbospark_chat.models.program_runner import KERNELS, ProgramRunner, stride_of
from turbospark_chat.models.retention import WINDOW_SLACK
from turbospark_chat.models.weight import Weight


class CompiledModel:
    """A forward pass written down as a program; the state is the cache it is handed.

    One pass at a time: the activations are the model's own.
    """

    def __init__(
        self,
        architecture: Architecture[Weight],
        library: KernelLibrary,
        *,
        n_threads: int,
        window_slack: int = WINDOW_SLACK,
    ) -> None:
        """Write the program down and load its kernels. `window_slack` is how far a window can go back.

        Raises:
            KernelsUnavailableError: a kernel is not compiled and cannot be.
        """
        self._architecture, self._window_slack = architecture, window_slack
        config = architecture.config
        builder = ProgramBuilder(
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            rope_dim=config.rope_dim,
            windows=config.windows,
        )
        x = architecture.hidden(builder)
        self._n_body = builder.n_instructions  # before the output head
        last = architecture.logits(builder, x)
        self._n_last = builder.n_instructions  # with the head of the last token
        builder.score_each()
        each = architecture.logits(builder, x)
        self._code = library.load((*KERNELS, *builder.kernels))
        self._program = builder.finish(self._code.address_of, last, each)
        n_pairs = sum(map(len, architecture.frequencies))
        self._runner = ProgramRunner(
            self._program, self._code.address_of, n_threads=n_threads, n_pairs=n_pairs
        )

    @property
    def arithmetic(self) -> str:
        """What computes, for people."""
        n_threads = self._runner.n_threads
        return f"compiled, {n_threads} thread{'s' if n_threads > 1 else ''}"

    @property
    def vocab_size(self) -> int:
        """Rows V of the output head, which may be padded past the tokenizer's ids."""
        return self._architecture.vocab_size

    @property
    def row_bytes(self) -> int:
        """Bytes of a position in one layer's cache."""
        return packed_row_bytes(self._architecture.config)

    @property
    def n_guesses(self) -> int:
        """Three where four tokens take at most twice as long as one; with fewer registers they take longer."""
        return self._runner.n_few // 2 - 1 if self._runner.n_few == FEW else 0

    def make_state(self) -> PackedKvCache:
        """Return an empty cache of this model's shape."""
        config = self._architecture.config
        return PackedKvCache(
            windows=config.windows,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            slack=self._window_slack,
        )

    def forward(self, tokens: Sequence[int], state: PackedKvCache, *, need_logits: bool) -> Array | None:
        """Run tokens at the state's end and commit them; with `need_logits` return logits (V,) after the last.

        After an exception the state is as long as before.
        """
        end = len(state) + len(tokens)
        for part, position in self._parts(tokens, state):
            needs_head = need_logits and position + len(part) == end
            self._run(part, position, n_instructions=self._n_last if needs_head else self._n_body)
        state.commit(end)
        return self._program.output.copy() if need_logits else None

    def forward_each(self, tokens: Sequence[int], state: PackedKvCache) -> Array:
        """Run tokens as `forward` does and return the logits (T, V) after each."""
        logits = np.empty((len(tokens), self.vocab_size), np.float32)
        start = len(state)
        for part, position in self._parts(tokens, state):
            self._run(part, position, skipped=slice(self._n_body, self._n_last))
            stride = stride_of(len(part))
            rows = self._program.outputs[1][: self.vocab_size * stride].reshape(-1, stride)
            logits[position - start :][: len(part)] = rows[:, : len(part)].T
        state.commit(start + len(tokens))
        return logits

    def _parts(self, tokens: Sequence[int], state: PackedKvCache) -> Iterator[tuple[Sequence[int], int]]:
        """Make room for tokens at the state's end; yield as many as fit one run, and where they stand, at a time."""
        position = len(state)
        state.reserve(position + len(tokens))
        self._runner.attach(state)
        for start in range(0, len(tokens), MAX_TOKENS):
            yield tokens[start : start + MAX_TOKENS], position + start

    def _run(
        self,
        tokens: Sequence[int],
        position: int,
        *,
        n_instructions: int | None = None,
        skipped: slice = slice(0),
    ) -> None:
        tables = [
            layers.rope_table(frequencies, position, len(tokens))
            for frequencies in self._architecture.frequencies
        ]
        self._runner.run(tokens, position, tables, n_instructions=n_instructions, skipped=skipped)
