# SPDX-License-Identifier: Apache-2.0
"""What command lines import: --version, --help and completion only click, others only what they use.

A missing library is named with its packages before anything changes. tests/bench times the lines: test_startup.py
compared with click, test_remote.py on ten hosts.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.command_cases import CASES, lines
from tests.unit.cli.conftest import child, child_environment

HEAVY = {
    "cryptography", "jinja2", "json", "libvirt", "lxml", "paramiko", "pycdlib", "pydantic", "pydantic_core", "pynvml",
    "ruamel.yaml", "sqlite3", "subprocess", "tempfile", "importlib.metadata", "logging", "socket",
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


WITHOUT = "import sys\nsys.modules[sys.argv.pop(1)] = None\nfrom vgpuctl.cli.entry import main\nsys.exit(main())"
SIM = "--host sim:a100-40"
LIBVIRT = "vgpuctl's extra host, Debian's package python3-libvirt, pip's libvirt-python"
RUAMEL = "Debian's package python3-ruamel.yaml, pip's ruamel.yaml"
PARAMIKO = "vgpuctl's extra ssh, Debian's package python3-paramiko, pip's paramiko"


@pytest.mark.parametrize(
    ("library", "line", "sources", "pip"),
    [
        ("libvirt", "show-vm a", LIBVIRT, None),
        ("libvirt", "create-vm a --profile A100-4C", LIBVIRT, None),
        ("libvirt", "list-images", LIBVIRT, None),
        ("libvirt", "show-address a", LIBVIRT, None),
        ("libvirt", "reconcile-host", LIBVIRT, None),
        ("paramiko", "--host ssh://a list-gpus", PARAMIKO, "vgpuctl[ssh]"),
        ("lxml", f"{SIM} create-vm a --profile A100-4C", "Debian's package python3-lxml, pip's lxml", "lxml>=4.9.2"),
        (
            "jinja2",
            f"{SIM} create-vm a --profile A100-4C",
            "Debian's package python3-jinja2, pip's jinja2",
            "jinja2>=3.1.2",
        ),
        ("ruamel", f"{SIM} create-vgpu a --profile A100-4C", RUAMEL, "ruamel.yaml>=0.17.32"),
        ("click", "list-gpus", "Debian's package python3-click, pip's click", "click!=8.4.0,>=8.1.3"),
    ],
)
def test_the_package_to_install_is_named(
    tmp_path: Path, library: str, line: str, sources: str, pip: str | None
) -> None:
    environment = child_environment(XDG_STATE_HOME=str(tmp_path))
    ran = child(library, "--json", *line.split(), code=WITHOUT, env=environment)
    error = json.loads(ran.stdout)["error"]
    assert (ran.returncode, error["code"]) == (6, "host-cannot")
    assert f"the Python library {library} cannot be loaded by {sys.executable}: " in error["message"]
    assert error["message"].endswith(f" ({sources})")
    if pip is None:
        assert error["hint"].startswith("apt install python3-libvirt && sed -i ")
    else:
        assert error["hint"] == f"{sys.executable} -m pip install {shlex.quote(pip)}"
    assert (error["undone"], error["left"]) == ([], [])
    text = child(library, *line.split(), code=WITHOUT, env=environment).stderr
    assert sources in text
    assert "[bug]" not in text
    assert "systemctl" not in text


def test_lists_and_doctor_report_missing_libvirt() -> None:
    for line in ("list-vms", "doctor libvirt"):
        ran = child("libvirt", *line.split(), code=WITHOUT)
        assert "the Python library libvirt cannot be loaded" in ran.stdout + ran.stderr
        assert "systemctl start" not in ran.stdout + ran.stderr


def test_a_missing_seed_library_is_reported_before_any_change(tmp_path: Path) -> None:
    (tmp_path / "user-data").write_text("#cloud-config\nhostname: a\n")
    line = f"{SIM} create-vm a --profile A100-4C --image /srv/images/ubuntu-24.04.qcow2"
    words = [*line.split(), "--cloud-init", f"{tmp_path}/user-data"]
    ran = child("pycdlib", *words, code=WITHOUT, env=child_environment(XDG_STATE_HOME=str(tmp_path)))
    assert (ran.returncode, "python3-pycdlib" in ran.stderr, "undone" in ran.stderr) == (6, True, False)
