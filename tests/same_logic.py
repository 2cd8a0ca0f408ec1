# SPDX-License-Identifier: Apache-2.0
"""Check that a renaming keeps the logic and every fact in comments: python -m tests.same_logic REVISION.

Compares `vgpuctl/` and `tests/` of a git revision with the working tree. Two functions are the same when their syntax
trees are equal after docstrings are dropped and every identifier is replaced by the number of its first appearance in
that function. A consistent renaming is invisible; two names that became one are not. Files and order do not matter,
so modules may move. Every difference is printed by name, old and new. Strings are compared as they are; with
`--renamed-strings`, strings without spaces (module paths, attribute names) may differ.

The second half counts what readers rely on: docstrings, cited sources in comments and docstrings, texts of errors and
hints. It lists what the revision has more of than the working tree.
"""

from __future__ import annotations

import argparse
import ast
import copy
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("vgpuctl", "tests")
SOURCES = re.compile(
    r"https?://\S+|PEP \d+|RFC ?\d+|CVE-\d+-\d+|\b[\w/.-]+\.[ch]\b|[Bb]ug #?\d+|LP ?#?\d+|NVML_\w+|nvml[A-Z]\w+|VIR_\w+"
    r"|(?:libvirt|QEMU|Linux|kernel|driver|drivers before|vGPU|Python|systemd|OpenSSH|click|lxml)(?:'s)? \d[\d.]*"
    r"|\b[a-z_]+\(\d\)"
)
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
        old = dict(_committed(options.revision, folder))
        new = {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / folder).rglob("*.py"))}
        differs |= _compare_logic(old, new, lenient=options.renamed_strings)
        differs |= _compare_facts(folder, old, new)
    return int(differs)


def _committed(revision: str, folder: str) -> Iterator[tuple[str, str]]:
    names = _git("ls-tree", "-r", "--name-only", revision, folder).splitlines()
    for name in names:
        if name.endswith(".py"):
            yield name, _git("show", f"{revision}:{name}")


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


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
        elif not (isinstance(child, ast.Import | ast.ImportFrom) or _is_type_checking(child) or _is_text(child)):
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
            kept = [line for line in body if not _is_text(line) and not isinstance(line, imports)]
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


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _compare_facts(folder: str, old: dict[str, str], new: dict[str, str]) -> bool:
    before, after = _facts(old), _facts(new)
    lost = False
    for kind in before:
        print(f"{folder}: {kind}: {before[kind].total()} before, {after[kind].total()} now")
        missing = before[kind] - after[kind]
        if kind != "docstrings":
            for text, times in sorted(missing.items()):
                print(f"  lost {times}x: {text}")
        lost |= after[kind].total() < before[kind].total() if kind == "docstrings" else bool(missing)
    return lost


def _facts(files: dict[str, str]) -> dict[str, Counter[str]]:
    """Count docstrings, cited sources, and the texts of errors and hints."""
    docstrings, sources, errors = Counter[str](), Counter[str](), Counter[str]()
    for text in files.values():
        tree = ast.parse(text)
        comments = [
            t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT
        ]
        for node in ast.walk(tree):
            if _is_text(node):
                docstrings["a docstring"] += 1
                comments.append(node.value.value)  # type: ignore[attr-defined]
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                errors.update(_texts(node.exc))
            elif isinstance(node, ast.keyword) and node.arg == "hint":
                errors.update(_texts(node.value))
        sources.update(match for comment in comments for match in SOURCES.findall(" ".join(comment.split())))
    return {"docstrings": docstrings, "cited sources": sources, "texts of errors and hints": errors}


def _texts(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
            yield part.value


if __name__ == "__main__":
    sys.exit(main())
