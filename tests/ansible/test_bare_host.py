# SPDX-License-Identifier: Apache-2.0
"""site.yml on a bare Debian over SSH: real sshd, apt and pip; stand-ins for GRUB, systemd, libvirt and NVIDIA."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import wheels
from tests.ansible.bare import Bare
from tests.ansible.debs import write_deb
from tests.ansible.plays import ROOT, Ran
from tests.ansible.stand_ins import HARDWARE, RED_HAT, RED_HATS_PROGRAMS, RUN, RUN_FILE

pytestmark = pytest.mark.long
SITE = ROOT / "ansible/playbooks/site.yml"
DMAR = "/sys/firmware/acpi/tables/DMAR"
SPEC = {"version": 1, "gpus": {"A100": {"mode": "vgpu"}}}
POOL = {
    "desktop_pool_count": 2,
    "desktop_pool_profile": "A100-4C",
    "desktop_pool_image": "/srv/images/ubuntu-24.04.qcow2",
}
SOURCE = "/srv/vgpuctl-0.1.0-py3-none-any.whl"
PENDING_TASK = "Show why a reboot is pending"
ONLY_IN_CHECK_MODE = {
    "Show which packages would be installed",
    "Show which driver would be installed",
    "Show what would be installed",
}
NOT_IN_CHECK_MODE = {
    "Install packages with apt",
    "Create a directory for the driver's file",
    "Copy the driver's file",
    "Unload nouveau, which blocks NVIDIA's installer",
    "Run the driver's installer",
    "Start libvirt, now and at each boot",
    "Start libvirt's network, now and at each boot",
    "Install vgpuctl",
    "Install the boot unit and libvirt's hook",
    "Restart libvirt to load a new hook; running VMs keep running",
    "Set up the GPUs from host.yaml",
    "Desktops of the pool",
}
"""Tasks that need a program which the first run installs; check mode reports that."""


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Bare]:
    host = Bare(tmp_path, HARDWARE)
    yield host
    host.close()


def names(ran: Ran) -> set[str]:
    """Return the tasks that changed something, without the role's name."""
    return {task.rpartition(" : ")[2] for _, task in ran.changed}


def pending(ran: Ran) -> list[str]:
    """Return the messages about a pending reboot."""
    return [t.result["msg"] for t in ran.tasks if t.task.endswith(PENDING_TASK) and t.status == "ok"]


def test_a_bare_host_has_desktops_after_one_reboot_and_a_second_run_changes_nothing(bare: Bare) -> None:
    (made := bare.place / "wheels").mkdir()
    wheels.make(made)
    shutil.copytree(made, bare.root / "srv/wheels")
    (bare.place / RUN_FILE).write_text(RUN)
    variables = {"vgpuctl_wheelhouse": "/srv/wheels", "gpu_driver_file": str(bare.place / RUN_FILE), **POOL}
    variables["vgpuctl_host_spec"] = SPEC

    before = bare.layer()
    checked = bare.playbook(SITE, "--check", "--diff", **variables)
    assert checked.status == 0, checked.output
    assert bare.layer() == before

    bare.write("/fake/console-on-nouveau", "")
    refused = bare.playbook(SITE, "--extra-vars", "gpu_host_reboot=false", **variables)
    assert "nouveau is in use, by a console or a display: modprobe: FATAL" in refused.failed[0].result["msg"]
    assert "run --silent" not in bare.text("/fake/done")
    (bare.root / "fake/console-on-nouveau").unlink()

    waiting = bare.playbook(SITE, "--extra-vars", "gpu_host_reboot=false", **variables)
    assert waiting.status == 0, waiting.output
    assert pending(waiting) == [
        "A reboot is pending: the kernel runs without intel_iommu=on iommu=pt;"
        " nvidia 550.90.05 is installed, and none is loaded. gpu_host_reboot is false, so reboot the host by hand"
    ]
    assert "reboot" not in bare.text("/fake/done").split("\n")
    assert "Desktops of the pool" not in names(waiting)

    first = bare.playbook(SITE, **variables)
    assert first.status == 0, first.output
    assert bare.text("/fake/done").split("\n").count("reboot") == 1
    (made,) = [t for t in first.tasks if t.task.endswith("Desktops of the pool")]
    assert made.changed
    done = names(refused) | names(waiting) | names(first)
    assert names(checked) - ONLY_IN_CHECK_MODE == done - NOT_IN_CHECK_MODE

    bare.write("/run/reboot-required", "")
    bare.write("/fake/vms", "vdi-001\n")
    again = bare.playbook(SITE, **variables)
    assert (again.status, again.changed) == (0, []), again.output
    assert pending(again) == [
        "A reboot is pending: /run/reboot-required exists. These VMs run, so reboot the host by hand: vdi-001"
    ]

    _assert_the_package_replaces_the_wheels(bare)


def _assert_the_package_replaces_the_wheels(bare: Bare) -> None:
    """The stand-in for the package runs the same program, in a copy of the environment that the role removes."""
    shutil.copytree(bare.root / "opt/vgpuctl", bare.root / "srv/environment", symlinks=True)
    program = '#!/bin/sh\nexec /srv/environment/bin/python -m vgpuctl "$@"\n'
    deb = write_deb(bare.place, "vgpuctl", {"/usr/bin/vgpuctl": program})
    play = bare.place / "package.yml"
    play.write_text(json.dumps([{"hosts": "all", "roles": ["vgpuctl.vgpuctl.vgpuctl"]}]))

    before = bare.layer()
    checked = bare.playbook(play, "--check", vgpuctl_deb=str(deb))
    (no_file,) = bare.playbook(play, vgpuctl_deb="/srv/vgpuctl_2.0_all.deb").failed
    assert bare.layer() == before
    assert "vgpuctl_deb is '/srv/vgpuctl_2.0_all.deb': it must be a file on the machine that" in no_file.result["msg"]
    first = bare.playbook(play, vgpuctl_deb=str(deb))
    again = bare.playbook(play, vgpuctl_deb=str(deb))

    removal = "Remove the environment of earlier wheels, and its link"
    assert {"Show which package would be installed", removal} <= names(checked), checked.output
    assert {"Install the Debian package with apt", removal} <= names(first), first.output
    assert not (bare.root / "opt/vgpuctl").exists()
    assert (again.status, again.changed) == (0, []), again.output


def test_the_red_hat_family_uses_rpm_and_grubby(tmp_path: Path) -> None:
    """The test covers only what the stand-ins support. There is no dnf, so the run ends at the driver's RPM package."""
    driver = tmp_path / "nvidia-vgpu-550.90.05.x86_64.rpm"
    driver.touch()
    bare = Bare(tmp_path, {**HARDWARE, **RED_HAT, SOURCE: ""}, RED_HATS_PROGRAMS)
    try:
        checked = bare.playbook(SITE, "--check", gpu_driver_file=str(driver), vgpuctl_source=SOURCE)
        ran = bare.playbook(SITE, gpu_driver_file=str(driver), vgpuctl_source=SOURCE)
        done = bare.text("/fake/done").split("\n")
    finally:
        bare.close()
    assert checked.status == 0, checked.output
    assert {"Show which driver would be installed", "Set the parameters of the kernels"} <= names(checked)
    assert "Show which packages would be installed" not in names(checked)
    assert [t.task.rpartition(" : ")[2] for t in ran.failed] == ["Install the driver's RPM package"]
    assert {"start virtqemud.socket", "grubby --update-kernel=ALL --args=intel_iommu=on iommu=pt"} <= set(done)


def test_a_run_that_cannot_succeed_is_refused_before_any_change(tmp_path: Path) -> None:
    files = {path: text for path, text in HARDWARE.items() if path != DMAR}
    bare = Bare(tmp_path, {**files, SOURCE: ""})
    try:
        before = bare.layer()
        (no_iommu,) = bare.playbook(SITE, vgpuctl_source=SOURCE).failed
        (no_index,) = bare.playbook(SITE, "--check").failed
        (no_wheels,) = bare.playbook(SITE, vgpuctl_wheelhouse="/srv/wheels", vgpuctl_oldest_python="3.99").failed
        (no_driver,) = bare.playbook(SITE, gpu_driver_file="/srv/none.run").failed
        assert bare.layer() == before
    finally:
        bare.close()
    assert no_index.result["msg"].startswith("there is no source for vgpuctl: no wheelhouse, and no index")
    assert "and vgpuctl needs 3.99 or newer: use a newer distribution; vgpuctl_wheelh" in no_wheels.result["msg"]
    assert "Enable VT-d (Intel) or AMD-Vi (AMD) in the firmware" in no_iommu.result["msg"]
    assert "The driver '/srv/none.run' cannot be installed" in no_driver.result["msg"]
