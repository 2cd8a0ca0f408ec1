# SPDX-License-Identifier: Apache-2.0
"""Every command names a missing Python library with its packages before it changes anything."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import child, child_environment

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
        (
            "ruamel",
            f"{SIM} create-vgpu a --profile A100-4C",
            "Debian's package python3-ruamel.yaml, pip's ruamel.yaml",
            "ruamel.yaml>=0.17.32",
        ),
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
