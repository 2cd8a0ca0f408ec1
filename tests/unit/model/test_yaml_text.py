# SPDX-License-Identifier: Apache-2.0
"""Whatever YAML's parser stumbles over is one error with a place."""

import pytest

from vgpuctl.model.yaml_text import DEEP, NotYaml, compose


def test_an_empty_text_has_no_node_and_another_one_has_lines():
    assert compose("") is None
    assert compose("a:\n  b: 1\n").value[0][1].start_mark.line == 1


@pytest.mark.parametrize(
    ("text", "line", "column", "problem"),
    [
        ("a: [1", 1, 6, "it is not YAML"),
        ("a: 1\nb: \0", 2, 4, "a character that YAML does not allow"),
        ("- " * 3000, 1, 1, DEEP),
        ('a: "\\UFFFFFFFF"', 1, 1, "it is not YAML"),
    ],
)
def test_what_is_no_yaml_has_a_place(text, line, column, problem):
    with pytest.raises(NotYaml) as caught:
        compose(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert problem in caught.value.problem
