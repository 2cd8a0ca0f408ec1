# SPDX-License-Identifier: Apache-2.0
"""Move a stopped VM to other carriers: redefine it and its record in one step."""

from __future__ import annotations

from vgpuctl.backends import backend_for
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.model.vm import Vm, VmRecord
from vgpuctl.ports.step import Step
from vgpuctl.steps.attach import RedefineDomain


def move_steps(vm: Vm, old_record: VmRecord, new_record: VmRecord, xml: str) -> tuple[Step, ...]:
    """Return the step that redefines a VM; both records name the same vGPUs in the same order.

    An mdev keeps its UUID on any GPU, so only the record changes.
    """
    pairs = [(old, new) for old, new in zip(old_record.vgpus, new_record.vgpus, strict=True) if old != new]
    hostdev_changes = tuple(
        (old.carrier, backend_for(new.backend).hostdev(new)) for old, new in pairs if old.carrier != new.carrier
    )
    descriptions = tuple(f"{old.profile or old.backend}: {old.function} -> {new.function}" for old, new in pairs)
    new_xml = edit_domain(xml, DomainEdit(hostdev_changes=hostdev_changes, record=new_record))
    return (RedefineDomain(vm.name, vm.uuid, new_xml, xml, descriptions),)
