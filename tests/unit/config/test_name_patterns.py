# SPDX-License-Identifier: Apache-2.0
"""Ranges and lists in braces."""

from __future__ import annotations

import pytest

from vgpuctl.config.name_patterns import expand_braces, name_range, natural_key, split_list
from vgpuctl.errors import InvalidInput


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("vdi-{008..011}", ["vdi-008", "vdi-009", "vdi-010", "vdi-011"]),
        ("a{9..11}", ["a9", "a10", "a11"]),
        ("a{2..1}", ["a2", "a1"]),
        ("{a,b}-{1..2}", ["a-1", "a-2", "b-1", "b-2"]),
        ("vdi-*", ["vdi-*"]),
    ],
)
def test_braces_stand_for_words(text: str, words: list[str]) -> None:
    assert list(expand_braces(text)) == words


@pytest.mark.parametrize("text", ["a{", "a}", "{{a,b}}", "vdi-{:03}", "a{}", "a{1..100000}", "{1..200}{1..200}"])
def test_other_braces_are_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        expand_braces(text)


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["vdi-1", "vdi-2", "vdi-3"], "vdi-{1..3}"),
        (["a1-009-x", "a1-010-x"], "a1-{009..010}-x"),
        (["vdi-1", "vdi-3"], None),
        (["vdi-1", "web-2"], None),
        (["web", "db"], None),
        ([], None),
    ],
)
def test_consecutive_names_are_a_range(names: list[str], word: str | None) -> None:
    assert name_range(names) == word


def test_numbers_sort_by_value() -> None:
    assert sorted(["b-10", "b-9", "a", "10"], key=natural_key) == ["10", "a", "b-9", "b-10"]


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("vdi-[10:12]", "vdi-{10..12}"),
        ("gpu0[1:3]", "gpu0{1..3}"),
        ("vdi-[01:20]-[8-10]", "vdi-{01..20}-{8..10}"),
        ("rack[a:c]", "rack{a,b,c}"),
        ("RACK[A:C]*", "RACK{A,B,C}*"),
        ("vdi-[1-12]", "vdi-{1..12}"),
        ("vdi-[10..12]", "vdi-{10..12}"),
        ("x[00:08:4]", "x{00,04,08}"),
        ("{web,db}-[1,2]", "{web,db}-{1,2}"),
    ],
)
def test_a_range_in_brackets_is_refused_and_what_to_write_is_valid(text: str, instead: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        expand_braces(text)
    assert raised.value.hint == f"write '{instead}'"
    assert len(expand_braces(instead)) > 1


@pytest.mark.parametrize(
    "text", ["x[!1:3]", "x[:3]", "x[3:]", "x[[:digit:]]", "x[a,b:c]", "x[c:a]", "x[1:3:0]", "[]1:3]"]
)
def test_what_cannot_be_a_set_of_characters_is_not_guessed(text: str) -> None:
    with pytest.raises(InvalidInput, match="is a set of characters"):
        expand_braces(text)


@pytest.mark.parametrize("text", ["vdi-[12]", "vdi-[0-9][0-9]", "[!a-c]*", "[]a]", "0000:3[bc]:00.?", "[1:2"])
def test_a_set_of_characters_is_one(text: str) -> None:
    assert expand_braces(text) == (text,)


def test_commas_in_braces_belong_to_a_pattern() -> None:
    assert split_list("a, b-{1,2},{x,y}, ") == ("a", "b-{1,2}", "{x,y}")


def test_the_product_of_many_ranges_is_not_computed():
    with pytest.raises(InvalidInput, match="stands for at least 25000000 names; at most 10000"):
        expand_braces("{1..5000}" * 1000)
