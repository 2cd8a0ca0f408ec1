# SPDX-License-Identifier: Apache-2.0
"""The house rules: style, types, layers, sizes, and tests that mirror the package."""

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
PLAIN_VALUES = "values without behaviour: every test of what uses them is one of theirs"
NOT_MIRRORED = {
    "vgpuctl/__init__.py": "two names of the library: tests/unit/library",
    "vgpuctl/version.py": "the version",
    "vgpuctl/__main__.py": "one call of cli.entry, which has tests",
    "vgpuctl/errors.py": PLAIN_VALUES,
    "vgpuctl/model/gpu.py": PLAIN_VALUES,
    "vgpuctl/observe/scope.py": PLAIN_VALUES,
    "vgpuctl/model/outcome.py": PLAIN_VALUES,
    "vgpuctl/model/port_values.py": PLAIN_VALUES,
    "vgpuctl/model/vgpu_scheduler.py": PLAIN_VALUES,
    "vgpuctl/model/snapshot.py": PLAIN_VALUES,
    "vgpuctl/model/vm.py": PLAIN_VALUES,
    "vgpuctl/model/request.py": PLAIN_VALUES,
}
PROTOCOLS = "vgpuctl/ports/"
"""No behaviour: tests/contract holds the real and the simulated half to them."""
MIRRORED_AS_A_WHOLE = {
    "vgpuctl/cli": "commands are exercised by their words, not by their functions: tests/unit/cli",
    "vgpuctl/hook": "it is run as libvirt runs it, behind its shell script: tests/unit/hook",
    "vgpuctl/host": "the real half is tested against real kernels and libvirt: tests/unit/host, tests/lab",
    "vgpuctl/model/results": "records without behaviour, checked by what is made of them: tests/unit/model/results",
    "vgpuctl/gpu": "ways to divide a GPU are tried together, against brute force: tests/unit/gpu",
    "vgpuctl/placement": "fleets, policies and moves are tried together, against every other way: tests/unit/placement",
    "vgpuctl/remote": "what connects is tested against a real sshd: tests/unit/remote, tests/remote",
    "vgpuctl/sim": "one behaviour often needs several of its files: tests/unit/sim, tests/contract",
    "vgpuctl/library": "every command and every example is such a call: tests/unit/library, tests/unit/cli",
    "vgpuctl/config": "one model with one rule set: tests/unit/config",
}


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
        ("pynvml", {"vgpuctl/host/nvml/library.py"}),
        ("subprocess", {"vgpuctl/host/commands.py", "vgpuctl/remote/bootstrap_script.py", "vgpuctl/remote/ssh.py"}),
        ("pycdlib", {"vgpuctl/domain/cloud_init_seed.py"}),
        ("paramiko", {"vgpuctl/remote/ssh.py"}),
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


@pytest.mark.parametrize("path", MODULES, ids=_names)
def test_modules_and_functions_stay_short(path):
    text = path.read_text()
    tree = ast.parse(text)
    reason = any(line.strip().startswith("Size:") for line in (ast.get_docstring(tree) or "").splitlines())
    assert reason or len(text.splitlines()) <= MOST_LINES, "over 400 lines; its docstring may say why: Size: ..."
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < MOST_FUNCTION_LINES, node.name


def test_no_module_has_a_vague_name():
    assert not [_names(p) for p in PACKAGE.rglob("*") if p.stem in VAGUE]


@pytest.mark.parametrize("path", MODULES, ids=_names)
def test_every_module_has_a_docstring(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_tests_mirror_the_package():
    whole = tuple(f"{name}/" for name in MIRRORED_AS_A_WHOLE)
    missing = []
    for path in MODULES:
        name = _names(path)
        if name in NOT_MIRRORED or name.startswith((*whole, PROTOCOLS)) or path.name == "__init__.py":
            continue
        if not (ROOT / "tests" / "unit" / path.relative_to(PACKAGE).parent / f"test_{path.name}").exists():
            missing.append(name)
    assert not missing


def test_the_list_of_modules_without_a_mirror_is_not_out_of_date():
    assert not [name for name in NOT_MIRRORED if not (ROOT / name).exists()]
    folders = [ROOT / name.replace("vgpuctl", "tests/unit") for name in MIRRORED_AS_A_WHOLE]
    assert not [folder for folder in folders if not list(folder.glob("test_*.py"))]


@pytest.mark.parametrize("word", ["mock.patch", "importorskip", "time.sleep", "pytest.skip", "mark.skip"])
def test_tests_neither_patch_nor_sleep_nor_skip(word):
    """Values are handed in; a test that cannot run must fail. Outside the core a real world may need a wait."""
    core = ("backends", "gpu", "gpu_setup", "operations", "placement")
    everywhere = word in ("mock.patch", "importorskip")
    tests = [p for p in (ROOT / "tests" / "unit").rglob("*.py") if p != Path(__file__)]
    tests = [p for p in tests if everywhere or p.relative_to(ROOT / "tests" / "unit").parts[0] in core]
    assert not [_names(p) for p in tests if word in p.read_text()]
