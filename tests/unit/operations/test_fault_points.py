# SPDX-License-Identifier: Apache-2.0
"""Every method of every port has its place in tests/faults.py: a new one cannot be left out of the fault tests."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.faults import CHANGING, NEVER_RAISE, READING

PORTS = Path(__file__).resolve().parents[3] / "vgpuctl" / "ports"


def _methods() -> set[str]:
    """Return PORT.METHOD for each method of the protocols that are fields of `Host`."""
    classes = {
        node.name: node
        for path in PORTS.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    }
    fields = {
        field.target.id: ast.unparse(field.annotation).removesuffix(" | None")
        for field in classes["Host"].body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }
    return {
        f"{name}.{method.name}"
        for name, kind in fields.items()
        if kind in classes
        for method in classes[kind].body
        if isinstance(method, ast.FunctionDef)
    }


def test_each_method_of_a_port_changes_something_or_reads_or_never_raises() -> None:
    lists = (CHANGING, NEVER_RAISE, READING)
    assert _methods() == set().union(*lists)
    assert sum(map(len, lists)) == len(set().union(*lists)), "a method is in two lists"
