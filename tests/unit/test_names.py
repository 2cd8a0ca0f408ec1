# SPDX-License-Identifier: Apache-2.0
"""One name has one meaning, and names are the field's words: what a newcomer must not have to learn again."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "vgpuctl").rglob("*.py"))
TEST_MODULES = sorted((ROOT / "tests").rglob("*.py"))
GONE = (
    "afar", "crew", "emptied", "found", "homeless", "lent", "lends", "promise", "promised", "said", "seams", "someday",
    "told", "wish", "wishes", "world", "worlds",
)  # fmt: skip
"""Words of a private dialect that once named records, requests, hosts and results."""
IDENTIFIERS = (
    (ast.Name, "id"),
    (ast.arg, "arg"),
    (ast.Attribute, "attr"),
    (ast.FunctionDef, "name"),
    (ast.ClassDef, "name"),
)
ONE_MEANING = ("emptied", "chosen", "look_at", "create_plan", "removal_plan", "wish_for")
"""Functions of two modules once had these names."""


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _defined(kinds: tuple[type[ast.AST], ...]) -> dict[str, list[str]]:
    """Return in which modules each name is defined at the top."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, kinds):
                places[node.name].append(_name(path))  # type: ignore[attr-defined]
    return places


def test_a_class_name_is_used_once():
    twice = {name: where for name, where in _defined((ast.ClassDef,)).items() if len(where) > 1 and name[0] != "_"}
    assert not twice


def test_a_function_name_has_one_meaning():
    defined = _defined((ast.FunctionDef,))
    assert not {name: defined[name] for name in ONE_MEANING if len(defined.get(name, ())) > 1}


@pytest.mark.parametrize("name", ["scheduler.py", "partition.py"])
def test_at_most_one_module_has_this_name(name):
    assert len([path for path in MODULES if path.name == name]) <= 1


def _identifiers(path: Path) -> set[str]:
    """Keyword arguments are left out: many are names in JSON, and those of our own functions are parameters too."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return {getattr(node, field) for node in nodes for kind, field in IDENTIFIERS if isinstance(node, kind)}


def test_no_identifier_is_of_a_private_dialect():
    assert not [
        f"{_name(path)}: {name}"
        for path in MODULES
        for name in _identifiers(path)
        if not name.isupper() and set(name.lower().strip("_").split("_")) & set(GONE)
    ]


def test_no_variable_of_a_test_is_of_a_private_dialect():
    """Only whole names count here: the names of test functions are sentences."""
    gone = (*GONE, "look", "looks", "stands", "beside", "mend")
    assert not [
        f"{_name(path)}: {name}" for path in TEST_MODULES for name in _identifiers(path) if name.strip("_") in gone
    ]
