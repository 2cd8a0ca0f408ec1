# SPDX-License-Identifier: Apache-2.0
"""install-host, uninstall-host and restore-host, from the command line to the printed result."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.unit.cli.conftest import Ran


def test_install_and_uninstall(sim: Callable[[str], Ran], tmp_path: Path) -> None:
    assert "/etc/libvirt/hooks/qemu.d/vgpuctl" in sim("install-host --dry-run").out
    first = sim("install-host --restart-libvirt --json")
    assert first.status == 0, first.out
    assert first.document["changed"]
    assert any("no systemd" in note for note in first.document["data"]["notes"])
    assert not sim("install-host --json").document["changed"]
    hook = next(tmp_path.rglob("etc/libvirt/hooks/qemu.d/vgpuctl"))
    assert "-m vgpuctl.hook" in hook.read_text()
    (hook.parents[3] / "vgpuctl" / "host.yaml").write_text("version: 1\n")
    assert "remove" in sim("uninstall-host --dry-run").out
    assert sim("uninstall-host --restart-libvirt --json").document["changed"]
    assert not hook.exists()
    assert not sim("uninstall-host --json").document["changed"]


def test_uninstall_twice(sim: Callable[[str], Ran], tmp_path: Path) -> None:
    assert sim("install-host").status == 0
    assert sim("uninstall-host --json").document["changed"]
    again = sim("uninstall-host --json").document
    assert (again["changed"], again["data"]["steps"]) == (False, [])
    assert list(tmp_path.rglob("etc/vgpuctl")) == []
    assert sim("cordon 0000:3b:00.0").status == 0
    assert [path.name for path in tmp_path.rglob("etc/vgpuctl/*")] == ["host.yaml"]


def test_after_a_reboot_restore_host_creates_the_vgpus(sim: Callable[[str], Ran]) -> None:
    for name in ("one", "two"):
        assert sim(f"create-vm {name} --profile A100-4C").status == 0
    assert sim("sim reboot").status == 0
    assert sim("restore-host --dry-run").out.count("create vGPU") == 2
    done = sim("restore-host --json").document
    assert [entry["name"] for entry in done["data"]["restored"]] == ["one", "two"]
    assert sim("restore-host").out == "nothing to do\n"


def test_what_cannot_be_restored_is_exit_1_with_a_list(sim: Callable[[str], Ran], tmp_path: Path) -> None:
    assert sim("create-vm one --profile A100-4C").status == 0
    config = next(tmp_path.rglob("etc/vgpuctl")) / "host.yaml"
    config.write_text(
        "version: 1\nboot: {deadline_seconds: 1}\n"
        "vgpus: {spare: {profile: A100-4C, gpu: '0000:99:00.0', carrier: '0000:99:00.4'}}\n"
    )
    assert sim("sim reboot").status == 0
    ran = sim("restore-host --json")
    assert ran.status == 1
    assert [entry["name"] for entry in ran.document["error"]["facts"]["restored"]] == ["one"]
    assert "vgpu spare: the GPU 0000:99:00.0 does not exist, 1 seconds after" in ran.document["error"]["message"]
