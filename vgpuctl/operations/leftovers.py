# SPDX-License-Identifier: Apache-2.0
"""What libvirt keeps of a VM that is off besides its definition, such as memory that was saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.errors import InUse, LibvirtFailed
from vgpuctl.model.port_values import DomainLeftovers
from vgpuctl.model.vm import Vm
from vgpuctl.operations.guards import deleted_meanwhile

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def read_domain_leftovers(host: Host, vm: Vm) -> DomainLeftovers:
    """Return what undefine would remove besides a VM's definition.

    Raises:
        NotFound: another vgpuctl deleted the VM just now.
    """
    try:
        return host.hypervisor.leftovers(vm.uuid)
    except LibvirtFailed:
        if host.hypervisor.find_domain(vm.uuid) is not None:
            raise
        raise deleted_meanwhile(vm) from None


def refuse_managed_save(host: Host, vm: Vm) -> None:
    """Refuse to change the vGPUs of a VM with a managed save: its saved memory goes on only with those that it has."""
    if read_domain_leftovers(host, vm).managed_save:
        raise InUse(
            f"{vm.name} has a managed save, which can be restored only with the vGPUs that it has",
            hint=f"vgpuctl start-vm {vm.name}, then vgpuctl stop-vm {vm.name}; or virsh managedsave-remove {vm.name} "
            "discards the saved memory",
            vm=vm.name,
        )
