# SPDX-License-Identifier: Apache-2.0
"""Move a stopped VM to other carriers: its definition and its record, in one step."""

from __future__ import annotations

from vgpuctl.backends import of
from vgpuctl.domain.edit import Edit, edited
from vgpuctl.model.step import Step
from vgpuctl.model.vm import Promise, Vm
from vgpuctl.steps.plug import Redefine


def move_steps(vm: Vm, was: Promise, now: Promise, xml: str) -> tuple[Step, ...]:
    """Return the step that switches a VM over; both records name the same vGPUs in the same order.

    An mdev has the same UUID wherever it is, so only the record changes.
    """
    pairs = [(old, new) for old, new in zip(was.vgpus, now.vgpus, strict=True) if old != new]
    exchange = tuple((old.carrier, of(new.backend).hostdev(new)) for old, new in pairs if old.carrier != new.carrier)
    words = tuple(f"{old.profile or old.backend}: {old.function} -> {new.function}" for old, new in pairs)
    changed = edited(xml, Edit(exchange=exchange, promise=now))
    return (Redefine(vm.name, vm.uuid, changed, xml, words),)
