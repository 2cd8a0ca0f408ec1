# SPDX-License-Identifier: Apache-2.0
"""VMs as results: who owns them, and the row of a list has the same values as the whole result."""

from __future__ import annotations

from tests.values import A4C, a100, assigned, snapshot, vm
from vgpuctl.operations.plans.results import ownership_of, vm_result, vm_row
from vgpuctl.value import field_names, replace


def test_owners_in_words():
    ours = vm(1)
    assert ownership_of(ours) == "managed"
    assert ownership_of(replace(ours, record=None)) == "unmanaged"
    assert ownership_of(replace(ours, record=None, copied_record=ours.record)) == "copy"
    assert vm_result(snapshot(a100()), ours).record == "ready"


def test_a_row_has_the_values_of_the_whole_result():
    gpu = a100()
    one = vm(1, assigned(gpu, A4C))
    observed = snapshot(gpu, vms=[one])
    row, whole = vm_row(observed, one), vm_result(observed, one)
    assert [getattr(row, name) for name in field_names(row)] == [getattr(whole, name) for name in field_names(row)]
    assert [(v.carrier, v.vm) for v in row.vgpus] == [(assigned(gpu, A4C).carrier, one.name)]
