# SPDX-License-Identifier: Apache-2.0
"""What QEMU needs to draw for VMs on the host's GPUs."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import FAIL, NOT_APPLICABLE, OK, UNKNOWN, assert_verdict, case
from tests.values import a100, snapshot, vm
from vgpuctl.model.gpu import DRI, DRI_BY_PATH
from vgpuctl.model.port_values import HypervisorCapabilities, HypervisorStatus
from vgpuctl.value import replace

LINK = f"{DRI_BY_PATH}/pci-0000:3b:00.0-render"
DRAWN = snapshot(a100(), vms=(replace(vm(1), render_node=LINK), vm(2)))
PRESENT = {DRI: ["card0", "renderD128"], DRI_BY_PATH: ["pci-0000:3b:00.0-card", "pci-0000:3b:00.0-render"]}
REFUSED = HypervisorStatus(available=False, uri="qemu:///system", reason="refused")


def able(has_opengl):
    return HypervisorCapabilities(kvm=True, uefi=True, emulator="/usr/bin/qemu", has_opengl=has_opengl)


CASES = {
    "no such VM": case("drawing", NOT_APPLICABLE, snapshot=snapshot(a100(), vms=(vm(1),))),
    "libvirt is down": case("drawing", UNKNOWN, snapshot=snapshot(a100(), hypervisor=REFUSED)),
    "the node is there": case("drawing", OK, "1 VM", LINK, snapshot=DRAWN, folders=PRESENT, capabilities=able(True)),
    "libvirt does not tell": case("drawing", OK, snapshot=DRAWN, folders=PRESENT, capabilities=able(None)),
    "the GPU has another driver": case("drawing", FAIL, f"vdi-001 cannot start: {LINK}", "set-vm", snapshot=DRAWN),
    "QEMU has no OpenGL": case(
        "drawing", FAIL, "no egl-headless", "qemu-system-modules-opengl",
        snapshot=DRAWN, folders=PRESENT, capabilities=able(False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_each_host_has_its_verdict(name: str) -> None:
    assert_verdict(CASES[name])
