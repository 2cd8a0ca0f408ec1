# SPDX-License-Identifier: Apache-2.0
"""What depends on a backend or a maker is stated by it: no branch on one stands elsewhere in the package.

A branch is a comparison, a membership, a `match` case, a key or an index that names a `Backend` member or a maker's PCI
vendor id, also through a constant of the package that holds some. Facts of `GpuBackend` and `Maker` take its place, and
nothing outside `makers/` imports one maker.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from vgpuctl.makers import MAKERS
from vgpuctl.model.gpu import Backend, GpuMode

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "vgpuctl").rglob("*.py"))
ALLOWED = {
    "vgpuctl/backends/": "a backend knows itself",
    "vgpuctl/gpu/": "each way to divide a GPU knows where it applies",
    "vgpuctl/observe/": "it finds out which backend a GPU has",
    "vgpuctl/sim/": "the simulated kernel and drivers: an independent statement that imports none of what decides",
}
VENDOR_IDS = frozenset(
    text for m in MAKERS if m.vendor_id for text in (m.vendor_id, f"0x{m.vendor_id}", int(m.vendor_id, 16))
)
WORDS = frozenset(str(b) for b in Backend) - {str(m) for m in GpuMode}
"""Backends by their words; `passthrough` is also the word of a mode, on which a request may depend."""


def constants(trees: list[ast.Module]) -> frozenset[str]:
    """Return the names that modules give to a vendor id, a member or a collection of them."""
    names: set[str] = set()
    for tree in trees:
        for node in tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            value = getattr(node, "value", None)
            if isinstance(node, ast.Assign | ast.AnnAssign) and value is not None and any(_named(value, frozenset())):
                names |= {t.id for t in targets if isinstance(t, ast.Name)}
    return frozenset(names)


def _named(node: ast.AST, names: frozenset[str]) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.value, ast.Name) and part.value.id == "Backend":
            yield f"Backend.{part.attr}"
        elif isinstance(part, ast.Constant) and (part.value in VENDOR_IDS or part.value in WORDS):
            yield repr(part.value)
        elif isinstance(part, ast.Name | ast.Attribute) and getattr(part, "id", getattr(part, "attr", "")) in names:
            yield ast.unparse(part)


def branches(tree: ast.Module, names: frozenset[str] = frozenset()) -> list[str]:
    """Return every branch on a backend or a vendor id, with its line."""
    result = []
    for node in ast.walk(tree):
        tested: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            tested = [node]
        elif isinstance(node, ast.MatchValue):
            tested = [node.value]
        elif isinstance(node, ast.Dict):
            tested = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.DictComp):
            tested = [node.key]
        elif isinstance(node, ast.Subscript):
            tested = [node.slice]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            tested = list(node.args) if node.func.attr in ("get", "startswith", "__contains__") else []
        result += [f"{node.lineno}: {name}" for part in tested for name in _named(part, names)]
    return result


TREES = {str(p.relative_to(ROOT)): ast.parse(p.read_text()) for p in MODULES}
CONSTANTS = constants(list(TREES.values()))


def test_no_branch_on_a_backend_or_a_vendor_stands_outside_the_folders_that_own_them():
    exempt = tuple(ALLOWED)
    assert not [f"{n}:{b}" for n, tree in TREES.items() if not n.startswith(exempt) for b in branches(tree, CONSTANTS)]


@pytest.mark.parametrize("name", ALLOWED)
def test_the_list_of_folders_that_may_branch_is_not_out_of_date(name):
    assert any(branches(tree, CONSTANTS) for path, tree in TREES.items() if path.startswith(name))


def test_nobody_asks_for_one_maker():
    makers = {f"vgpuctl.makers.{type(m).__module__.rpartition('.')[2]}" for m in MAKERS}
    importers = {
        path
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in makers
    }
    assert importers == {"vgpuctl/makers/__init__.py"}


@pytest.mark.parametrize(
    "code",
    [
        "gpu.backend is Backend.MDEV_PF",
        "gpu.backend in (Backend.MDEV_PF, Backend.MDEV_VF)",
        "gpu.backend == 'vendor-vf'",
        "gpu.vendor_id != NVIDIA_VENDOR_ID",
        "gpu.vendor_id == '10de'",
        "vendor == 0x10de",
        "names = {Backend.SRIOV_VF: 'a plain VF'}",
        "names['sriov-vf']",
        "names.get('0x1002')",
        "v.backend in VF_BACKENDS",
        "match backend:\n    case Backend.PASSTHROUGH:\n        pass",
    ],
)
def test_each_form_of_branch_is_seen(code):
    names = constants([ast.parse("VF_BACKENDS = (Backend.SRIOV_VF, Backend.MDEV_VF)\nNVIDIA_VENDOR_ID = '10de'")])
    assert branches(ast.parse(code), names)


@pytest.mark.parametrize(
    "code",
    ["claim = Claim(backend=Backend.PASSTHROUGH)", "gpu.backend is other.backend", "request.mode == 'passthrough'"],
)
def test_what_only_names_or_compares_values_is_no_branch(code):
    assert not branches(ast.parse(code))
