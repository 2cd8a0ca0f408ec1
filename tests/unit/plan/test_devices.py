# SPDX-License-Identifier: Apache-2.0
"""What makes a VM's missing devices again, and who has the place when that cannot be."""

from __future__ import annotations

import pytest

from tests.values import A4C, MACHINE, a100, promised, snapshot, vm_uuid
from vgpuctl.errors import InUse
from vgpuctl.model.vm import Promise, PromiseState, Vm, VmState
from vgpuctl.plan.devices import device_steps, force_console

GPU = a100()


def vm(number: int = 0, spec: str = "{}") -> Vm:
    promise = Promise(PromiseState.READY, vm_uuid(number), MACHINE, (promised(GPU, A4C),), (), spec)
    return Vm(f"vdi-{number:03d}", vm_uuid(number), VmState.STOPPED, 1024, 1, promise=promise)


def test_what_is_missing_is_made_and_what_is_there_is_left():
    mine = vm()
    assert mine.promise is not None
    assert [s.describe() for s in device_steps(snapshot(GPU, vms=(mine,)), mine, mine.promise)] == [
        "make vGPU A100-4C on 0000:3b:00.4 (type 468)"
    ]
    first, *rest = GPU.functions
    made = a100(functions=(first.__class__(first.address, first.path, vfio_dev=True, current_type="468"), *rest))
    assert device_steps(snapshot(made, vms=(mine,)), mine, mine.promise) == ()


def test_a_function_that_another_vm_has_is_refused_with_its_name():
    mine = vm()
    assert mine.promise is not None
    first, *rest = GPU.functions
    made = a100(functions=(first.__class__(first.address, first.path, vfio_dev=True, current_type="469"), *rest))
    with pytest.raises(InUse, match="carries A100-5C, not A100-4C as vdi-000 needs"):
        device_steps(snapshot(made, vms=(mine,)), mine, mine.promise)


def test_the_console_is_taken_only_by_a_vm_that_was_made_so():
    assert force_console(vm(spec='{"force_console": true}').promise)
    assert not force_console(vm(spec="").promise)
