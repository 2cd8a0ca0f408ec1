# SPDX-License-Identifier: Apache-2.0
"""Every domain is read; one that cannot be understood is named and costs nobody else anything."""

from __future__ import annotations

import pytest

from tests.worlds import create, open_host, wish
from vgpuctl.domain.parse import refers_to_more
from vgpuctl.domain.sources import names_more, sources_of
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.observe.vms import read_vm
from vgpuctl.errors import InUse
from vgpuctl.model.records import DomainRecord
from vgpuctl.model.vm import VmState
from vgpuctl.model.wish import ExistingDisk
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


def test_a_base_that_only_the_running_domain_names_is_no_disk_of_another_vm(tmp_path):
    """As after a snapshot with virsh: the record and the config name the top alone."""
    text = (
        "version: 1\nstorage: {pools: [{name: default}]}\nimages: [{path: /srv/below.qcow2}]\ngpus: [{model: A100}]\n"
    )
    host = open_host(tmp_path, text=text)
    create(host.world, wish("A100-4C", name="vm"))
    record = host.world.hypervisor.find_domain("vm")
    (top,) = sources_of(record.xml).files
    below = "<backingStore type='file' index='2'><format type='qcow2'/><source file='/srv/below.qcow2' index='2'/>"
    live = record.live_xml.replace(
        f"<source file='{top}'/>", f"<source file='{top}'/>{below}<backingStore/></backingStore>"
    ).replace(f'<source file="{top}"/>', f'<source file="{top}"/>{below}<backingStore/></backingStore>')
    assert live != record.live_xml
    running = replace(record, live_xml=live)
    assert read_vm(host.world, running).backing == ((top, "/srv/below.qcow2"),)

    class Only(_With):
        def domains(self):
            return (self._record,)

    world = replace(host.world, hypervisor=Only(host.world.hypervisor, running))
    with pytest.raises(InUse, match=f"/srv/below.qcow2 is the base image of vm's disk {top}"):
        create(world, wish("A100-4C", name="v2", disks=(ExistingDisk("/srv/below.qcow2"),)))


def test_the_bases_of_the_record_are_no_reason_to_parse_the_running_domain():
    live = "<disk><backingStore type='file'>\n<source file='/a'/><backingStore/></backingStore></disk>"
    assert not names_more(live, {"/a"})
    assert names_more(live, {"/b"})
    assert not names_more("<disk><backingStore/></disk>", ())
