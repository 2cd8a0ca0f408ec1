# SPDX-License-Identifier: Apache-2.0
"""Every failure of the YAML parser is one error with line and column."""

import pytest

from vgpuctl.model.yaml_text import TOO_DEEP_PROBLEM, YamlError, compose_yaml


def test_an_empty_text_has_no_node_and_another_one_has_lines():
    assert compose_yaml("") is None
    assert compose_yaml("a:\n  b: 1\n").value[0][1].start_mark.line == 1


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("a: [1", 1, 6, "it is not YAML"),
        ("a: 1\nb: \0", 2, 4, "a character that YAML does not allow"),
        ("- " * 3000, 1, 1, TOO_DEEP_PROBLEM),
        ('a: "\\UFFFFFFFF"', 1, 1, "it is not YAML"),
    ],
)
def test_invalid_yaml_has_a_line(text, line, column, problem):
    with pytest.raises(YamlError) as caught:
        compose_yaml(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert problem in caught.value.problem
