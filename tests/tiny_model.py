"""A tiny random llama as a GGUF file: byte tokens, a ChatML template, float32 weights. Loads in milliseconds."""

from pathlib import Path

import numpy as np
from gguf_file import Tensor, write_gguf
from vocabularies import CONTROL, byte_level

from turbospark_chat.models.loader import LoadedModel, load_model

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CONTROLS = ("<|im_start|>", "<|im_end|>")
SIZES = {"dim": 32, "ffn": 48, "heads": 4, "kv_heads": 2, "head_dim": 8, "layers": 2}


def tiny_metadata(*, context_length: int = 512, **changes: object) -> dict[str, object]:
    """Metadata of a tiny llama; `changes` replace or, with None, remove keys (`.` is written `__`)."""
    metadata: dict[str, object] = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": SIZES["layers"],
        "llama.context_length": context_length,
        "llama.embedding_length": SIZES["dim"],
        "llama.feed_forward_length": SIZES["ffn"],
        "llama.attention.head_count": SIZES["heads"],
        "llama.attention.head_count_kv": SIZES["kv_heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.chat_template": CHATML,
        **byte_level(dict.fromkeys(CONTROLS, CONTROL), eos_token_id=1, bos_token_id=0),
    }
    for key, value in changes.items():
        metadata[key.replace("__", ".")] = value
    return {key: value for key, value in metadata.items() if value is not None}


def tiny_tensors(n_vocab: int, *, seed: int = 0, tied: bool = True) -> dict[str, Tensor]:
    """Random weights, large enough that the next token depends on all that came before."""
    rng = np.random.default_rng(seed)
    dim, q_dim = SIZES["dim"], SIZES["heads"] * SIZES["head_dim"]
    kv_dim = SIZES["kv_heads"] * SIZES["head_dim"]
    shapes = {"token_embd.weight": (n_vocab, dim), "output_norm.weight": (dim,)}
    if not tied:
        shapes["output.weight"] = (n_vocab, dim)
    for index in range(SIZES["layers"]):
        block = {
            "attn_norm": (dim,), "attn_q": (q_dim, dim), "attn_k": (kv_dim, dim), "attn_v": (kv_dim, dim),
            "attn_output": (dim, q_dim), "ffn_norm": (dim,), "ffn_gate": (SIZES["ffn"], dim),
            "ffn_up": (SIZES["ffn"], dim), "ffn_down": (dim, SIZES["ffn"]),
        }  # fmt: skip
        shapes |= {f"blk.{index}.{name}.weight": shape for name, shape in block.items()}
    return {
        name: ("F32", shape, rng.normal(0.0 if len(shape) > 1 else 1.0, 0.3, shape).astype(np.float32))
        for name, shape in shapes.items()
    }


def write_tiny_model(path: Path, *, seed: int = 0, **changes: object) -> Path:
    """Write the file and return its path."""
    metadata = tiny_metadata(**changes)
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    write_gguf(path, metadata, tiny_tensors(len(tokens), seed=seed))
    return path


def load_tiny_model(folder: Path) -> LoadedModel:
    """Write and load it."""
    return load_model(write_tiny_model(folder / "tiny.gguf"), available_bytes=10**9)
