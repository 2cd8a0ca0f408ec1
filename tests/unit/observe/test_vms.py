# SPDX-License-Identifier: Apache-2.0
"""Every domain is read; an invalid one is named and does not affect the others."""

from __future__ import annotations

import pytest

from tests.hosts import create, open_sim_host, request
from vgpuctl.domain.domain_xml import has_unknown_backing_file, names_other_devices, parse_disk_sources
from vgpuctl.errors import InUse
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.request import ExistingDisk
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.vms import read_vm
from vgpuctl.value import replace


class _With:
    """A hypervisor with one more domain."""

    def __init__(self, inner, record):
        self._inner, self._record = inner, record

    def domains(self):
        return (*self._inner.domains(), self._record)

    def __getattr__(self, name):
        return getattr(self._inner, name)


def test_an_invalid_domain_is_named_and_the_others_are_seen(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    broken = DomainInfo("broken", "u", VmState.STOPPED, "<not-a-domain/>")
    ports = replace(host.ports, hypervisor=_With(host.ports.hypervisor, broken))
    observed = observe(ports, ReadScope())
    assert [v.name for v in observed.vms] == ["vm"]
    assert any("broken" in w for w in observed.warnings)


def test_a_device_that_only_the_running_domain_has_counts_too(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    record = host.ports.hypervisor.find_domain("vm")
    more = "<hostdev mode='subsystem' type='pci'><source><address domain='0x0000' bus='0x3b' slot='0x00' "
    more += "function='0x7'/></source></hostdev></devices>"
    plugged = replace(record, live_xml=record.live_xml.replace("</devices>", more))
    assert [h.carrier for h in read_vm(host.ports, plugged).hostdevs] == ["0000:3b:00.4", "0000:3b:00.7"]


def test_a_function_of_a_networks_pool_counts_while_the_vm_runs(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    record = host.ports.hypervisor.find_domain("vm")
    function = "<source><address type='pci' domain='0x0000' bus='0x3b' slot='0x00' function='0x7'/></source>"
    card = f"<interface type='hostdev' managed='yes'>{function}</interface></devices>"
    plugged = replace(record, live_xml=record.live_xml.replace("</devices>", card))
    vm = read_vm(host.ports, plugged)
    assert vm.live_carriers == {"0000:3b:00.4", "0000:3b:00.7"}
    assert vm.refers_to("0000:3b:00.7")


def test_the_running_domain_is_parsed_only_when_it_refers_to_more(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    record = host.ports.hypervisor.find_domain("vm")
    assert record.live_xml != record.xml
    assert not names_other_devices(record.live_xml, record.xml)
    assert names_other_devices(record.live_xml, record.xml.replace("0x3b", "0x3c"))
    assert names_other_devices(record.live_xml.replace("0x3b", "0x3c"), record.xml)
    unparsed = replace(record, live_xml=record.live_xml.removesuffix("</domain>"))
    assert [h.carrier for h in read_vm(host.ports, unparsed).hostdevs] == ["0000:3b:00.4"]


def test_a_base_that_only_the_running_domain_names_is_no_disk_of_another_vm(tmp_path):
    """As after a snapshot with virsh: the record and the config name the top alone."""
    text = (
        "version: 1\nstorage: {pools: [{name: default}]}\nimages: [{path: /srv/below.qcow2}]\ngpus: [{model: A100}]\n"
    )
    host = open_sim_host(tmp_path, text=text)
    create(host.ports, request("A100-4C", name="vm"))
    record = host.ports.hypervisor.find_domain("vm")
    (top,) = parse_disk_sources(record.xml).files
    below = "<backingStore type='file' index='2'><format type='qcow2'/><source file='/srv/below.qcow2' index='2'/>"
    live = record.live_xml.replace(
        f"<source file='{top}'/>", f"<source file='{top}'/>{below}<backingStore/></backingStore>"
    ).replace(f'<source file="{top}"/>', f'<source file="{top}"/>{below}<backingStore/></backingStore>')
    assert live != record.live_xml
    running = replace(record, live_xml=live)
    assert read_vm(host.ports, running).backing_pairs == ((top, "/srv/below.qcow2"),)

    class Only(_With):
        def domains(self):
            return (self._record,)

    ports = replace(host.ports, hypervisor=Only(host.ports.hypervisor, running))
    with pytest.raises(InUse, match=f"/srv/below.qcow2 is the base image of vm's disk {top}"):
        create(ports, request("A100-4C", name="v2", disks=(ExistingDisk("/srv/below.qcow2"),)))


def test_the_bases_of_the_record_are_no_reason_to_parse_the_running_domain():
    live = "<disk><backingStore type='file'>\n<source file='/a'/><backingStore/></backingStore></disk>"
    assert not has_unknown_backing_file(live, {"/a"})
    assert has_unknown_backing_file(live, {"/b"})
    assert not has_unknown_backing_file("<disk><backingStore/></disk>", ())
