# SPDX-License-Identifier: Apache-2.0
"""Without root, every command that changes this host fails with one line before it reads anything."""

from __future__ import annotations

import json
import shlex

import pytest

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
LINES = (
    "install-host",
    "uninstall-host",
    "create-vm vdi-1 --profile A100-4C",
    "create-vm 'vdi-{}' --profile A100-4C --count 3",
    "start-vm vdi-1",
    "stop-vm vdi-1",
    "reboot-vm vdi-1",
    "delete-vm vdi-1",
    "attach-vgpu vdi-1 --profile A100-4C",
    "detach-vgpu vdi-1 --vgpu 0",
    "attach-gpu vdi-1 --gpus 1",
    "detach-gpu vdi-1 --gpu 0000:3b:00.0",
    "set-vm vdi-1 --vcpus 4",
    "resize-disk vdi-1 300GiB",
    "create-vgpu lab --profile A100-4C",
    "delete-vgpu lab",
    "set-mode A100 vgpu",
    "set-scheduler A100 --policy best_effort",
    "cordon A100",
    "uncordon A100",
    "apply",
    "reconcile-host",
    "restore-host",
    "doctor --fix",
)


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
