# SPDX-License-Identifier: Apache-2.0
"""Every failure of the YAML parser is one error with line and column.

JSON from other programs is parsed, or unknown.
"""

import pytest

from vgpuctl.model.json_yaml import MAX_DEPTH, MAX_VALUES, TOO_DEEP_PROBLEM, YamlError, compose_yaml, parse_json


def test_an_empty_text_has_no_node_and_another_one_has_lines():
    assert compose_yaml("") is None
    assert compose_yaml("a:\n  b: 1\n").value[0][1].start_mark.line == 1


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("a: [1", 1, 6, "it is not YAML"),
        ("a: 1\nb: \0", 2, 4, "a character that YAML does not allow"),
        ("- " * 3000, 1, 101, TOO_DEEP_PROBLEM),
        ('a: "\\UFFFFFFFF"', 1, 1, "it is not YAML"),
    ],
)
def test_invalid_yaml_has_a_line(text, line, column, problem):
    with pytest.raises(YamlError) as caught:
        compose_yaml(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert problem in caught.value.problem


def test_levels_and_values_are_limited_by_number():
    assert compose_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
    with pytest.raises(YamlError, match=f"at most {MAX_DEPTH} levels are allowed, and this is level {MAX_DEPTH + 1}"):
        compose_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1))
    with pytest.raises(YamlError, match=f"more than {MAX_VALUES} keys and values") as caught:
        compose_yaml("- x\n" * (MAX_VALUES + 1))
    assert caught.value.line == MAX_VALUES


def test_a_double_anchor_is_in_no_warning(recwarn):
    compose_yaml("a: &hunter2 1\nb: &hunter2 2\n")
    assert not [entry for entry in recwarn if "hunter2" in str(entry.message)]


def test_valid_json():
    assert parse_json(b'{"a": [1, "x"]}') == {"a": [1, "x"]}


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "9" * 5000, b"\xff"])
def test_invalid_json_is_none(text):
    assert parse_json(text) is None
