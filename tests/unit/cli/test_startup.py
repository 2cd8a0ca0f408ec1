# SPDX-License-Identifier: Apache-2.0
"""What --version, --help and completion of names import; tests/bench/test_startup.py times them beside click."""

from __future__ import annotations

import pytest

from tests.unit.cli.conftest import child, child_environment

HEAVY = {
    "cryptography", "jinja2", "json", "libvirt", "lxml", "paramiko", "pycdlib", "pydantic", "pydantic_core", "pynvml",
    "rich", "ruamel", "subprocess", "tempfile", "importlib.metadata", "logging", "socket",
}  # fmt: skip
OURS = {"capacity", "domain", "engine", "host", "plan", "sim", "backends", "model"}
LIGHT_LINES = [
    (["--version"], None),
    (["--help"], None),
    (["create-vm", "--help"], None),
    (["ensure-vm", "--help"], None),
    (["sim", "--help"], None),
    ([], "vgpuctl "),
    ([], "vgpuctl cre"),
    ([], "vgpuctl create-vm --"),
    ([], "vgpuctl create-vm --mode "),
    ([], "vgpuctl sim re"),
]
_LIST = "import sys\nfrom vgpuctl.cli.entry import main\nmain(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"


@pytest.mark.parametrize(("words", "line"), LIGHT_LINES)
def test_light_command_lines_import_nothing_heavy(words: list[str], line: str | None) -> None:
    more = {"_VGPUCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "0"} if line else {}
    ran = child(*words, code=_LIST, env=child_environment(**more))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    modules = set(ran.stderr.split())
    assert "vgpuctl.cli.app" in modules
    assert not modules & HEAVY
    assert not modules & {f"vgpuctl.{name}" for name in OURS}


def test_listing_commands_imports_no_command() -> None:
    ran = child("--help", code=_LIST)
    assert not [name for name in ran.stderr.split() if name.startswith("vgpuctl.cli.commands.")]
