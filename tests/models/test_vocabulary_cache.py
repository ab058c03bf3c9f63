"""Vocabularies kept on disk: equal to what the file gives in every field, and made anew where in doubt."""

import warnings
from dataclasses import fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from gguf_file import write_gguf
from tiny_model import tiny_tensors
from vocabularies import CONTROL, NORMAL, UNUSED, USER_DEFINED, Metadata, byte_level, sentencepiece

from turbospark_chat.errors import ModelFileError, ModelWarning
from turbospark_chat.models import vocabulary_cache
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.tokenizer import Tokenizer
from turbospark_chat.models.vocabulary import Vocabulary, read_vocabulary
from turbospark_chat.models.vocabulary_cache import VocabularyCache

SPECIAL = {"<s>": CONTROL, "</s>": CONTROL, "<mine>": USER_DEFINED, "<none>": UNUSED, "é½": NORMAL}
VOCABULARIES = {
    "byte_level": byte_level(SPECIAL, ["Ġthe", "ing"], bos_token_id=0, eos_token_id=1, eot_token_id=1),
    "sentencepiece": sentencepiece(SPECIAL, ["▁the", "▁", "th"], bos_token_id=0, add_bos_token=True),
}


def write(folder: Path, metadata: Metadata, **more: object) -> Path:
    name = f"{len(list(folder.iterdir()))}.gguf"
    return write_gguf(folder / name, metadata | more, {"x.weight": tiny_tensors(8)["output_norm.weight"]})


def read(path: Path, cache: VocabularyCache) -> Vocabulary:
    with GgufFile.open(path) as file:
        return cache.read(file)


def read_directly(path: Path) -> Vocabulary:
    with GgufFile.open(path) as file:
        return read_vocabulary(file.metadata, source=path)


def values(vocabulary: Vocabulary) -> dict[str, Any]:
    found = {field.name: getattr(vocabulary, field.name) for field in fields(Vocabulary)}
    # These are sequences, of whatever kind.
    return found | {name: [*found[name]] for name in ("scores", "merges")}


def refuse_to_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> Vocabulary:
        pytest.fail("gathered from the metadata")

    monkeypatch.setattr(vocabulary_cache, "read_vocabulary", refuse)


@pytest.mark.parametrize("metadata", VOCABULARIES.values(), ids=VOCABULARIES)
def test_the_second_reading_gives_the_same_without_gathering_it(
    metadata: Metadata, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, cache = write(tmp_path, metadata), VocabularyCache(tmp_path / "vocabularies")
    expected, first = values(read_directly(path)), read(path, cache)
    refuse_to_gather(monkeypatch)
    second = read(path, VocabularyCache(tmp_path / "vocabularies"))
    assert values(first) == values(second) == expected
    for name in ("normal_ids", "user_defined_ids", "control_ids", "byte_ids"):
        assert isinstance(getattr(second, name), MappingProxyType)
    text = "The thing: the <mine> \N{SNOWMAN} é½ <s>"
    assert Tokenizer(second).encode(text, parse_special=True) == Tokenizer(first).encode(
        text, parse_special=True
    )


@pytest.mark.weights
def test_the_default_models_vocabulary_comes_back_whole(smollm2_path: Path, tmp_path: Path) -> None:
    cache = VocabularyCache(tmp_path)
    assert values(read(smollm2_path, cache)) == values(read(smollm2_path, cache))


def test_each_header_has_a_vocabulary_of_its_own(tmp_path: Path) -> None:
    cache = VocabularyCache(tmp_path / "vocabularies")
    paths = [
        write(tmp_path, metadata, **more)
        for metadata in VOCABULARIES.values()
        for more in ({}, {"tokenizer.ggml.eos_token_id": 4})
    ]
    for path in paths * 2:
        assert values(read(path, cache)) == values(read_directly(path))
    assert len(list((tmp_path / "vocabularies").iterdir())) == len(paths)


def test_files_that_differ_in_their_weights_alone_share_one(tmp_path: Path) -> None:
    cache = VocabularyCache(tmp_path / "vocabularies")
    path = write(tmp_path, VOCABULARIES["byte_level"])
    other = tmp_path / "other.gguf"
    other.write_bytes(path.read_bytes()[:-4] + b"\0\0\x80?")
    assert values(read(path, cache)) == values(read(other, cache))
    assert len(list((tmp_path / "vocabularies").iterdir())) == 1


def test_a_damaged_one_is_gathered_and_stored_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write(tmp_path, VOCABULARIES["byte_level"]), VocabularyCache(tmp_path / "vocabularies")
    read(path, cache)
    (stored,) = (tmp_path / "vocabularies").iterdir()
    stored.write_bytes(stored.read_bytes()[:-1])
    assert values(read(path, cache)) == values(read_directly(path))
    refuse_to_gather(monkeypatch)
    read(path, cache)


def test_another_python_reads_none_of_this_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write(tmp_path, VOCABULARIES["byte_level"]), VocabularyCache(tmp_path / "vocabularies")
    read(path, cache)
    monkeypatch.setattr(vocabulary_cache, "_PYTHON", "(4, 0) 7")
    read(path, cache)
    assert len(list((tmp_path / "vocabularies").iterdir())) == 2


def test_a_folder_that_cannot_be_made_is_done_without(tmp_path: Path) -> None:
    path = write(tmp_path, VOCABULARIES["byte_level"])
    assert values(read(path, VocabularyCache(path / "below a file"))) == values(read_directly(path))


def test_a_vocabulary_with_a_warning_is_not_kept_so_that_each_run_says_so(tmp_path: Path) -> None:
    path = write(tmp_path, VOCABULARIES["byte_level"], **{"tokenizer.ggml.pre": "nobody-knows"})
    for _ in range(2):
        with pytest.warns(ModelWarning) as said:
            read(path, VocabularyCache(tmp_path / "vocabularies"))
        assert len(said) == 1
        with pytest.warns(ModelWarning) as said_directly:
            read_directly(path)
        assert str(said[0].message) == str(said_directly[0].message)
    assert not (tmp_path / "vocabularies").exists()


def test_a_warning_made_an_error_is_raised_as_such(tmp_path: Path) -> None:
    path = write(tmp_path, VOCABULARIES["byte_level"], **{"tokenizer.ggml.pre": "nobody-knows"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ModelWarning):
            read(path, VocabularyCache(tmp_path / "vocabularies"))


def test_a_damaged_model_file_is_refused_as_without_a_cache(tmp_path: Path) -> None:
    path = write(tmp_path, {"general.architecture": "llama"})
    with pytest.raises(ModelFileError, match="lacks `tokenizer"):
        read(path, VocabularyCache(tmp_path / "vocabularies"))
    assert not (tmp_path / "vocabularies").exists()
