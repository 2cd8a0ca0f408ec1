# SPDX-License-Identifier: Apache-2.0
"""Strict reading: each mistake with its file and line."""

from __future__ import annotations

import pytest

from vgpuctl.errors import InvalidInput
from vgpuctl.sim.scenario_reader import YamlValue, read_scenario


def top(text: str) -> YamlValue:
    return read_scenario(text, "f.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"f\.yaml: the scenario is empty"),
        ("a: [1", r"f\.yaml:\d+:\d+: it is not YAML"),
        ("a: 1\nb: 2\n", r"f\.yaml:2: unknown key 'b'; known: a"),
        ("a: 1\naa: 2\n", "did you mean 'a'"),
        ("a: 1\na: 2\n", r"f\.yaml:2: 'a' appears twice"),
        ("- a\n", "must be a mapping"),
    ],
)
def test_wrong_files(text: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        top(text).mapping(("a",))


@pytest.mark.parametrize(
    ("text", "method", "message"),
    [
        ("x", "number", "f.yaml:2: a: must be a whole number"),
        ("'5'", "number", "must be a whole number"),
        ("1.5", "number", "must be a whole number"),
        ("-1", "number", "must be 0 to"),
        ("yes", "flag", "must be true or false"),
        ("[1]", "text", "must be a text"),
        ("null", "text", "must be a text"),
        ("{}", "items", "must be a list"),
        ("EFOO", "errno", "not an errno"),
    ],
)
def test_wrong_values(text: str, method: str, message: str) -> None:
    value = top(f"\na: {text}\n").mapping(("a",)).require("a")
    with pytest.raises(InvalidInput, match=message) as caught:
        getattr(value, method)()
    assert caught.value.hint == "'vgpuctl sim list-scenarios --help' shows a scenario file"


def test_right_values() -> None:
    table = top("a: 0x10\nb: true\nc: 0000:3b:00.0\nd: [1, x]\ne: EIO\n").mapping("abcdefg")
    assert (table.number("a", 0), table.flag("b", False), table.text("c", "")) == (16, True, "0000:3b:00.0")
    assert [value.text() for value in table.items("d")] == ["1", "x"]
    assert table.require("e").errno() == 5
    assert (table.number("f", 7), table.flag("f", True), table.text("f", "t"), table.items("f")) == (7, True, "t", [])
    with pytest.raises(InvalidInput, match="'g' is missing"):
        table.require("g")
    with pytest.raises(InvalidInput, match="did you mean"):
        table.require("e").choice(("EIOO", "other"))
