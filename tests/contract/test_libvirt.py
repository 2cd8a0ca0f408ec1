# SPDX-License-Identifier: Apache-2.0
"""The contract of the libvirt ports: error numbers, exclusive names, records, states."""

from __future__ import annotations

import re

import pytest

from tests.contract.site import Site, libvirt_refuses, new_uuid
from vgpuctl.domain.domain_xml import parse_domain_id
from vgpuctl.errors import Exists, LibvirtFailed
from vgpuctl.model.vm import VmState

pytestmark = pytest.mark.forms("mdev-pf")
DOMAIN = """<domain type='kvm'><name>{name}</name><uuid>{uuid}</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os>{cpu}<devices>{devices}</devices></domain>"""
RECORD = "<vgpuctl:vm xmlns:vgpuctl='urn:vgpuctl:1' state='making' note='a &amp; b'/>"
NO_SUCH_MDEV = """<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source>
<address uuid='11111111-2222-3333-4444-555555555555'/></source></hostdev>"""


def define(site: Site, uuid: str, name: str = "contract-1", devices: str = "", cpu: str = "") -> None:
    site.ports.hypervisor.define(DOMAIN.format(name=name, uuid=uuid, devices=devices, cpu=cpu))


def test_find_a_defined_domain_by_name_or_uuid(site: Site, uuid: str) -> None:
    define(site, uuid)
    for key in ("contract-1", uuid):
        result = site.domain(key)
        assert (result.name, result.uuid, result.state, result.live_xml) == ("contract-1", uuid, VmState.STOPPED, None)
    assert "contract-1" in [d.name for d in site.ports.hypervisor.domains()]


def test_missing_objects_are_none(site: Site) -> None:
    assert site.ports.hypervisor.find_domain("nobody") is None
    assert site.ports.hypervisor.find_domain(new_uuid()) is None
    assert site.ports.hypervisor.network("nothing") is None
    assert site.ports.storage.pool("nothing") is None


def test_a_name_with_another_uuid_is_refused(site: Site, uuid: str) -> None:
    define(site, uuid)
    with pytest.raises((LibvirtFailed, Exists)):
        define(site, new_uuid())


def test_an_attribute_the_schema_does_not_know_is_error_92(site: Site, uuid: str) -> None:
    with libvirt_refuses(92):
        define(site, uuid, devices="<hostdev mode='subsystem' type='mdev' model='vfio-pci' no-such='1'/>")


def test_a_cpu_topology_that_contradicts_the_vcpus_is_error_67(site: Site, uuid: str) -> None:
    with libvirt_refuses(67):
        define(site, uuid, cpu="<cpu mode='host-passthrough'><topology sockets='1' cores='2' threads='1'/></cpu>")


def test_a_record_is_set_replaced_and_deleted(site: Site, uuid: str) -> None:
    define(site, uuid)
    site.ports.hypervisor.set_record(uuid, RECORD)
    record = site.domain(uuid)
    assert "urn:vgpuctl:1" in record.xml
    assert "a &amp; b" in record.xml
    site.ports.hypervisor.set_record(uuid, RECORD.replace("making", "ready"))
    record = site.domain(uuid)
    assert record.xml.count("urn:vgpuctl:1") == 1
    assert "ready" in record.xml
    site.ports.hypervisor.set_record(uuid, None)
    record = site.domain(uuid)
    assert "urn:vgpuctl:1" not in record.xml


def test_the_start_tag_of_a_record_is_on_one_line_before_the_memory(site: Site, uuid: str) -> None:
    """The hook's shell script relies on this, for stopped and for running VMs."""
    define(site, uuid)
    site.ports.hypervisor.set_record(uuid, '<vm xmlns="urn:vgpuctl:1" state="ready" reserve="running"><spec/></vm>')
    site.ports.hypervisor.start(uuid)
    record = site.domain(uuid)
    for xml in (record.xml, record.live_xml or ""):
        before = xml.partition("<memory")[0].splitlines()
        (line,) = [line for line in before if "urn:vgpuctl:1" in line]
        assert re.search("urn:vgpuctl:1.*reserve=.running", line)


def test_a_missing_mdev_fails_the_start_and_leaves_the_domain_off(site: Site, uuid: str) -> None:
    define(site, uuid, devices=NO_SUCH_MDEV)
    with libvirt_refuses(99):
        site.ports.hypervisor.start(uuid)
    record = site.domain(uuid)
    assert record.state is VmState.STOPPED


def test_a_missing_mdev_whose_screen_is_wanted_is_the_missing_mdev(site: Site, uuid: str) -> None:
    shown = NO_SUCH_MDEV.replace("type='mdev'", "type='mdev' display='on' ramfb='on'")
    define(site, uuid, devices=f"{shown}<graphics type='vnc'/><video><model type='none'/></video>")
    with libvirt_refuses(99):
        site.ports.hypervisor.start(uuid)


def test_each_start_gives_a_domain_another_id(site: Site, uuid: str) -> None:
    define(site, uuid)
    ids = []
    for _ in range(2):
        site.ports.hypervisor.start(uuid)
        record = site.domain(uuid)
        assert record.live_xml is not None
        ids.append(parse_domain_id(record.live_xml))
        site.ports.hypervisor.destroy(uuid)
    assert None not in ids
    assert ids[0] != ids[1]


def test_start_destroy_and_undefine(site: Site, uuid: str) -> None:
    define(site, uuid)
    site.ports.hypervisor.start(uuid)
    record = site.domain(uuid)
    assert record.state is VmState.RUNNING
    assert record.live_xml is not None
    with libvirt_refuses(55):
        site.ports.hypervisor.start(uuid)
    assert not site.ports.hypervisor.wait_stopped(uuid, 0.2)
    site.ports.hypervisor.destroy(uuid)
    site.ports.hypervisor.destroy(uuid)
    assert site.ports.hypervisor.wait_stopped(uuid, 5)
    with libvirt_refuses(55):
        site.ports.hypervisor.shutdown(uuid)
    site.ports.hypervisor.undefine(uuid)
    assert site.ports.hypervisor.find_domain(uuid) is None


def test_a_running_domain_without_a_definition_is_transient_and_disappears_when_it_stops(site: Site, uuid: str) -> None:
    define(site, uuid)
    hypervisor = site.ports.hypervisor
    hypervisor.start(uuid)
    defined = hypervisor.find_domain(uuid)
    site.forget_definition(uuid)
    (transient,) = [record for record in hypervisor.domains() if record.uuid == uuid]
    assert defined is not None
    assert (defined.persistent, transient.persistent, transient.state) == (True, False, VmState.RUNNING)
    assert transient == hypervisor.find_domain(uuid)
    hypervisor.destroy(uuid)
    assert hypervisor.wait_stopped(uuid, 5)
    assert hypervisor.find_domain(uuid) is None


def test_a_domain_that_is_defined_again_while_it_runs_persists_after_it_stops(site: Site, uuid: str) -> None:
    define(site, uuid)
    hypervisor = site.ports.hypervisor
    hypervisor.start(uuid)
    site.forget_definition(uuid)
    transient = site.domain(uuid)
    assert hypervisor.define(transient.xml).persistent
    hypervisor.destroy(uuid)
    stopped = site.domain(uuid)
    assert (stopped.state, stopped.persistent) == (VmState.STOPPED, True)


def test_the_default_network_is_active(site: Site) -> None:
    network = site.ports.hypervisor.network("default")
    assert network is not None
    assert (network.active, network.forward) == (True, "nat")
    assert network in site.ports.hypervisor.networks()


def test_volumes_are_thin_and_exclusive_and_removing_one_twice_is_no_error(site: Site) -> None:
    storage = site.ports.storage
    name = f"contract-{new_uuid()[:8]}.qcow2"
    volume = storage.create_volume("default", name, 1 << 30)
    assert (volume.name, volume.capacity_bytes, volume.backing_path) == (name, 1 << 30, None)
    assert volume.path == f"/var/lib/libvirt/images/{name}"
    with pytest.raises(Exists):
        storage.create_volume("default", name, 1 << 30)
    assert storage.volume("default", name) is not None
    storage.remove_volume("default", name)
    storage.remove_volume("default", name)
    assert storage.volume("default", name) is None


def test_a_pool_is_created_active_and_removed(site: Site) -> None:
    name = f"pool-{new_uuid()[:8]}"
    site.ports.storage.create_pool(name, f"/var/lib/libvirt/{name}")
    pool = site.ports.storage.pool(name)
    assert pool is not None
    assert (pool.active, pool.kind, pool.path) == (True, "dir", f"/var/lib/libvirt/{name}")
    assert pool.available_bytes is not None
    site.ports.storage.start_pool(name)
    site.ports.storage.remove_pool(name)
    assert site.ports.storage.pool(name) is None
