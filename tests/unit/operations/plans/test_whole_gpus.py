# SPDX-License-Identifier: Apache-2.0
"""The parts of a plan that only whole GPUs have: which a VM may get or lose, and the PCI window for them."""

from __future__ import annotations

import json

import pytest

from tests.values import A4C, a100, assigned, snapshot, vm
from vgpuctl.domain.domain_edit import pci_window_of
from vgpuctl.errors import NotFound, Refused
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import AssignedVgpu, Vm, VmRecord
from vgpuctl.operations.plans.change import with_gpu_fields
from vgpuctl.operations.plans.whole_gpus import (
    describe_record,
    refuse_adding_gpus,
    select_whole_gpus,
    whole_functions,
    window_steps,
)
from vgpuctl.value import replace

FIRST, SECOND = "0000:1a:00.0", "0000:1b:00.0"
BARS = {FIRST: (128 << 10) + 16, SECOND: (128 << 10) + 16}
XML = """<domain type='kvm'><name>vdi-001</name><cpu mode='host-passthrough'/><devices>
<controller type='pci' index='0' model='pcie-root'>%s</controller></devices></domain>"""


def function(index: int, gpu: str, number: int = 0) -> AssignedVgpu:
    address = f"{gpu[:-1]}{number}"
    return AssignedVgpu(index, Backend.PASSTHROUGH, gpu, address, address, None)


def with_gpus(*vgpus: AssignedVgpu, **fields: object) -> tuple[Vm, VmRecord]:
    owner = vm(1, *vgpus)
    assert owner.record is not None
    return owner, replace(owner.record, request_json=json.dumps({"mode": "passthrough", **fields}))


def test_all_functions_of_a_gpu_are_selected_by_its_address():
    owner, record = with_gpus(function(0, FIRST), function(1, FIRST, 1), function(2, SECOND))
    assert [v.index for v in select_whole_gpus(owner, record, ["1a:00.0"])] == [0, 1]
    with pytest.raises(NotFound) as raised:
        select_whole_gpus(owner, record, ["0000:99:00.0"])
    assert raised.value.hint == f"it has {FIRST}, {SECOND}; vgpuctl show-vm vdi-001"
    assert describe_record(owner, record) == "record that vdi-001 has 2 whole GPUs"
    assert len(whole_functions(record)) == 3


def test_a_vm_that_runs_or_has_vgpus_is_refused():
    owner, record = with_gpus(function(0, FIRST))
    refuse_adding_gpus(owner, record, live=False)
    with pytest.raises(Refused, match="only while it is off"):
        refuse_adding_gpus(owner, record, live=True)
    gpu = a100()
    with pytest.raises(Refused, match="has A100-4C: a VM has either"):
        refuse_adding_gpus(*with_gpus(assigned(gpu, A4C)), live=False)


@pytest.mark.parametrize(
    ("current", "pci_window", "expected"),
    [
        ("", None, 512),
        ("<pcihole64 unit='KiB'>268435456</pcihole64>", None, 512),
        ("<pcihole64 unit='KiB'>1073741824</pcihole64>", None, None),  # a larger one stays
        ("", "none", None),
        ("", "1TiB", 1024),
    ],
)
def test_the_window_grows_to_what_the_gpus_need(current, pci_window, expected):
    owner, record = with_gpus(function(0, FIRST), function(1, SECOND), pci_window=pci_window)
    steps, notes = window_steps(snapshot(), owner, record, XML % current, BARS)
    assert notes == ()
    if expected is None:
        assert steps == ()
        return
    (step,) = steps
    assert pci_window_of(step.xml) == expected << 10  # type: ignore[attr-defined]
    assert '<maxphysaddr mode="passthrough"/>' in step.xml  # type: ignore[attr-defined]


def test_a_machine_without_pci_express_is_refused():
    owner, record = with_gpus(function(0, FIRST))
    with pytest.raises(Refused, match="only a q35 machine has room for big BARs"):
        window_steps(snapshot(), owner, record, "<domain><name>old</name><devices/></domain>", BARS)


def test_another_programs_vm_gets_a_note_and_no_window():
    owner, record = with_gpus(function(0, FIRST))
    steps, (note,) = window_steps(snapshot(), owner, replace(record, created_vm=False), XML % "", BARS)
    assert steps == ()
    assert "virsh edit vdi-001, <pcihole64 unit='KiB'>268435456</pcihole64>" in note


@pytest.mark.parametrize(
    ("before", "names", "after"),
    [
        ({}, (SECOND,), {"gpus": 2}),  # any GPU: it stays so
        ({"gpu": FIRST}, (SECOND,), {"gpus": 2, "gpu": [FIRST, SECOND]}),
        ({"gpu": "H100"}, ("H100",), {"gpus": 2, "gpu": "H100"}),
        ({"gpu": ["0000:99:00.0", FIRST], "gpus": 3}, (), {"gpus": 2, "gpu": FIRST}),
    ],
)
def test_the_recorded_request_follows_the_gpus_that_it_has(before, names, after):
    _, record = with_gpus(function(0, FIRST), function(1, SECOND), **before)
    assert with_gpu_fields(record, names).request_fields == {"mode": "passthrough", **after}


def test_a_vm_with_vgpus_alone_keeps_its_request():
    owner = vm(1, assigned(a100(), A4C))
    assert owner.record is not None
    assert with_gpu_fields(owner.record) is owner.record
