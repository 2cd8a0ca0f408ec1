# SPDX-License-Identifier: Apache-2.0
"""VMs of mode virtio-gpu: what QEMU needs to draw for them on the host's GPUs."""

from __future__ import annotations

from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    require_snapshot,
    shorten,
    unknown,
)
from vgpuctl.model.gpu import DRI, DRI_BY_PATH
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot


def _check_drawing(context: CheckContext, snapshot: Snapshot) -> Finding:
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    drawn = {vm.name: vm.render_node for vm in snapshot.vms if vm.render_node is not None}
    if not drawn:
        return not_applicable("QEMU draws for no VM here (mode virtio-gpu)")
    present = {f"{path}/{name}" for path in (DRI, DRI_BY_PATH) for name in context.folder(path).names or ()}
    missing = [f"VM {name} cannot start: {node} does not exist" for name, node in drawn.items() if node not in present]
    if missing:
        return fail(
            *shorten(missing),
            fix="vgpuctl list-gpus --columns address,driver,render-node; another GPU, while the VM is off: "
            "vgpuctl set-vm NAME --gpu ADDRESS",
        )
    if context.capabilities is not None and context.capabilities.has_opengl is False:
        return fail(
            f"libvirt reports no egl-headless: QEMU cannot draw for {', '.join(sorted(drawn))}",
            fix="apt-get install qemu-system-modules-opengl (on Debian 12 qemu-system-gui), then systemctl restart "
            "libvirtd",
        )
    return ok(
        f"QEMU can draw for {count_text(len(drawn), 'VM')}: {', '.join(sorted({str(n) for n in drawn.values()}))}"
    )


CHECKS = (
    Check(
        id="drawing",
        title="VMs for which QEMU draws on a GPU of the host",
        looks_at=f"the render nodes that VMs of mode virtio-gpu name, `{DRI}`, libvirt's domain capabilities",
        run=require_snapshot(_check_drawing),
        explains=("render-node", "opengl"),
        needs_vms=True,
        needs_capabilities=True,
        paths=PathsToRead(folders=(DRI, DRI_BY_PATH)),
    ),
)
