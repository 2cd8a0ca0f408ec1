# SPDX-License-Identifier: Apache-2.0
"""A record results in one claim for each of its carriers."""

from __future__ import annotations

from tests.values import MACHINE, ME, T2Q, assigned, t4, vm_uuid
from vgpuctl.model.vm import Operation, RecordState, VmRecord
from vgpuctl.operations.claim import build_claims


def test_every_carrier_is_claimed_for_the_vm():
    vgpus = tuple(assigned(t4(), T2Q, index=n, carrier=vm_uuid(n + 10)) for n in range(2))
    record = VmRecord(RecordState.READY, vm_uuid(1), MACHINE, vgpus, (), "{}")
    claims = build_claims("vm", record, Operation("1f", ME, "vgpuctl test"))
    assert [c.carrier for c in claims] == [vm_uuid(10), vm_uuid(11)]
    assert {(c.vm, c.vm_uuid, c.process, c.profile) for c in claims} == {("vm", vm_uuid(1), ME, "T4-2Q")}


def test_a_claim_tells_of_its_vms_spread_group_before_a_definition_does():
    record = VmRecord(RecordState.CREATING, vm_uuid(1), MACHINE, (assigned(t4(), T2Q),), (), '{"spread_group":"exam"}')
    (claim,) = build_claims("vm", record, Operation("1f", ME, "vgpuctl test"))
    assert claim.spread_group == "exam"
