# SPDX-License-Identifier: Apache-2.0
"""What command lines import: --version, --help and name completion only click, others only what they use.

tests/bench times them: test_startup.py compared with click, test_remote.py on ten hosts.
"""

from __future__ import annotations

import pytest

from tests.command_cases import CASES, lines
from tests.unit.cli.conftest import child, child_environment

HEAVY = {
    "cryptography", "jinja2", "json", "libvirt", "lxml", "paramiko", "pycdlib", "pydantic", "pydantic_core", "pynvml",
    "ruamel.yaml", "subprocess", "tempfile", "importlib.metadata", "logging", "socket",
}  # fmt: skip
OURS = {"gpu", "placement", "makers", "domain", "operations", "host", "sim", "backends"}
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
NOT_TO_READ = HEAVY - {"json", "socket", "tempfile"} | {
    "concurrent.futures", "email", "importlib.resources", "vgpuctl.domain.render",
}  # fmt: skip
"""What a command that only looks at a host without VMs and without host.yaml does without."""
NOT_TO_START = NOT_TO_READ - {"lxml"}
"""What a command does without that makes no XML and reads no YAML."""
FAST = [lines(command, "vdi-1")[0] for command, case in CASES.items() if case.fast]
READING = [line for line in FAST if "vdi-1" not in line]
OF_A_VM = [line for line in FAST if "vdi-1" in line]
_LIST = "import sys\nfrom vgpuctl.cli.entry import main\nmain(sys.argv[1:])\nprint(*sys.modules, file=sys.stderr)"


@pytest.mark.parametrize(("words", "line"), LIGHT_LINES)
def test_light_command_lines_import_nothing_heavy(words: list[str], line: str | None) -> None:
    more = {"_VGPUCTL_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": "0"} if line else {}
    ran = child(*words, code=_LIST, env=child_environment(**more))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    modules = set(ran.stderr.split())
    assert "vgpuctl.cli.command" in modules
    assert not modules & HEAVY
    assert not modules & {f"vgpuctl.{name}" for name in OURS}


def test_listing_commands_imports_no_command() -> None:
    ran = child("--help", code=_LIST)
    assert not [name for name in ran.stderr.split() if name.startswith("vgpuctl.cli.commands.")]


@pytest.mark.parametrize("line", READING)
def test_reading_commands_import_no_changing_code(line: str) -> None:
    _done("list-gpus")  # the first snapshot reads the simulated host's scenario, which is YAML
    assert sorted(_done(line) & NOT_TO_READ) == []


@pytest.mark.parametrize("line", OF_A_VM)
def test_a_command_for_an_existing_vm_imports_no_templates_and_no_yaml(line: str) -> None:
    _done("create-vm vdi-1 --profile A100-4C")
    assert sorted(_done(line) & NOT_TO_START) == []


def _done(line: str) -> set[str]:
    """Run a line on a simulated host and return the modules that it imported."""
    ran = child("--host", "sim:a100-40", "--json", "--yes", *line.split(), code=_LIST)
    assert '"ok": true' in ran.stdout, ran.stderr
    return set(ran.stderr.split())
