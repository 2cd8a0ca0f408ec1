# SPDX-License-Identifier: Apache-2.0
"""Every domain is read; one that cannot be understood is named and costs nobody else anything."""

from __future__ import annotations

from tests.worlds import create, open_host, wish
from vgpuctl.domain.parse import refers_to_more
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.observe.vms import read_vm
from vgpuctl.model.records import DomainRecord
from vgpuctl.model.vm import VmState
from vgpuctl.value import replace


class _With:
    """A hypervisor with one more domain."""

    def __init__(self, inner, record):
        self._inner, self._record = inner, record

    def domains(self):
        return (*self._inner.domains(), self._record)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_a_domain_that_cannot_be_understood_is_named_and_the_others_are_seen(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    broken = DomainRecord("broken", "u", VmState.STOPPED, "<not-a-domain/>")
    world = replace(host.world, hypervisor=_With(host.world.hypervisor, broken))
    look = observe(world, Want())
    assert [v.name for v in look.vms] == ["vm"]
    assert any("broken" in w for w in look.warnings)


def test_a_device_that_only_the_running_domain_has_counts_too(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    record = host.world.hypervisor.find_domain("vm")
    more = "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x3b' slot='0x00' "
    more += "function='0x7'/></source></hostdev></devices>"
    plugged = replace(record, live_xml=record.live_xml.replace("</devices>", more))
    assert [h.carrier for h in read_vm(host.world, plugged).hostdevs] == ["0000:3b:00.4", "0000:3b:00.7"]


def test_the_running_domain_is_parsed_only_when_it_refers_to_more(tmp_path):
    host = open_host(tmp_path)
    create(host.world, wish("A100-4C", name="vm"))
    record = host.world.hypervisor.find_domain("vm")
    assert record.live_xml != record.xml
    assert not refers_to_more(record.live_xml, record.xml)
    assert refers_to_more(record.live_xml, record.xml.replace("0x3b", "0x3c"))
    unparsed = replace(record, live_xml=record.live_xml.removesuffix("</domain>"))
    assert [h.carrier for h in read_vm(host.world, unparsed).hostdevs] == ["0000:3b:00.4"]
