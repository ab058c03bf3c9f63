"""Reading the kernel's small files without trust."""

import pytest

from turbospark_chat.engine.kernel_file import read_int, read_table, read_text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("42\n", 42),
        ("-274000\n", -274000),
        ("9223372036854771712\n", 9223372036854771712),
        ("max\n", None),
        ("", None),
        ("\n", None),
        ("4 2\n", None),
        ("4_2\n", None),
        ("4.2\n", None),
        ("0x2a\n", None),
        ("9" * 5000, None),
    ],
    ids=lambda value: str(value)[:20],
)
def test_one_integer(tmp_path, text, value):
    path = tmp_path / "file"
    path.write_text(text)
    assert read_int(path) == value


def test_rows_of_both_table_forms(tmp_path):
    path = tmp_path / "file"
    path.write_text(
        "MemTotal:       24683652 kB\nActive(anon):      12 kB\ninactive_file 4624384\n"
        "workingset_refault_file 0\nbad\nworse x\nnegative: -3 kB\nhuge " + "9" * 30 + "\n\n"
    )
    assert read_table(path) == {
        "MemTotal": 24683652,
        "Active(anon)": 12,
        "inactive_file": 4624384,
        "workingset_refault_file": 0,
    }


def test_what_cannot_be_read_is_empty(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\x00\xfe")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "nul\0name", tmp_path / "binary" / "below"):
        assert read_text(path) == ""
        assert read_int(path) is None
        assert read_table(path) == {}
    assert read_int(tmp_path / "binary") is None
