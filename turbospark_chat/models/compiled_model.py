"""Runs an architecture with compiled kernels, on the weights as the file holds them and a cache of 16-bit numbers."""

from collections.abc import Sequence

from turbospark_chat.models import layers
from turbospark_chat.models.kernel_library import KernelLibrary
from turbospark_chat.models.kernels.layout import MAX_TOKENS
from turbospark_chat.models.layers import Array
from turbospark_chat.models.llama import Llama
from turbospark_chat.models.packed_kv_cache import PackedKvCache, packed_position_bytes
from turbospark_chat.models.program_builder import ProgramBuilder
from turbospark_chat.models.program_runner import KERNELS, ProgramRunner
from turbospark_chat.models.weight import Weight


class CompiledModel:
    """A forward pass written down as a program; the state is the cache it is handed.

    One pass at a time: the activations are the model's own.
    """

    def __init__(self, architecture: Llama[Weight], library: KernelLibrary, *, n_threads: int) -> None:
        """Write the program down and load its kernels.

        Raises:
            KernelsUnavailableError: a kernel is not compiled and cannot be.
        """
        self._architecture = architecture
        config = architecture.config
        builder = ProgramBuilder(
            n_heads=config.n_heads,
            n_kv_heads=config.n_kv_heads,
            head_dim=config.head_dim,
            rope_dim=config.rope_dim,
        )
        x = architecture.hidden(builder)
        self._n_body = builder.n_instructions  # before the output head
        logits = architecture.logits(builder, x)
        self._code = library.load((*KERNELS, *builder.kernels))
        self._program = builder.finish(self._code.address_of, logits)
        self._runner = ProgramRunner(
            self._program, self._code.address_of, n_threads=n_threads, rope_dim=config.rope_dim
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
    def position_bytes(self) -> int:
        """Bytes of a position in the KV cache."""
        return packed_position_bytes(self._architecture.config)

    def make_state(self) -> PackedKvCache:
        """Return an empty cache of this model's shape."""
        config = self._architecture.config
        return PackedKvCache(n_layers=config.n_layers, n_kv_heads=config.n_kv_heads, head_dim=config.head_dim)

    def forward(self, tokens: Sequence[int], state: PackedKvCache, *, need_logits: bool) -> Array | None:
        """Run tokens at the state's end and commit them; with `need_logits` return logits (V,) after the last.

        After an exception the state is as long as before.
        """
        position, end = len(state), len(state) + len(tokens)
        state.reserve(end)
        self._runner.attach(state)
        for start in range(0, len(tokens), MAX_TOKENS):
            part = tokens[start : start + MAX_TOKENS]
            needs_head = need_logits and start + MAX_TOKENS >= len(tokens)
            cos, sin = layers.rope_table(self._architecture.frequencies, position + start, len(part))
            n_instructions = None if needs_head else self._n_body
            self._runner.run(part, position + start, cos, sin, n_instructions=n_instructions)
        state.commit(end)
        return self._program.output.copy() if need_logits else None
