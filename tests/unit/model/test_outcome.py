# SPDX-License-Identifier: Apache-2.0
"""The VMs and GPUs of a call. What each command puts there is tested with the audit entries (tests/unit/library)."""

from __future__ import annotations

import pytest

from tests.values import A4C, a100, assigned, claim, vm_uuid
from vgpuctl.model.outcome import Subjects
from vgpuctl.model.vm import GPU_SETUP_CLAIM, HOST_VGPU_CLAIM_PREFIX
from vgpuctl.value import replace

GPU = "0000:3b:00.0"


def test_an_error_names_a_vm_and_a_gpu_by_its_address() -> None:
    changed = Subjects()
    for facts in (
        {"vm": "a", "gpu": "3b:00.0"},
        {"vm": GPU_SETUP_CLAIM, "gpu": "A100"},
        {"vm": None, "gpus": ["0000:3f:00.0"]},
        {"stays": ["c", "b"]},
    ):
        changed.add_error(facts)
    assert (changed.vms, changed.gpus) == (("a", "b", "c"), (GPU,))


def test_a_uuid_that_the_caller_typed_is_the_vm_that_an_operation_found() -> None:
    changed = Subjects()
    changed.add_vms((vm_uuid(1), vm_uuid(2)))
    changed.add_vm("vdi-001", vm_uuid(1))
    assert changed.vms == (vm_uuid(2), "vdi-001")


@pytest.mark.parametrize(
    ("holder", "vms"), [("vdi-000", ("vdi-000",)), (GPU_SETUP_CLAIM, ()), (f"{HOST_VGPU_CLAIM_PREFIX}lab", ())]
)
def test_a_claim_names_its_gpu_and_only_a_vm(holder: str, vms: tuple[str, ...]) -> None:
    changed = Subjects()
    changed.add_claims((replace(claim(assigned(a100(), A4C), 0), vm=holder),))
    assert (changed.vms, changed.gpus) == (vms, (GPU,))
