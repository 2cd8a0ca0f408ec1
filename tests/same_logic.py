# SPDX-License-Identifier: Apache-2.0
"""Check that a renaming keeps the logic: python -m tests.same_logic REVISION.

Compares `vgpuctl/` and `tests/` of a git revision with the working tree. Two functions are the same when their syntax
trees are equal after docstrings are dropped and every identifier is replaced by the number of its first appearance in
that function. A consistent renaming is invisible; two names that became one are not. Files and order do not matter,
so modules may move. Every difference is printed by name, old and new. Strings are compared as they are; with
`--renamed-strings`, strings without spaces (module paths, attribute names) may differ.
"""

from __future__ import annotations

import argparse
import ast
import copy
import sys
from collections import defaultdict
from collections.abc import Iterator

from tests.program_size import committed_files, current_files, is_text

FOLDERS = ("vgpuctl", "tests")
NAMES = (
    (ast.Name, "id"),
    (ast.arg, "arg"),
    (ast.Attribute, "attr"),
    (ast.keyword, "arg"),
    (ast.FunctionDef, "name"),
    (ast.AsyncFunctionDef, "name"),
    (ast.ClassDef, "name"),
    (ast.ExceptHandler, "name"),
    (ast.MatchAs, "name"),
    (ast.MatchStar, "name"),
)
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def main() -> int:
    """Print the differences; exit with status 1 if there are any."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision")
    parser.add_argument("--renamed-strings", action="store_true", help="strings without spaces may differ")
    options = parser.parse_args()
    differs = False
    for folder in FOLDERS:
        old, new = committed_files(options.revision, folder), current_files(folder)
        differs |= _compare_logic(old, new, lenient=options.renamed_strings)
    return int(differs)


def _compare_logic(old: dict[str, str], new: dict[str, str], *, lenient: bool) -> bool:
    before, after = _functions(old, lenient=lenient), _functions(new, lenient=lenient)
    gone = [place for shape, places in before.items() for place in places[len(after.get(shape, ())) :]]
    come = [place for shape, places in after.items() for place in places[len(before.get(shape, ())) :]]
    for sign, places in (("-", gone), ("+", come)):
        for place in sorted(places):
            print(sign, place)
    return bool(gone or come)


def _functions(files: dict[str, str], *, lenient: bool) -> dict[str, list[str]]:
    """Return the places of each shape of a function, a class body or a module body."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, text in files.items():
        tree = ast.parse(text)
        for where, node in _definitions(tree, name):
            places[_shape(node, lenient=lenient)].append(where)
    return places


def _definitions(node: ast.AST, where: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield whole functions with their inner definitions; class and module bodies statement by statement."""
    for child in getattr(node, "body", []):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{where}::{child.name}", child
        elif isinstance(child, ast.ClassDef):
            yield (
                f"{where}::{child.name}",
                ast.ClassDef(child.name, child.bases, child.keywords, [ast.Pass()], child.decorator_list),
            )
            yield from _definitions(child, f"{where}::{child.name}")
        elif not (isinstance(child, ast.Import | ast.ImportFrom) or _is_type_checking(child) or is_text(child)):
            yield f"{where}:{child.lineno}", child


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _shape(node: ast.AST, *, lenient: bool) -> str:
    numbers: dict[tuple[str, str], str] = {}
    tree = ast.Module(body=[copy.deepcopy(node)], type_ignores=[])  # type: ignore[list-item]
    for part in ast.walk(tree):
        body = getattr(part, "body", None)
        if isinstance(body, list):
            imports = (ast.Import, ast.ImportFrom)
            kept = [line for line in body if not is_text(line) and not isinstance(line, imports)]
            part.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    for part in _in_order(tree):
        for kind, field in NAMES:
            name = getattr(part, field, None)
            if isinstance(part, kind) and isinstance(name, str):
                space = kind.__name__ if kind in (ast.Attribute, ast.keyword) else "variable"
                setattr(part, field, numbers.setdefault((space, name), f"n{len(numbers)}"))
        if isinstance(part, ast.Global | ast.Nonlocal):
            part.names = [numbers.setdefault(("variable", name), f"n{len(numbers)}") for name in part.names]
        if lenient and isinstance(part, ast.Constant) and isinstance(part.value, str) and " " not in part.value:
            part.value = "word"
    return ast.dump(tree)


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


if __name__ == "__main__":
    sys.exit(main())
