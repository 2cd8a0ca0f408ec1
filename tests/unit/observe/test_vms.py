# SPDX-License-Identifier: Apache-2.0
"""Every domain, claim and stuck write is read; an invalid one is named and does not affect the others."""

from __future__ import annotations

import pytest

from tests.faults import counted
from tests.hosts import create, living_operation, open_sim_host, request
from tests.values import A4C, a100, assigned, claim, vm
from vgpuctl.domain.domain_xml import has_unknown_backing_file, names_other_devices, parse_disk_sources
from vgpuctl.errors import Failed, FileFailed, InUse
from vgpuctl.model.port_values import ClaimList, DomainInfo
from vgpuctl.model.request import ExistingDisk
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe, observe_devices
from vgpuctl.observe.claims import (
    is_claim_in_use,
    living_operations,
    read_claims,
)
from vgpuctl.observe.definition import read_vm
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


WANT = ReadScope(models=False)


class Records:
    """Claims that cannot all be listed."""

    is_locked = False

    def __init__(self, read=None, stuck_writes=None):
        self._read, self._stuck = read, stuck_writes

    def read(self, carriers=None):
        if self._read is not None:
            raise self._read
        return ClaimList((), ("0000:3b:00.4",))

    def stuck_writes(self):
        if self._stuck is not None:
            raise self._stuck
        return ()


def closed(name):
    return PermissionError(13, "Permission denied", f"/run/vgpuctl/{name}")


@pytest.mark.parametrize(
    ("read", "stuck", "output"),
    [
        (closed("claims"), None, "the claims (/run/vgpuctl/claims) cannot be read without root"),
        (None, closed("stuck"), "the records of stuck writes (/run/vgpuctl/stuck) cannot be read without root"),
        (
            closed("claims"),
            closed("stuck"),
            "the claims (/run/vgpuctl/claims) and the records of stuck writes (/run/vgpuctl/stuck) cannot be read",
        ),
    ],
)
def test_files_only_for_root_warn(tmp_path, read, stuck, output):
    observed = observe(replace(open_sim_host(tmp_path).ports, claims=Records(read, stuck)), WANT)
    (warning,) = [w for w in observed.warnings if "without root" in w]
    assert warning.startswith(output)
    assert observed.gpus


def test_an_unreadable_claim_counts_as_taken(tmp_path):
    observed = observe(replace(open_sim_host(tmp_path).ports, claims=Records()), WANT)
    assert observed.unreadable_claims == ("0000:3b:00.4",)
    assert "the claim on 0000:3b:00.4 cannot be read; 0000:3b:00.4 counts as taken" in observed.warnings
    assert [v.carrier for v in observed.vgpus] == ["0000:3b:00.4"]


@pytest.mark.parametrize("name", ["claims", "stuck"])
def test_other_read_failures_are_errors_and_not_empty(tmp_path, name):
    error = OSError(5, "Input/output error", f"/run/vgpuctl/{name}")
    records = Records(error) if name == "claims" else Records(stuck_writes=error)
    with pytest.raises(Failed) as raised:
        observe(replace(open_sim_host(tmp_path).ports, claims=records), WANT)
    assert raised.value.facts == {"errno": 5, "path": f"/run/vgpuctl/{name}"}
    assert name in str(raised.value)


def test_a_claim_lives_with_its_operation(tmp_path):
    host = open_sim_host(tmp_path)
    living = living_operation(host.ports).id
    ours, theirs, gone = (claim(assigned(a100(), A4C, n), n, by) for n, by in ((1, living), (2, living), (3, "dead")))
    for one in (ours, theirs, gone):
        host.ports.claims.add(one)

    def observed(watched):
        return observe_devices(watched, WANT, vms=(vm(1),), status=host.ports.hypervisor.status())

    assert observed(host.ports).live_claim_carriers == {ours.carrier, theirs.carrier}
    assert counted(host.ports, observed).count("operations.living") == 1
    with host.ports.claims.lock(0):
        assert observed(host.ports) == observed(host.ports)


class Unreadable:
    def all(self):
        raise PermissionError(13, "Permission denied", "/run/vgpuctl/claims")

    def living(self, ids):
        raise OSError(5, "Input/output error", "/run/vgpuctl/operations")


def test_what_cannot_be_read_is_an_error_with_its_path(tmp_path):
    ports = replace(open_sim_host(tmp_path).ports, claims=Unreadable(), operations=Unreadable())
    with pytest.raises(FileFailed, match="the claims cannot be read: Permission denied") as denied:
        read_claims(ports)
    assert denied.value.hint == "run it as root"
    with pytest.raises(FileFailed, match="which operations are running cannot be read") as broken:
        living_operations(ports, ["a"])
    assert "ls -la /run/vgpuctl/operations" in str(broken.value.hint)


def test_a_claim_is_in_use_while_its_vm_runs_with_the_carrier_or_cannot_be_asked(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    (claim,) = read_claims(host.ports)
    assert is_claim_in_use(host.ports, claim)
    assert not is_claim_in_use(host.ports, replace(claim, carrier="0000:3b:01.0"))
    host.ports.hypervisor.destroy(claim.vm_uuid)
    assert not is_claim_in_use(host.ports, claim)
