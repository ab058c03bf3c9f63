"""A tiny hybrid model of random weights, two gated delta net layers with an attention layer between them, and an
engine that runs it and compares all it does with a cold one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import fields

import numpy as np
from checked_engine import GREEDY, IDS, Flag

from turbospark_chat.engine.completion import CompletionConfig, RawDecodeResult
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.raw_completion import run_prefill, run_raw_completion
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.models import layers
from turbospark_chat.models.delta_net import DeltaShape, DeltaWeights, delta_net
from turbospark_chat.models.delta_state import DeltaState
from turbospark_chat.models.hybrid_state import HybridState
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.layers import Array
from turbospark_chat.models.runner import Runner

DIM, VOCAB_SIZE, EPS = 16, 97, 1e-6
N_HEADS, N_KV_HEADS, HEAD_DIM = 4, 2, 8
SHAPE = DeltaShape(n_heads=4, n_key_heads=2, key_dim=8, value_dim=6, kernel_size=4)
# Cutting a prompt into other chunks changes last digits. Measured over 120 prompts of up to 200 ids, each cut in four
# ways: logits differ by 4.3e-6 at most (they reach 10), numbers of the state by 2.3e-6.
TOLERANCE = 5e-5

Tokens = Sequence[int]
HybridTinyState = HybridState[KvCache, DeltaState]


def random_weights(shape: DeltaShape, dim: int, rng: np.random.Generator) -> DeltaWeights:
    """Return weights whose heads forget at every pace, from a token's time to a hundred tokens'."""
    n_values = shape.n_heads * shape.value_dim
    sizes = {
        "qkv": (shape.n_channels, dim),
        "conv": (shape.n_channels, shape.kernel_size),
        "decay": (shape.n_heads, dim),
        "decay_bias": (shape.n_heads,),
        "beta": (shape.n_heads, dim),
        "gate": (n_values, dim),
        "norm": (shape.value_dim,),
        "output": (dim, n_values),
    }
    arrays = {name: scaled(rng, *size) for name, size in sizes.items()}
    arrays["decay_rate"] = np.geomspace(0.01, 1, shape.n_heads, dtype=np.float32)
    assert arrays.keys() == {field.name for field in fields(DeltaWeights)}
    return DeltaWeights(**arrays)


def scaled(rng: np.random.Generator, *size: int) -> Array:
    """Return random numbers that keep the size of what they are multiplied with."""
    return (rng.normal(size=size) / np.sqrt(size[-1])).astype(np.float32)


class HybridModel:
    """Implements Model. `evaluated` counts the tokens fed; `on_boundary` is called at each point and may raise."""

    vocab_size = VOCAB_SIZE

    def __init__(self, *, window: int | None = None, window_slack: int = 0, n_checkpoints: int = 8) -> None:
        rng = np.random.default_rng(7)
        self._window, self._window_slack, self._n_checkpoints = window, window_slack, n_checkpoints
        self._table = rng.normal(size=(VOCAB_SIZE, DIM)).astype(np.float32)
        self._output = 3 * scaled(rng, VOCAB_SIZE, DIM)
        self._qkv = scaled(rng, (N_HEADS + 2 * N_KV_HEADS) * HEAD_DIM, DIM)
        self._attn_output = scaled(rng, DIM, N_HEADS * HEAD_DIM)
        self._deltas = [random_weights(SHAPE, DIM, rng) for _ in range(2)]
        self._frequencies = layers.rope_frequencies(HEAD_DIM, 10000.0)
        self.evaluated = 0
        self.on_boundary: Callable[[str], None] = lambda name: None

    def make_state(self) -> HybridTinyState:
        cache = KvCache(
            windows=[self._window], n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM, slack=self._window_slack
        )
        delta = DeltaState(shape=SHAPE, n_layers=2, n_checkpoints=self._n_checkpoints)
        return HybridState(cache, delta)

    def forward(self, tokens: Tokens, state: HybridTinyState, *, need_logits: bool) -> Array | None:
        self.on_boundary("before a chunk")
        self.evaluated += len(tokens)
        x = self._table[np.asarray(tokens)]  # (T, D)
        for index, step in enumerate((self._recall, self._attend, self._recall)):
            x = x + step(layers.rms_norm(x, np.ones(DIM, np.float32), EPS), state, index // 2)
            self.on_boundary(f"after layer {index}")
        state.commit(len(state) + len(tokens))
        self.on_boundary("after its commit")
        if not need_logits:
            return None
        logits: Array = layers.rms_norm(x[-1], np.ones(DIM, np.float32), EPS) @ self._output.T
        return logits

    def _recall(self, x: Array, state: HybridTinyState, layer: int) -> Array:
        y, memory = delta_net(x, self._deltas[layer], SHAPE, state.recurrent.read(layer), EPS)
        state.recurrent.write(layer, memory)
        return y

    def _attend(self, x: Array, state: HybridTinyState, layer: int) -> Array:
        position = len(state)
        cos, sin = layers.rope_table(self._frequencies, position, len(x))
        heads = layers.linear(x, self._qkv).reshape(len(x), -1, HEAD_DIM)
        q, k, v = np.split(heads, [N_HEADS, N_HEADS + N_KV_HEADS], axis=1)
        q, k = (layers.apply_rope(part, cos, sin, interleaved=False) for part in (q, k))
        keys, values = state.attention.write(layer, k, v, position)
        own_row = keys.shape[1] - len(x)
        mixed = layers.attention(q, keys, values, own_row, window=self._window)
        return layers.linear(mixed, self._attn_output)


class HybridEngine:
    """The real runner over a HybridModel. After each run, also one that raised, its state is that of a cold run.

    `compares` can be turned off, where the count of tokens is what a test is about.
    """

    def __init__(self, model: HybridModel | None = None, *, n_slots: int | None = None) -> None:
        self.model = HybridModel() if model is None else model
        self.runner = Runner(self.model, KvPrefix, pool=None if n_slots is None else SessionPool(n_slots))
        self.n_evaluated = 0
        self.compares = True

    def run(
        self, prompt_ids: Tokens, *, n_new: int = 1, polls: float = math.inf, chunk_size: int = 5
    ) -> RawDecodeResult:
        """Reply greedily with `n_new` ids, the last of which is not fed; cancelled after `polls` looks at the flag."""
        result = self._run(run_raw_completion, prompt_ids, Flag(polls=polls), n_new, chunk_size)
        self._check_choices(prompt_ids, result.token_ids)
        return result

    def prefill(self, prompt_ids: Tokens, *, chunk_size: int = 5) -> RawDecodeResult:
        """Bring a prompt in and reply nothing."""
        return self._run(run_prefill, prompt_ids, Flag(), 1, chunk_size)

    def _run(
        self,
        run: Callable[..., RawDecodeResult],
        prompt_ids: Tokens,
        cancel: Flag,
        n_new: int,
        chunk_size: int,
    ) -> RawDecodeResult:
        before = self.model.evaluated
        config = CompletionConfig(sampling=GREEDY, max_new_tokens=n_new, chunk_size=chunk_size)
        try:
            result = run(
                self.runner, IDS, prompt_ids, config,
                max_context=4096, cancel=cancel, on_progress=lambda event: None,
            )  # fmt: skip
        finally:
            self.n_evaluated = self.model.evaluated - before
            self.check_state()
        assert self.n_evaluated == result.kv_position - result.reused_prefix_tokens  # A20
        assert result.kv_backed_token_ids == self.runner.record.ids
        return result

    def check_state(self) -> None:
        """The state is the one that a cold run of the recorded ids has."""
        ids, state = self.runner.record.ids, self.runner.state
        assert len(ids) == len(state) == len(state.attention) == len(state.recurrent)
        if not self.compares:
            return
        cold = self.model.make_state()
        if ids:
            self._forward(ids, cold)
        assert dict(state.as_floats()).keys() == dict(cold.as_floats()).keys()
        for (name, found), (_, expected) in zip(state.as_floats(), cold.as_floats(), strict=True):
            assert found.shape == expected.shape
            assert np.allclose(found, expected, rtol=0, atol=TOLERANCE), f"{name} at {len(ids)}"

    def _check_choices(self, prompt_ids: Tokens, reply_ids: Tokens) -> None:
        """Each id is the one that a cold run chooses, or one of two that are as good but for the last digits."""
        cold, ids = self.model.make_state(), list(prompt_ids)
        for token in reply_ids if self.compares else ():
            logits = self._forward(ids, cold)
            assert logits[token] >= logits.max() - TOLERANCE
            ids = [token]

    def _forward(self, ids: Tokens, state: HybridTinyState) -> Array:
        """Run the model beside the engine, uncounted and undisturbed."""
        n_evaluated, on_boundary = self.model.evaluated, self.model.on_boundary
        self.model.on_boundary = lambda name: None
        logits = self.model.forward(ids, state, need_logits=True)
        self.model.evaluated, self.model.on_boundary = n_evaluated, on_boundary
        assert logits is not None
        return logits
