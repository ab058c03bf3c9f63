"""A tiny random model as a GGUF file, a llama if nothing else: byte tokens, a ChatML template. Loads in milliseconds.

Numpy computes it, since kernels take no heads of 8 numbers; with COMPILED_SIZES they do.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from gguf_file import Tensor, write_gguf
from vocabularies import CONTROL, byte_level

from turbospark_chat.models.loader import Arithmetic, LoadedModel, load_model
from turbospark_chat.models.retention import WINDOW_SLACK

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ("<|im_start|>", "<|im_end|>")
SIZES = {"dim": 32, "ffn": 48, "heads": 4, "kv_heads": 2, "head_dim": 8, "layers": 2}
COMPILED_SIZES = {"dim": 64, "ffn": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "layers": 2}
COMPILED_TOLERANCE = 5e-3  # between logits of two ways to cut a prompt: the cache rounds to 16 bits
Sizes = Mapping[str, int]


def tiny_metadata(
    *, context_length: int = 512, sizes: Sizes = SIZES, architecture: str = "llama", **changes: object
) -> dict[str, object]:
    """Metadata of a tiny model; `changes` replace or, with None, remove keys (`.` is written `__`)."""
    numbers: dict[str, object] = {
        "block_count": sizes["layers"],
        "context_length": context_length,
        "embedding_length": sizes["dim"],
        "feed_forward_length": sizes["ffn"],
        "attention.head_count": sizes["heads"],
        "attention.head_count_kv": sizes["kv_heads"],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }
    if architecture == "gemma3":
        numbers |= {
            "attention.sliding_window": 24,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base": 1e6,
        }
    metadata: dict[str, object] = {
        "general.architecture": architecture,
        "general.name": "tiny",
        **{f"{architecture}.{key}": value for key, value in numbers.items()},
        "tokenizer.chat_template": CHATML,
        **byte_level(dict.fromkeys(CONTROLS, CONTROL), eos_token_id=1, bos_token_id=0),
    }
    for key, value in changes.items():
        metadata[key.replace("__", ".")] = value
    return {key: value for key, value in metadata.items() if value is not None}


def tiny_tensors(
    n_vocab: int,
    *,
    seed: int = 0,
    tied: bool = True,
    kind: str = "F32",
    sizes: Sizes = SIZES,
    architecture: str = "llama",
) -> dict[str, Tensor]:
    """Random weights, large enough that the next token depends on all that came before. `kind` is the matrices'."""
    rng = np.random.default_rng(seed)
    dim, q_dim = sizes["dim"], sizes["heads"] * sizes["head_dim"]
    kv_dim = sizes["kv_heads"] * sizes["head_dim"]
    shapes = {"token_embd.weight": (n_vocab, dim), "output_norm.weight": (dim,)}
    if not tied:
        shapes["output.weight"] = (n_vocab, dim)
    for index in range(sizes["layers"]):
        block = {
            "attn_norm": (dim,), "attn_q": (q_dim, dim), "attn_k": (kv_dim, dim), "attn_v": (kv_dim, dim),
            "attn_output": (dim, q_dim), "ffn_norm": (dim,), "ffn_gate": (sizes["ffn"], dim),
            "ffn_up": (sizes["ffn"], dim), "ffn_down": (dim, sizes["ffn"]),
        }  # fmt: skip
        if architecture == "gemma3":
            block |= dict.fromkeys(["attn_q_norm", "attn_k_norm"], (sizes["head_dim"],))
            block |= dict.fromkeys(["post_attention_norm", "post_ffw_norm"], (dim,))
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in block.items()}
    return {
        name: (
            kind if len(shape) > 1 else "F32",
            shape,
            rng.normal(0.0 if len(shape) > 1 else 1.0, 0.3, shape).astype(np.float32),
        )
        for name, shape in shapes.items()
    }


def write_tiny_model(
    path: Path,
    *,
    seed: int = 0,
    kind: str = "F32",
    sizes: Sizes = SIZES,
    architecture: str = "llama",
    **changes: object,
) -> Path:
    """Write the file and return its path."""
    metadata = tiny_metadata(sizes=sizes, architecture=architecture, **changes)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tensors = tiny_tensors(len(tokens), seed=seed, kind=kind, sizes=sizes, architecture=architecture)
    write_gguf(path, metadata, tensors)
    return path


def load_tiny_model(
    folder: Path,
    arithmetic: Arithmetic | None = None,
    *,
    window_slack: int = WINDOW_SLACK,
    **changes: object,
) -> LoadedModel:
    """Write and load one: on 4-bit weights where kernels are given, and they do compute it."""
    path = folder / "tiny.gguf"
    if arithmetic is None or arithmetic.library is None:
        write_tiny_model(path, **changes)
    else:
        write_tiny_model(path, kind="Q4_1", sizes=COMPILED_SIZES, **changes)
    return load_model(
        path, available_bytes=10**9, arithmetic=arithmetic or Arithmetic(), window_slack=window_slack
    )
