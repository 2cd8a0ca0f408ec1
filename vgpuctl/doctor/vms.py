# SPDX-License-Identifier: Apache-2.0
"""VMs whose definition would harm the host.

libvirt takes a function with managed='yes' away from its driver at the start of the VM. NVIDIA's vGPU driver does not
survive that on a VF that it serves itself: the start hangs in the kernel.
"""

from __future__ import annotations

from vgpuctl.doctor.check import Check, Finding, Look, fail, judged_by_host, not_applicable, ok, unknown
from vgpuctl.doctor.gpus import shortened
from vgpuctl.model.gpu import Backend
from vgpuctl.model.snapshot import Snapshot


def _managed(look: Look, snapshot: Snapshot) -> Finding:
    served = {f.address for g in snapshot.gpus if g.backend is Backend.VENDOR_VF for f in g.functions}
    if not served:
        return not_applicable("no GPU here has vendor-specific VFs")
    if not snapshot.hypervisor.available:
        return unknown("the VMs are not known: libvirt does not answer")
    wrong = [
        f"VM {vm.name}: {ref.carrier} with managed='yes'"
        for vm in snapshot.vms
        for ref in vm.hostdevs
        if ref.managed and ref.carrier in served
    ]
    if wrong:
        return fail(
            *shortened(wrong),
            fix="write managed='no' with virsh edit VM before it is started: else that hangs in the kernel until the"
            " host is rebooted",
        )
    return ok(f"no VM takes one of {len(served)} vendor-specific VFs from its driver")


CHECKS = (
    Check(
        id="managed-vfs",
        title="no VM takes a vendor-specific VF from its driver",
        looks_at="`managed` of the VMs' PCI devices",
        judge=judged_by_host(_managed),
        vms=True,
    ),
)
