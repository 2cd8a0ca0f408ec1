# SPDX-License-Identifier: Apache-2.0
"""Whole PCI functions: a plain VF (`sriov-vf`), or a GPU with every function of its slot (`passthrough`).

There is no device to make: libvirt takes the function from its driver at start and gives it back at stop
(managed='yes'). What must be known before is whether anybody else holds it.
"""

from __future__ import annotations

from vgpuctl.backends.base import alias, require_iommu
from vgpuctl.errors import HostCannot, InUse, Refused
from vgpuctl.model.commands import vfs_off_hint
from vgpuctl.model.gpu import Function, Gpu, GroupMember
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.step import Step
from vgpuctl.model.vm import PromisedVgpu
from vgpuctl.model.wish import DesignHostdev

HARMLESS_DRIVERS = (None, "vfio-pci", "pci-stub")


class SriovVfKind:
    """The sriov-vf backend: one plain VF."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: Function, *, force_console: bool) -> None:
        """Check for the IOMMU."""
        require_iommu(function)

    def make(self, vgpu: PromisedVgpu, type_id: str | None, instances: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """Nothing: libvirt binds it at start."""
        return ()

    def move(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """Nothing: it has no placement that could be written."""
        return ()

    def remove(self, vgpu: PromisedVgpu) -> tuple[Step, ...]:
        """Nothing: libvirt gives it back at stop."""
        return ()

    def hostdev(self, vgpu: PromisedVgpu) -> DesignHostdev:
        """Refer to the function, managed."""
        return DesignHostdev("pci", vgpu.carrier, managed=True, alias=alias(vgpu))


class PassthroughKind(SriovVfKind):
    """The passthrough backend: the GPU's function and the others of its slot."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: Function, *, force_console: bool) -> None:
        """Refuse while VFs are on, while the console or a VM is on it, or when its IOMMU group is not free."""
        require_iommu(function)
        if gpu.vfs_enabled:
            raise HostCannot(
                f"{gpu.address} has {gpu.vfs_enabled} VFs enabled; all of it can be given to a VM only without VFs",
                hint=vfs_off_hint(gpu),
                check="vfs-on",
                gpu=gpu.address,
                vfs=gpu.vfs_enabled,
            )
        if gpu.console and not force_console:
            raise Refused(
                f"{gpu.address} is this host's console: {'; '.join(gpu.console)}",
                hint="--force-console takes it all the same; the host's screen goes dark",
                gpu=gpu.address,
                reasons=list(gpu.console),
            )
        if not gpu.display_class and function.driver not in HARMLESS_DRIVERS:
            raise InUse(
                f"{gpu.address} ({gpu.model}) is used by the host: its driver is {function.driver}",
                hint=f"take it from the host first, if nothing there needs it: {_detach(gpu.address)}",
                gpu=gpu.address,
                driver=function.driver,
            )
        self._check_group(snapshot, gpu)

    def _check_group(self, snapshot: Snapshot, gpu: Gpu) -> None:
        """Every other endpoint of the IOMMU group must be unused: the group goes to one VM (kernel vfio.rst)."""
        for member in gpu.group_members:
            holder = None if member.same_slot and _is_own(snapshot, gpu, member) else _vm_of(snapshot, member)
            if holder is not None:
                raise InUse(
                    f"{gpu.address} shares IOMMU group {gpu.iommu_group} with {member.address}, which {holder} has",
                    hint="a group goes to one VM as a whole; use a slot with a group of its own",
                    gpu=gpu.address,
                    member=member.address,
                    vm=holder,
                )
            if not member.same_slot and member.driver not in HARMLESS_DRIVERS:
                raise InUse(
                    f"{gpu.address} shares IOMMU group {gpu.iommu_group} with {member.address}, "
                    f"which the driver {member.driver} holds",
                    hint=f"unbind it if the host does not need it: {_detach(member.address)}",
                    gpu=gpu.address,
                    member=member.address,
                    driver=member.driver,
                )


def _is_own(snapshot: Snapshot, gpu: Gpu, member: GroupMember) -> bool:
    """Say whether a companion function is held by the VM that has the GPU itself (a start, not a new VM)."""
    holder = _vm_of(snapshot, member)
    return holder is not None and holder in {v.vm for v in snapshot.vgpus if v.carrier == gpu.address}


def _detach(address: str) -> str:
    return f"virsh nodedev-detach pci_{address.replace(':', '_').replace('.', '_')}"


def _vm_of(snapshot: Snapshot, member: GroupMember) -> str | None:
    taken = {(v.vm_uuid, v.carrier) for v in snapshot.vgpus}
    for vm in snapshot.vms:
        lends = vm.promise is not None and vm.promise.lends and (vm.uuid, member.address) not in taken
        if not lends and any(h.carrier == member.address for h in vm.hostdevs):
            return vm.name
    return next((c.vm for c in snapshot.claims if c.carrier == member.address), None)
