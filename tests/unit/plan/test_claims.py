# SPDX-License-Identifier: Apache-2.0
"""A promise stands for one claim on each of its carriers."""

from __future__ import annotations

from tests.values import MACHINE, ME, T2Q, promised, t4, vm_uuid
from vgpuctl.model.vm import Promise, PromiseState
from vgpuctl.plan.claims import claims_for


def test_every_carrier_is_claimed_for_the_vm_by_the_process():
    vgpus = tuple(promised(t4(), T2Q, index=n, carrier=vm_uuid(n + 10)) for n in range(2))
    promise = Promise(PromiseState.READY, vm_uuid(1), MACHINE, vgpus, (), "{}")
    claims = claims_for("vm", promise, ME, "vgpuctl test")
    assert [c.carrier for c in claims] == [vm_uuid(10), vm_uuid(11)]
    assert {(c.vm, c.vm_uuid, c.process, c.profile) for c in claims} == {("vm", vm_uuid(1), ME, "T4-2Q")}


def test_a_claim_tells_of_its_vms_spread_group_before_a_definition_does():
    promise = Promise(PromiseState.MAKING, vm_uuid(1), MACHINE, (promised(t4(), T2Q),), (), '{"spread_group":"exam"}')
    (claim,) = claims_for("vm", promise, ME, "vgpuctl test")
    assert claim.spread_group == "exam"
