# SPDX-License-Identifier: Apache-2.0
"""The house rules: style, types, layers and sizes."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "vgpuctl"
MODULES = sorted(PACKAGE.rglob("*.py"))
MOST_LINES, MOST_FUNCTION_LINES = 400, 50
VAGUE = ("utils", "util", "helpers", "helper", "manager", "common")


def _run(*command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("words", [("check", "."), ("format", "--check", ".")])
def test_ruff_finds_nothing(words):
    _run("ruff", *words)


def test_mypy_finds_nothing():
    _run("mypy")


def test_the_layers_hold():
    """The contracts stand in pyproject.toml; the program's own entry point does not run with -m."""
    code = (
        "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command(['--no-cache']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("libvirt", {"vgpuctl/host/virt/connection.py"}),
        ("libvirt_qemu", {"vgpuctl/host/virt/guest_agent.py", "vgpuctl/host/virt/migration.py"}),
        ("pynvml", {"vgpuctl/host/nvml/library.py"}),
        (
            "subprocess",
            {
                "vgpuctl/controller/demo/hosts.py",
                "vgpuctl/host/commands.py",
                "vgpuctl/host/usage/processes.py",
                "vgpuctl/remote/bootstrap_script.py",
                "vgpuctl/remote/ssh.py",
            },
        ),
        ("pycdlib", {"vgpuctl/domain/cloud_init_seed.py", "vgpuctl/host/driver_discs.py"}),
        ("paramiko", {"vgpuctl/remote/ssh.py"}),
        ("ldap", {"vgpuctl/controller/sign_in/ldap.py"}),
        ("authlib", {"vgpuctl/controller/sign_in/id_token.py", "vgpuctl/controller/sign_in/oidc.py"}),
        ("joserfc", {"vgpuctl/controller/sign_in/id_token.py"}),
    ],
)
def test_each_outside_library_has_one_importer(library, allowed):
    result = {_names(p) for p in MODULES if library in set(_imports(ast.parse(p.read_text())))}
    assert result == allowed


@pytest.mark.parametrize(("library", "layer"), [("click", "cli")])
def test_each_of_these_libraries_stays_in_its_layer(library, layer):
    result = {_names(p) for p in MODULES if library in set(_imports(ast.parse(p.read_text())))}
    assert result
    assert all(name.startswith(f"vgpuctl/{layer}/") for name in result)


def test_modules_and_functions_stay_short():
    long = []
    for path in MODULES:
        text = path.read_text()
        tree = ast.parse(text)
        reason = any(line.strip().startswith("Size:") for line in (ast.get_docstring(tree) or "").splitlines())
        if len(text.splitlines()) > MOST_LINES and not reason:
            long.append(_names(path))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        long += [
            f"{_names(path)}: {function.name}"
            for function in functions
            if (function.end_lineno or 0) - function.lineno >= MOST_FUNCTION_LINES
        ]
    assert not long, "a docstring of a module may say why it has over 400 lines: Size: ..."


def test_no_module_has_a_vague_name():
    """But those of noVNC, which are another project's."""
    assert not [_names(p) for p in PACKAGE.rglob("*") if p.stem in VAGUE and "novnc" not in p.parts]


def test_every_module_has_a_docstring():
    assert not [_names(path) for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]


@pytest.mark.parametrize("word", ["mock.patch", "importorskip", "time.sleep", "pytest.skip", "mark.skip"])
def test_tests_neither_patch_nor_sleep_nor_skip(word):
    """Values are handed in; a test that cannot run must fail. Outside the core a real world may need a wait."""
    core = ("backends", "gpu", "gpu_setup", "operations", "placement")
    everywhere = word in ("mock.patch", "importorskip")
    tests = [p for p in (ROOT / "tests" / "unit").rglob("*.py") if p != Path(__file__)]
    tests = [p for p in tests if everywhere or p.relative_to(ROOT / "tests" / "unit").parts[0] in core]
    assert not [_names(p) for p in tests if word in p.read_text()]
