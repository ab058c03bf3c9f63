"""How many threads numpy's BLAS gets."""

import pytest

from turbospark_chat.blas_threads import VARIABLES, default_threads, set_blas_threads
from turbospark_chat.errors import SettingError


@pytest.mark.parametrize(
    ("asked", "before", "after"),
    [
        (None, {}, dict.fromkeys(VARIABLES, str(default_threads()))),
        ("3", {}, dict.fromkeys(VARIABLES, "3")),
        (None, {"OMP_NUM_THREADS": "5"}, {"OMP_NUM_THREADS": "5"}),
        ("2", {"OMP_NUM_THREADS": "5"}, dict.fromkeys(VARIABLES, "2")),
    ],
    ids=["default", "asked", "the environment's own", "asked beats the environment"],
)
def test_threads_are_set(asked: str | None, before: dict[str, str], after: dict[str, str]) -> None:
    environment = dict(before)
    set_blas_threads(asked, environment)
    assert environment == after


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "", "9" * 5000])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="threads is"):
        set_blas_threads(text, {})


def test_one_core_is_left_to_others() -> None:
    assert default_threads() >= 1
