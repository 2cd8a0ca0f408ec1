# SPDX-License-Identifier: Apache-2.0
"""Whole PCI functions: a plain VF (`sriov-vf`), or a GPU with every function of its slot (`passthrough`).

There is no device to create: libvirt detaches the function from its driver at start and reattaches it at stop
(managed='yes'). vgpuctl only checks first whether anybody else holds it.
"""

from __future__ import annotations

from vgpuctl.backends.base import hostdev_alias, require_iommu
from vgpuctl.errors import HostCannot, InUse, Refused
from vgpuctl.model.gpu import Gpu, GpuFunction, IommuGroupMember
from vgpuctl.model.hint_commands import disable_vfs_hint
from vgpuctl.model.request import DesignHostdev
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.ports.step import Step

HARMLESS_DRIVERS = (None, "vfio-pci", "pci-stub")


class SriovVfBackend:
    """The sriov-vf backend: one plain VF."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool) -> None:
        """Check for the IOMMU."""
        require_iommu(function)

    def create_steps(self, vgpu: AssignedVgpu, type_id: str | None, gi_ids: tuple[int, ...] = ()) -> tuple[Step, ...]:
        """Return none: libvirt binds the function at start."""
        return ()

    def move_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return none: it has no writable placement."""
        return ()

    def remove_steps(self, vgpu: AssignedVgpu) -> tuple[Step, ...]:
        """Return none: libvirt reattaches the function at stop."""
        return ()

    def hostdev(self, vgpu: AssignedVgpu) -> DesignHostdev:
        """Refer to the function, managed."""
        return DesignHostdev("pci", vgpu.carrier, managed=True, alias=hostdev_alias(vgpu))


class PassthroughBackend(SriovVfBackend):
    """The passthrough backend: the GPU's function and the other functions of its slot."""

    def check(self, snapshot: Snapshot, gpu: Gpu, function: GpuFunction, *, force_console: bool) -> None:
        """Refuse a GPU that has VFs enabled, is the console or in use, or shares a busy IOMMU group."""
        require_iommu(function)
        if gpu.vfs_enabled:
            raise HostCannot(
                f"{gpu.address} has {gpu.vfs_enabled} VFs enabled; all of it can be given to a VM only without VFs",
                hint=disable_vfs_hint(gpu),
                check="vfs-on",
                gpu=gpu.address,
                vfs=gpu.vfs_enabled,
            )
        if gpu.console_reasons and not force_console:
            raise Refused(
                f"{gpu.address} is this host's console: {'; '.join(gpu.console_reasons)}",
                hint="--force-console takes it all the same; the host's screen goes dark",
                gpu=gpu.address,
                reasons=list(gpu.console_reasons),
            )
        if not gpu.is_display_class and function.driver not in HARMLESS_DRIVERS:
            raise InUse(
                f"{gpu.address} ({gpu.model}) is used by the host: its driver is {function.driver}",
                hint=f"take it from the host first, if nothing there needs it: {_detach_command(gpu.address)}",
                gpu=gpu.address,
                driver=function.driver,
            )
        self._check_group(snapshot, gpu)

    def _check_group(self, snapshot: Snapshot, gpu: Gpu) -> None:
        """Check that every other endpoint of the IOMMU group is unused: a group goes to one VM (kernel vfio.rst)."""
        for member in gpu.group_members:
            holder = None if member.same_slot and _is_same_vm(snapshot, gpu, member) else _find_holder(snapshot, member)
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
                    hint=f"unbind it if the host does not need it: {_detach_command(member.address)}",
                    gpu=gpu.address,
                    member=member.address,
                    driver=member.driver,
                )


def _is_same_vm(snapshot: Snapshot, gpu: Gpu, member: IommuGroupMember) -> bool:
    """Return whether the VM that has the GPU also holds a companion function (a start, not a new VM)."""
    holder = _find_holder(snapshot, member)
    return holder is not None and holder in {v.vm for v in snapshot.vgpus if v.carrier == gpu.address}


def _detach_command(address: str) -> str:
    return f"virsh nodedev-detach pci_{address.replace(':', '_').replace('.', '_')}"


def _find_holder(snapshot: Snapshot, member: IommuGroupMember) -> str | None:
    vgpu_carriers = {(v.vm_uuid, v.carrier) for v in snapshot.vgpus}
    for vm in snapshot.vms:
        is_unreserved = (
            vm.record is not None and vm.record.reserve_while_running and (vm.uuid, member.address) not in vgpu_carriers
        )
        if not is_unreserved and any(h.carrier == member.address for h in vm.hostdevs):
            return vm.name
    return next((c.vm for c in snapshot.claims if c.carrier == member.address), None)
