# SPDX-License-Identifier: Apache-2.0
"""The collection passes Ansible's own linters and this project's rules."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.ansible.options import COLLECTION
from tests.ansible.plays import ANSIBLE, OLDEST_ANSIBLE, ROOT, ansible_environment
from vgpuctl.version import __version__

MODULES = sorted((COLLECTION / "plugins/modules").glob("*.py"))
MAX_LINES = 150
GET_PIP = """\
import ensurepip  # ansible-test would load pip from the internet

ensurepip.bootstrap()
"""
SANITY = ("validate-modules", "runtime-metadata", "shebang", "symlinks", "line-endings", "use-argspec-type-path")


def run(*words: str | Path, cwd: Path, **environment: str) -> str:
    """Run a linter, which must succeed, and return its output."""
    ran = subprocess.run(
        words, cwd=cwd, env=ansible_environment(cwd, **environment), capture_output=True, text=True, check=False
    )
    output = ran.stdout + ran.stderr
    assert ran.returncode == 0, output
    return output


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the collection where ansible-test needs it: below ansible_collections, outside git."""
    path = tmp_path / "ansible_collections/vgpuctl/vgpuctl"
    shutil.copytree(COLLECTION, path, ignore=shutil.ignore_patterns("__pycache__"))
    return path


def test_units_of_the_collection_pass(copy: Path) -> None:
    home = ROOT / ".venv-ansible/home"
    home.mkdir(exist_ok=True)
    arguments = ("units", "--python", "3.11", "--num-workers", "1")
    output = run(ANSIBLE / "ansible-test", *arguments, cwd=copy, HOME=str(home))
    assert len(re.findall(r"\d+ passed", output)) == 2, output


def test_ansible_test_finds_nothing(copy: Path) -> None:
    home = ROOT / ".venv-ansible/home"
    bootstrap = home / ".ansible/test/cache/get_pip_24_2.py"
    bootstrap.parent.mkdir(parents=True, exist_ok=True)
    bootstrap.write_text(GET_PIP)
    tests = [word for name in SANITY for word in ("--test", name)]
    output = run(ANSIBLE / "ansible-test", "sanity", "--python", "3.11", *tests, cwd=copy, HOME=str(home))
    assert 'Running sanity test "validate-modules"' in output


def test_the_oldest_ansible_is_the_one_that_the_collection_requires(tmp_path: Path) -> None:
    output = run(OLDEST_ANSIBLE / "ansible", "--version", cwd=tmp_path)
    (oldest,) = re.findall(
        r'^requires_ansible: ">=([0-9]+\.[0-9]+)\.0"$', (COLLECTION / "meta/runtime.yml").read_text(), re.M
    )
    assert output.startswith(f"ansible [core {oldest}."), output


def test_ansible_lint_finds_nothing_with_its_strictest_profile(tmp_path: Path) -> None:
    run(
        ANSIBLE / "ansible-lint",
        "--offline",
        "--strict",
        "--profile=production",
        "--project-dir=.",
        "playbooks",
        "inventory.example.yml",
        *(f"ansible_collections/vgpuctl/vgpuctl/{name}" for name in ("roles", "meta/runtime.yml", "galaxy.yml")),
        cwd=ROOT / "ansible",
        ANSIBLE_HOME=str(tmp_path / "home"),
        ANSIBLE_LOCAL_TEMP=str(tmp_path),
    )


def test_the_documentation_is_built_without_a_warning(tmp_path: Path) -> None:
    output = run(
        ANSIBLE / "antsibull-docs", "lint-collection-docs", "--plugin-docs", "--skip-rstcheck", COLLECTION, cwd=tmp_path
    )
    assert output.strip() == ""


def test_the_collection_is_built_and_installed(tmp_path: Path) -> None:
    run(ANSIBLE / "ansible-galaxy", "collection", "build", COLLECTION, cwd=tmp_path)
    archive = tmp_path / f"vgpuctl-vgpuctl-{__version__}.tar.gz"
    with tarfile.open(archive) as packed:
        names = set(packed.getnames())
    assert {"plugins/modules/vm.py", "roles/desktop_pool/tasks/main.yml", "LICENSES/GPL-3.0-or-later.txt"} <= names
    target = tmp_path / "there"
    arguments = ("collection", "install", "--offline", archive, "-p", target)
    run(ANSIBLE / "ansible-galaxy", *arguments, cwd=tmp_path, ANSIBLE_COLLECTIONS_PATH=str(target))
    assert (target / "ansible_collections/vgpuctl/vgpuctl/plugins/modules/vm.py").exists()


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_module_is_short_and_states_its_licence_and_attributes(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert "SPDX-License-Identifier: GPL-3.0-or-later" in text
    assert "vgpuctl.vgpuctl.attributes" in text
    assert not re.search(r"^(import|from) vgpuctl", text, re.MULTILINE), "the program is run, never imported"


def test_every_module_is_in_the_action_group() -> None:
    runtime = (COLLECTION / "meta/runtime.yml").read_text()
    assert all(f"    - {path.stem}\n" in runtime for path in MODULES)
