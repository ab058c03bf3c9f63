"""Sampling settings: ranges, freezing, the table and its parser."""

import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

from turbospark_chat.engine.sampling_config import SETTINGS, SamplingConfig
from turbospark_chat.errors import SettingError

REFUSED = [
    ("temperature", -1, "0 to 100"),  # case 14a
    ("temperature", math.nan, "0 to 100"),  # case 14a
    ("temperature", math.inf, "0 to 100"),
    ("temperature", True, "0 to 100"),
    ("temperature", "hot", "0 to 100"),
    ("temperature", None, "0 to 100"),
    ("top_k", -2, "-1 or more"),
    ("top_k", 1.5, "-1 or more"),
    ("top_p", -0.1, "0 to 1"),  # case D2
    ("top_p", 1.1, "0 to 1"),  # case D2
    ("min_p", 1.1, "0 to 1"),
    ("repetition_penalty", 0, "0.01 to 100"),  # case D6
    ("repetition_penalty", -1.5, "0.01 to 100"),  # case D6
    ("repetition_window", -2, "-1 or more"),
    ("presence_penalty", -2.1, "-2 to 2"),
    ("frequency_penalty", math.nan, "-2 to 2"),
    ("logit_bias", {2: 101}, "-100 to 100"),
    ("logit_bias", {2: math.nan}, "-100 to 100"),
    ("logit_bias", {2: "much"}, "-100 to 100"),
    ("logit_bias", {"two": 1}, "-100 to 100"),
    ("logit_bias", {-1: 1}, "-100 to 100"),
    ("logit_bias", {2.5: 1}, "-100 to 100"),
    ("logit_bias", {"": 1}, "-100 to 100"),
    ("logit_bias", [2], "-100 to 100"),
    ("seed", -1, "0 or more or none"),
    ("seed", 1.0, "0 or more or none"),
]


@pytest.mark.parametrize(("name", "value", "range_text"), REFUSED)
def test_value_outside_its_range_is_refused_with_field_value_and_range(name, value, range_text):
    with pytest.raises(ValueError) as caught:
        SamplingConfig(**{name: value})
    assert isinstance(caught.value, SettingError)
    message = str(caught.value)
    assert message.startswith(f"{name} is ") and message.endswith(range_text) and "\n" not in message
    assert repr(value) in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (row.name, end)
        for row in SETTINGS.values()
        if row.kind is not dict
        for end in (row.low, row.high)
        if end is not None
    ],
)
def test_both_ends_of_a_range_are_allowed(name, value):
    assert getattr(SamplingConfig(**{name: value}), name) == value


def test_values_take_the_kind_of_their_field():
    config = SamplingConfig(temperature=1, top_p=np.float32(0.5), seed=np.int64(3))
    assert [type(value) for value in (config.temperature, config.top_p, config.seed)] == [float, float, int]


def test_config_is_frozen_and_keeps_no_tie_to_the_callers_mapping():
    biases = {2: -100.0}
    config = SamplingConfig(logit_bias=biases)
    biases[3] = 1.0
    assert config.logit_bias == {2: -100.0}
    with pytest.raises(FrozenInstanceError):
        config.temperature = 0.0
    with pytest.raises(TypeError):
        config.logit_bias[3] = 1.0


def test_equal_configs_hash_alike_and_replace_checks_again():
    assert hash(SamplingConfig(logit_bias={2: 1})) == hash(SamplingConfig(logit_bias={"2": 1.0}))
    assert replace(SamplingConfig(), seed=0) == SamplingConfig(seed=0) != SamplingConfig()
    with pytest.raises(SettingError):
        replace(SamplingConfig(), top_p=2)


def test_string_and_integer_bias_keys_mean_the_same():  # case D13
    assert SamplingConfig(logit_bias={"2": -100}) == SamplingConfig(logit_bias={2: -100})


def test_table_lists_every_field_with_its_default_and_a_help_sentence():
    config = SamplingConfig()
    assert list(SETTINGS) == [field.name for field in fields(SamplingConfig)]
    for name, row in SETTINGS.items():
        assert (row.name, row.default) == (name, getattr(config, name))
        assert row.help.endswith(".") and "\n" not in row.help


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", " 0.5 ", 0.5),
        ("temperature", "0", 0.0),
        ("top_k", "-1", -1),
        ("seed", "0", 0),
        ("seed", "None", None),
        ("logit_bias", '{"2": -100}', {2: -100.0}),  # case D13
        ("logit_bias", "{2: -100}", {2: -100.0}),  # case D13
        ("logit_bias", "2:-100, 15:5.5", {2: -100.0, 15: 5.5}),
        ("logit_bias", "", {}),
    ],
)
def test_text_is_parsed_to_the_value_it_spells(name, text, value):
    parsed = SETTINGS[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(getattr(SamplingConfig(**{name: value}), name))


@pytest.mark.parametrize("row", SETTINGS.values(), ids=lambda row: row.name)
def test_every_default_survives_being_written_and_parsed(row):
    text = ",".join(f"{k}:{v}" for k, v in row.default.items()) if row.kind is dict else str(row.default)
    assert row.parse(text) == row.default


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("temperature", "nan"),
        ("temperature", "-1"),
        ("temperature", "1e400"),
        ("temperature", "none"),
        ("temperature", "two\nlines"),
        ("top_k", "40.5"),
        ("top_k", ""),
        ("seed", "-1"),
        ("logit_bias", "2"),
        ("logit_bias", "2:much"),
        ("logit_bias", "2:nan"),
        ("logit_bias", ":1"),
        pytest.param("logit_bias", "9" * 5_000 + ":1", id="logit_bias-more-digits-than-int-reads"),
    ],
)
def test_text_that_spells_no_allowed_value_is_refused_in_one_line(name, text):
    with pytest.raises(SettingError, match=f"^{name} is [^\n]*: give [^\n]*$"):
        SETTINGS[name].parse(text)


def test_table_is_readable_without_numpy():  # case T77
    code = "import sys, turbospark_chat.engine.sampling_config; sys.exit('numpy' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
