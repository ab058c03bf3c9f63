"""Runs compiled kernels on arrays: small programs whose activations are the rows of float32 tables.

    compute(lambda builder, x, y: builder.add(x, y), x, y, sizes=[40, 1])

feeds token t as row t of x and y (S, D), forty at once and then one, and returns the outputs (S, D').
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.models import layers
from turbospark_chat.models.instruction import Buffer
from turbospark_chat.models.kernel_library import KernelLibrary, LoadedKernels
from turbospark_chat.models.kernels.layout import GROUP
from turbospark_chat.models.layers import Array
from turbospark_chat.models.packed_kv_cache import PackedKvCache
from turbospark_chat.models.program_builder import ProgramBuilder
from turbospark_chat.models.program_runner import KERNELS, ProgramRunner
from turbospark_chat.models.quants import FORMATS, GgmlType, dequantize
from turbospark_chat.models.weight import Weight
from turbospark_chat.settings import Locations

THETA = 10000.0
Build = Callable[
    ..., Buffer
]  # given a builder and the activations, writes a program down and returns its output


def f32_weight(matrix: Array) -> Weight:
    """Return a matrix as a file would hold it in float32."""
    rows, columns = matrix.shape
    data = np.ascontiguousarray(matrix, np.float32).reshape(-1).view(np.uint8)
    return Weight(data, GgmlType.F32, (rows, columns))


def matrix_of(weight: Weight) -> Array:
    """Return the numbers a weight stands for, as `quants` decodes them."""
    return dequantize(weight.data, weight.ggml_type, weight.shape)


def row_step(ggml_type: GgmlType) -> int:
    """Return what the length of a row of this format is a multiple of."""
    return max(FORMATS[ggml_type].length, 32)


@cache
def _load(names: tuple[str, ...], folder: Path) -> LoadedKernels:
    return KernelLibrary(folder).load(names)


def forget_kernels() -> None:
    """Let kernels leave the process, but for those that somebody still holds."""
    _load.cache_clear()


def load_kernels(names: Iterable[str]) -> LoadedKernels:
    """Load kernels from the folder every test shares, where each is compiled once a machine."""
    return _load(tuple(dict.fromkeys((*KERNELS, *names))), Locations.of_user().kernels)


class KernelProgram:
    """A program over rows of inputs (S, D), D a multiple of 32, and the cache that it attends to."""

    def __init__(
        self,
        build: Build,
        *inputs: Array,
        n_threads: int = 1,
        n_heads: int = 1,
        n_kv_heads: int = 1,
        head_dim: int = 16,
        rope_dim: int | None = None,
        windows: Sequence[int | None] = (None,),
        slack: int = 0,
        thetas: Sequence[float] = (THETA,),
    ) -> None:
        """Build it. `thetas`: of each RoPE table."""
        rope_dim = head_dim if rope_dim is None else rope_dim
        builder = ProgramBuilder(
            n_heads=n_heads, n_kv_heads=n_kv_heads, head_dim=head_dim, rope_dim=rope_dim, windows=windows
        )
        activations = [builder.embed(f32_weight(rows)) for rows in inputs]
        output = build(builder, *activations)
        code = load_kernels(builder.kernels)
        self.program = builder.finish(code.address_of, output)
        n_pairs = rope_dim // 2 * len(thetas)
        self.runner = ProgramRunner(self.program, code.address_of, n_threads=n_threads, n_pairs=n_pairs)
        self.cache = PackedKvCache(windows=windows, n_kv_heads=n_kv_heads, head_dim=head_dim, slack=slack)
        self._output = output
        self._frequencies = [layers.rope_frequencies(rope_dim, theta) for theta in thetas]

    def run(self, tokens: Sequence[int], position: int = 0) -> Array:
        """Feed tokens that stand from `position` on; return the output (T, n_features), or (1, n_features)."""
        self.cache.reserve(position + len(tokens))
        self.runner.attach(self.cache)
        tables = [layers.rope_table(frequencies, position, len(tokens)) for frequencies in self._frequencies]
        self.runner.run(tokens, position, tables)
        self.cache.commit(position + len(tokens))
        n_features = self._output.n_features
        if self._output.is_single or len(tokens) == 1:
            return self.program.output[:n_features].reshape(1, -1).copy()
        stride = -(-len(tokens) // GROUP) * GROUP
        return (
            self.program.output[: n_features * stride].reshape(n_features, stride)[:, : len(tokens)].T.copy()
        )

    def run_all(self, sizes: Sequence[int], *, position: int = 0) -> Array:
        """Feed rows 0, 1, 2 ... in passes of these sizes, from `position` on, and return all outputs."""
        starts = np.cumsum([0, *sizes[:-1]])
        passes = [
            self.run(range(start, start + size), position + start)
            for start, size in zip(starts.tolist(), sizes, strict=True)
        ]
        return np.concatenate(passes)


def compute(
    build: Build, *inputs: Array, sizes: Sequence[int] | None = None, position: int = 0, **options: Any
) -> Array:
    """Build a program and feed it all rows of the inputs; see `KernelProgram` for the options."""
    program = KernelProgram(build, *inputs, **options)
    return program.run_all([len(inputs[0])] if sizes is None else sizes, position=position)


def random_rows(n_rows: int, n_columns: int, *, seed: int = 0, scale: float = 1.0) -> Array:
    """Return normal numbers."""
    return np.random.default_rng(seed).normal(0, scale, (n_rows, n_columns)).astype(np.float32)


def error(found: NDArray[np.floating], expected: NDArray[np.floating], scale: object) -> float:
    """Return the largest difference, each as a share of its scale; NaN where one of the two is not a number."""
    share = np.abs(found.astype(np.float64) - expected) / np.maximum(scale, np.finfo(np.float32).tiny)
    return float(np.max(share))


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process of its own, which can import what tests can."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
