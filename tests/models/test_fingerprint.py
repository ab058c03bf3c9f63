"""What a model's states are bound to: everything they depend on, and a large file is read only once for it."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from sessions import CancelAfter
from tiny_model import COMPILED_SIZES, write_tiny_model
from vocabularies import byte_level

from turbospark_chat.errors import StateFileError
from turbospark_chat.models import fingerprint
from turbospark_chat.models.fingerprint import FileDigest, ModelFingerprints
from turbospark_chat.models.loader import Arithmetic, load_model


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "digests"


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("the file is read again")

    monkeypatch.setattr(fingerprint, "_digest_of_file", fail)


def test_a_file_is_read_once(path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = FileDigest(path, cache).read()
    assert digest == hashlib.sha256(b"weights").hexdigest()
    forbid_reading(monkeypatch)
    assert FileDigest(path, cache).read() == digest


@pytest.mark.parametrize("change", ["size", "time", "replaced"])
def test_a_file_that_is_another_is_read_again(path: Path, cache: Path, change: str) -> None:
    first, status = FileDigest(path, cache).read(), path.stat()
    if change == "size":
        path.write_bytes(b"others!!")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        path.write_bytes(b"WEIGHTS")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))
    else:  # by one that claims to be as old
        other = path.with_name("other")
        other.write_bytes(b"WEIGHTS")
        os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
        other.replace(path)
    second = FileDigest(path, cache).read()
    assert second == hashlib.sha256(path.read_bytes()).hexdigest() != first
    assert len(list(cache.iterdir())) == 1


def test_files_of_one_name_in_two_folders_are_told_apart_and_both_are_known(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / name / "model.gguf" for name in "ab"]
    for path in paths:
        path.parent.mkdir()
        path.write_bytes(path.parent.name.encode())
    digests = [FileDigest(path, cache).read() for path in paths]
    assert len(set(digests)) == 2
    forbid_reading(monkeypatch)
    assert [FileDigest(path, cache).read() for path in paths] == digests


@pytest.mark.parametrize("is_known", [False, True])
def test_a_file_that_was_replaced_since_it_was_loaded_has_no_digest(
    path: Path, cache: Path, is_known: bool
) -> None:
    if is_known:
        FileDigest(path, cache).read()
    digest = FileDigest(path, cache)
    path.write_bytes(b"replaced")
    with pytest.raises(StateFileError, match="not the one that was loaded"):
        digest.read()


def test_reading_that_is_stopped_gives_no_digest_and_the_next_one_does(
    path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_READ_BYTES", 2)
    digest = FileDigest(path, cache)
    for n_looks in range(4):
        with pytest.raises(StateFileError, match="reading it was stopped"):
            digest.read(cancel=CancelAfter(n_looks))
        assert not cache.exists()
    assert digest.read(cancel=CancelAfter(4)) == hashlib.sha256(b"weights").hexdigest()


def test_a_file_that_is_missing_has_no_digest(path: Path, cache: Path) -> None:
    path.unlink()
    with pytest.raises(StateFileError, match="not the one that was loaded"):
        FileDigest(path, cache).read()


@pytest.mark.parametrize("damage", [b"", b"x", b"\xff" * 200])
def test_a_damaged_cache_is_as_good_as_none(path: Path, cache: Path, damage: bytes) -> None:
    digest = FileDigest(path, cache).read()
    (stored,) = cache.iterdir()
    stored.write_bytes(damage)
    assert FileDigest(path, cache).read() == digest


def test_a_cache_that_cannot_be_written_costs_only_time(path: Path, tmp_path: Path) -> None:
    (tmp_path / "digests").write_bytes(b"")  # a file where the folder should be
    assert FileDigest(path, tmp_path / "digests").read() == hashlib.sha256(b"weights").hexdigest()


def parts_of(path: Path, cache: Path, arithmetic: Arithmetic | None = None) -> Mapping[str, str]:
    digest = FileDigest(path, cache)
    loaded = load_model(path, available_bytes=10**9, arithmetic=arithmetic or Arithmetic())
    return ModelFingerprints(
        digest,
        config=loaded.config,
        vocabulary=loaded.tokenizer.vocabulary,
        empty_state=loaded.model.make_state(),
    ).read()


CHANGES = {
    "nothing": ({}, set()),
    "weights": ({"seed": 1}, {"model file"}),
    "rope theta": ({"llama__rope__freq_base": 5000.0}, {"model file", "rope theta"}),
    "norm": ({"llama__attention__layer_norm_rms_epsilon": 1e-6}, {"model file", "norm eps"}),
    "layers": ({"sizes": {**COMPILED_SIZES, "layers": 1}}, {"model file", "n layers", "windows"}),
    "another vocabulary": (
        byte_level({"<|im_start|>": 3, "<|im_end|>": 3, "<|pad|>": 3}, eos_token_id=1, bos_token_id=0),
        {"model file", "tokenizer"},
    ),
    "bos": ({"tokenizer__ggml__add_bos_token": True}, {"model file", "tokenizer"}),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "expected"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_the_model_changes_what_depends_on_it_and_nothing_else(
    changes: dict[str, object], expected: set[str], tmp_path: Path, cache: Path
) -> None:  # 20: n_layer, RoPE params, tokenizer hash, model content hash
    def write(name: str, changes: dict[str, object]) -> Path:
        arguments = {key.replace(".", "__"): value for key, value in changes.items()}
        return write_tiny_model(tmp_path / name, **{"sizes": COMPILED_SIZES} | arguments)  # type: ignore[arg-type]

    before = parts_of(write("one.gguf", {}), cache)
    after = parts_of(write("two.gguf", changes), cache)
    assert {name for name in before if before[name] != after[name]} == expected
    assert before.keys() == after.keys()


def test_the_cache_of_kernels_is_not_numpys(
    tmp_path: Path, cache: Path, compiled: Arithmetic
) -> None:  # 20: dtype
    path = write_tiny_model(tmp_path / "tiny.gguf", kind="Q4_1", sizes=COMPILED_SIZES)
    numpy, kernels = parts_of(path, cache), parts_of(path, cache, compiled)
    assert {name for name in numpy if numpy[name] != kernels[name]} == {"cache"}
    assert "int16" not in numpy["cache"] and "i2" in kernels["cache"]
