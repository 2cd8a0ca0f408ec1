# SPDX-License-Identifier: Apache-2.0
"""Compare the size of the program, and what its readers and users rely on: python -m tests.program_size REVISION.

Prints a table of `vgpuctl/` in a git revision and in the working tree:

- statements: those of the syntax trees, without imports and docstrings;
- files, and functions and classes with a docstring;
- error codes: the values of `code` in the classes of `errors.py`;
- messages and hints: the distinct texts of raised errors and of the argument `hint`;
- cited sources in comments and docstrings: a URL, a kernel file, a CVE, an NVML name, a version of a program;
- fault points: the methods of the ports, before each of which the fault tests fail once.

Below it, each error code, text and source that only the revision has. A text that was reworded is listed too.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = re.compile(
    r"https?://\S+|PEP \d+|RFC ?\d+|CVE-\d+-\d+|\b[\w/.-]+\.[ch]\b|[Bb]ug #?\d+|LP ?#?\d+|NVML_\w+|nvml[A-Z]\w+|VIR_\w+"
    r"|(?:libvirt|QEMU|Linux|kernel|driver|drivers before|vGPU|Python|systemd|OpenSSH|click|lxml)(?:'s)? \d[\d.]*"
    r"|\b[a-z_]+\(\d\)"
)
LISTED = ("error codes", "messages and hints", "cited sources")
PORTS = re.compile(r"vgpuctl/(ports/(?!step)\w+|model/(seams|system))\.py")
Counts = dict[str, Counter[str]]


def main() -> int:
    """Print the table and what is missing."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("revision")
    before = count(committed_files(parser.parse_args().revision, "vgpuctl"))
    after = count(current_files("vgpuctl"))
    for what in before:
        old, new = size(before, what), size(after, what)
        print(f"{what:30} {old:>7,} {new:>7,} {new - old:>+7,}")
    for what in LISTED:
        for text in sorted(set(before[what]) - set(after[what])):
            print(f"only before, {what}: {text}")
    return 0


def size(counts: Counts, what: str) -> int:
    """Return the number of one kind: distinct texts where texts are counted, else all."""
    return len(counts[what]) if what in LISTED[:2] else counts[what].total()


def committed_files(revision: str, folder: str) -> dict[str, str]:
    """Return the Python files of a folder in a git revision, by path."""
    names = _git("ls-tree", "-r", "--name-only", revision, folder).splitlines()
    return {name: _git("show", f"{revision}:{name}") for name in names if name.endswith(".py")}


def current_files(folder: str) -> dict[str, str]:
    """Return the Python files of a folder in the working tree, by path."""
    return {str(p.relative_to(ROOT)): p.read_text() for p in sorted((ROOT / folder).rglob("*.py"))}


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True).stdout


def count(files: dict[str, str]) -> Counts:
    """Count everything in these files."""
    counts: Counts = {
        what: Counter()
        for what in (
            "statements",
            "files",
            "with a docstring",
            "error codes",
            "messages and hints",
            "cited sources",
            "fault points",
        )
    }
    counts["files"].update(list(files))
    for name, text in files.items():
        tree = ast.parse(text)
        comments = list(_comments(text))
        for node in ast.walk(tree):
            if is_text(node):
                comments.append(node.value.value)  # type: ignore[attr-defined]
            elif isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
                counts["statements"]["one"] += 1
            counts["with a docstring"]["one"] += _has_docstring(node)
            counts["messages and hints"].update(_error_texts(node))
        counts["cited sources"].update(m for comment in comments for m in SOURCES.findall(" ".join(comment.split())))
        if name == "vgpuctl/errors.py":
            counts["error codes"].update(_error_codes(tree))
        if PORTS.fullmatch(name):
            counts["fault points"].update(_port_methods(tree))
    return counts


def is_text(node: ast.AST) -> bool:
    """Return whether a statement is a docstring, of a definition or below a name."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _comments(text: str) -> Iterator[str]:
    return (t.string for t in tokenize.generate_tokens(io.StringIO(text).readline) if t.type == tokenize.COMMENT)


def _has_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None


def _error_texts(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        yield from _texts(node.exc)
    elif isinstance(node, ast.keyword) and node.arg == "hint":
        yield from _texts(node.value)


def _texts(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and " " in part.value:
            yield part.value


def _error_codes(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "code"
            and isinstance(node.value, ast.Constant)
        ):
            yield str(node.value.value)


def _port_methods(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
            yield from (f"{node.name}.{child.name}" for child in node.body if isinstance(child, ast.FunctionDef))


if __name__ == "__main__":
    sys.exit(main())
