# SPDX-License-Identifier: Apache-2.0
"""Moving a stopped VM changes only the devices in its definition and its record."""

from __future__ import annotations

from lxml import etree

from tests.values import A4C, T2Q, a100, assigned, t4, vm
from vgpuctl.domain.domain_xml import parse_hostdevs
from vgpuctl.domain.record import ROOT_TAG, record_from_xml
from vgpuctl.operations.place_and_start import move_steps
from vgpuctl.operations.steps.attach import RedefineDomain
from vgpuctl.value import replace

XML = """<domain type='kvm'><name>vdi-000</name><uuid>00000000-0000-0000-0000-000000000000</uuid><devices>
<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' bus='0x3b' slot='0x00'
 function='0x4'/></source><alias name='ua-vgpuctl-0'/><address type='pci' bus='0x07'/></hostdev>
<hostdev mode='subsystem' type='pci' managed='no'><source><address domain='0x0000' bus='0x3b' slot='0x00'
 function='0x5'/></source><alias name='ua-vgpuctl-1'/><address type='pci' bus='0x08'/></hostdev>
</devices></domain>"""


def test_two_functions_may_change_places():
    gpu = a100()
    was = vm(0, assigned(gpu, A4C, 0, index=0), assigned(gpu, A4C, 1, index=1))
    assert was.record is not None
    now = replace(was.record, vgpus=(assigned(gpu, A4C, 1, index=0), assigned(gpu, A4C, 2, index=1)))
    (step,) = move_steps(was, was.record, now, XML)
    assert isinstance(step, RedefineDomain)
    result = {h.alias: h.carrier for h in parse_hostdevs(step.xml)}
    assert result == {"ua-vgpuctl-0": "0000:3b:00.5", "ua-vgpuctl-1": "0000:3b:00.6"}
    root = etree.fromstring(step.xml)
    assert [a.get("bus") for a in root.findall("devices/hostdev/address")] == ["0x07", "0x08"]
    record = root.find(f"metadata/{ROOT_TAG}")
    assert record is not None
    assert record_from_xml(etree.tostring(record, encoding="unicode")) == now
    assert "A100-4C: 0000:3b:00.4 -> 0000:3b:00.5" in step.describe()


def test_an_mdev_on_another_gpu_changes_the_record_alone():
    here = assigned(t4(), T2Q, carrier="c0ffee00-0000-4000-8000-000000000000")
    was = vm(0, here)
    assert was.record is not None
    there = replace(here, gpu="0000:af:00.0", function="0000:af:00.0")
    (step,) = move_steps(was, was.record, replace(was.record, vgpus=(there,)), XML)
    assert isinstance(step, RedefineDomain)
    assert parse_hostdevs(step.xml) == parse_hostdevs(XML)
    assert 'gpu="0000:af:00.0"' in step.xml
