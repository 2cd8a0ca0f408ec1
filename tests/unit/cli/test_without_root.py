# SPDX-License-Identifier: Apache-2.0
"""Without root, every command that changes this host fails with one line before it reads anything."""

from __future__ import annotations

import json
import shlex

import pytest

from tests.command_cases import CASES, lines
from tests.unit.cli.command_tree import has_dry_run
from tests.unit.cli.conftest import child

_AS_NOBODY = """
import contextlib, io, importlib, json, os, pkgutil, sys
import vgpuctl
for module in pkgutil.walk_packages(vgpuctl.__path__, "vgpuctl."):  # nobody may not read a checkout below /root
    if not module.name.endswith("__main__") and "remote.bootstrap_script" not in module.name:
        with contextlib.suppress(ImportError):
            importlib.import_module(module.name)
from vgpuctl.cli.entry import main
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
words = json.loads(sys.argv.pop())
sys.argv[:] = ["vgpuctl", *words]
sys.exit(main(words))
"""
CHANGES = [name for name, case in CASES.items() if has_dry_run(name) and "{spec}" not in case.words]
"""All but ensure-vm, which reads its spec first."""
LINES = [line for name in CHANGES for line in lines(name, "vdi-1")]


@pytest.mark.parametrize("line", LINES)
def test_root_is_required_first(line: str) -> None:
    ran = child(json.dumps(shlex.split(line)), code=_AS_NOBODY)
    first, hint = ran.stderr.splitlines()
    assert (ran.returncode, ran.stdout) == (1, "")
    assert first.startswith("vgpuctl: root is required to change this host, and ")
    assert first.endswith("is not root   [os-error]")
    quoted = "'" in line
    assert hint == f"  hint: {'run the same command with sudo' if quoted else f'sudo vgpuctl {line}'}"


def test_root_is_required_in_json_and_not_by_a_dry_run() -> None:
    ran = child(json.dumps(["install-host", "--json"]), code=_AS_NOBODY)
    error = json.loads(ran.stdout)["error"]
    assert (ran.returncode, error["code"], error["exit_status"], error["undone"]) == (1, "os-error", 1, [])
    assert child(json.dumps(["install-host", "--dry-run"]), code=_AS_NOBODY).returncode == 0
