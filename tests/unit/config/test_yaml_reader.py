# SPDX-License-Identifier: Apache-2.0
"""Reading YAML and JSON: values by YAML 1.2, and a line and column for every problem."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpuctl.config.yaml_reader import Position, load_document
from vgpuctl.errors import InvalidInput


def refused(text: str) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        load_document(text, "vm.yaml")
    return caught.value


def test_an_unquoted_address_stays_text() -> None:
    document = load_document("a: 0000:41:00.0\nb: 0000:01:00.0\nc: 41:00.0\nd: 190:20:30", "vm.yaml")
    assert document.value == {"a": "0000:41:00.0", "b": "0000:01:00.0", "c": "41:00.0", "d": "190:20:30"}


def test_scalars_follow_the_core_schema_of_yaml_1_2() -> None:
    text = "[1, -2, 0x1f, 0o17, 010, 1_000, 1.5, 2460.0, yes, on, true, False, null, ~, '1', 2024-01-01, =, !!str 7]"
    assert load_document(text, "n").value == [
        1, -2, 31, 15, 10, "1_000", 1.5, 2460.0, "yes", "on", True, False, None, None, "1", "2024-01-01", "=", "7",
    ]  # fmt: skip


def test_a_yaml_1_1_directive_changes_nothing() -> None:
    assert load_document("%YAML 1.1\n---\na: 0000:41:00.0\nb: yes\n", "n").value == {"a": "0000:41:00.0", "b": "yes"}


def test_positions_count_from_one() -> None:
    document = load_document("name: a\ndisk:\n  - 1GiB\n  -   2GiB\n", "n")
    assert document.position(("disk", 1)) == Position(4, 7)
    assert document.position(("disk",), of_key=True) == Position(2, 1)
    assert document.position(("disk", 7)) == Position(3, 3), "the nearest place around it"
    assert document.position(("profile",)) == Position(1, 1)


def test_an_empty_text_is_nothing() -> None:
    assert load_document("", "n").value is None
    assert load_document("# only a comment\n", "n").value is None


TAG = "a tag (!name) is not allowed here; a text that begins with ! needs quotes"


def test_all_problems_are_listed() -> None:
    error = refused("a: &x 1\na: 2\nb: *x\nc: !py x\n? [k]\n: 1\n")
    assert error.message.splitlines() == [
        "vm.yaml has 4 problems",
        "vm.yaml:1:4: b: an alias (*name) is not allowed here: write the value out",
        "vm.yaml:2:1: a: the key appears twice (first in line 1)",
        "vm.yaml:4:4: c: a tag (!name) is not allowed here; a text that begins with ! needs quotes",
        "vm.yaml:5:3: a key must be a word",
    ]
    assert error.facts["problems"] == [
        {"file": "vm.yaml", "line": 1, "column": 4, "path": "b", "problem": "an alias (*name) is not allowed here: "
         "write the value out"},
        {"file": "vm.yaml", "line": 2, "column": 1, "path": "a", "problem": "the key appears twice (first in line 1)"},
        {"file": "vm.yaml", "line": 4, "column": 4, "path": "c", "problem": TAG},
        {"file": "vm.yaml", "line": 5, "column": 3, "path": "", "problem": "a key must be a word"},
    ]  # fmt: skip


@pytest.mark.parametrize("tag", ["!!python/object:os.system", "!!binary", "!!set"])
def test_a_tag_in_yamls_own_name_space_is_refused_too(tag: str) -> None:
    value = "{}" if tag == "!!set" else "x"
    assert refused(f"a: {tag} {value}\n").message.startswith("vm.yaml:1:4: a: a tag (!name) is not allowed here")


def test_a_key_twice_deep_inside_is_named_with_its_path() -> None:
    assert "vm.yaml:3:3: vgpu_params.a: the key appears twice" in refused("vgpu_params:\n  a: 1\n  a: 2\n").message


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: [\n", "vm.yaml:2:1: it is not YAML: while parsing a flow node"),
        ("a: b: c\n", "vm.yaml:1:5: it is not YAML"),
        ("a:\n\tb: 1\n", "vm.yaml:2:1: it is not YAML"),
        ("a: *x\n", "vm.yaml:1:4: it is not YAML: found undefined alias"),
        ("a: 1\n---\nb: 2\n", "vm.yaml:2:1: a second document begins here, and the file may have one"),
        ("a: 1\nb: \x01\n", "vm.yaml:2:4: a character that YAML does not allow"),
        ("[" * 500, "vm.yaml:1:51: it is nested too deeply: at most 50 levels"),
        ("&a [*a]", "vm.yaml:1:1: [0]: an alias (*name) is not allowed here"),
    ],
)
def test_broken_text_names_the_place(text: str, start: str) -> None:
    assert refused(text).message.startswith(start)


def test_json_with_tabs_and_escapes_is_read() -> None:
    assert load_document('{\n\t"a":\t"\\ud83d\\ude00\\/",\n\t"b": [1, true, null]\n}\n', "n").value == {
        "a": "\U0001f600/",
        "b": [1, True, None],
    }


def tree(letters: st.SearchStrategy[str]) -> st.SearchStrategy[object]:
    leaf = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(letters, max_size=10)
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(letters, max_size=5), inner, max_size=3),
        max_leaves=10,
    )


escaped = tree(st.characters(exclude_categories=("Cs",))).map(lambda value: (value, True))
raw = tree(st.characters(categories=("L", "N", "P", "S"))).map(lambda value: (value, False))


@given(escaped | raw, st.sampled_from([None, 2, "\t"]))
def test_json_reads_as_json_does(pair: tuple[object, bool], indent: int | str | None) -> None:
    value, ascii_only = pair
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert load_document(text, "n").value == value


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_place(text: str) -> None:
    try:
        load_document(text, "vm.yaml")
    except InvalidInput as exc:
        problems = exc.facts["problems"]
        assert isinstance(problems, list)
        assert problems
        assert all(p["line"] >= 1 and p["column"] >= 1 for p in problems)


def test_an_error_lists_the_first_problems_and_counts_the_others() -> None:
    error = refused("".join(f"a{number}: !x 1\n" for number in range(80)))
    lines = error.message.splitlines()
    assert (lines[0], lines[-1]) == ("vm.yaml has 80 problems", "and 30 more problems")
    assert len(error.facts["problems"]) == 50
