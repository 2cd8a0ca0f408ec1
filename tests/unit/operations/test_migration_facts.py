# SPDX-License-Identifier: Apache-2.0
"""The facts of a host to which a VM is to move, read from two simulated hosts and checked as a user's command does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, create, open_sim_host, request
from tests.meanwhile import unchanged, with_calls
from vgpuctl.errors import LibvirtFailed
from vgpuctl.model.results.migration import MigrationOfferResult, MigrationReasonResult
from vgpuctl.model.vm import Nic
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.migration_facts import gather_target_facts
from vgpuctl.operations.migration_offer import offer_vm
from vgpuctl.operations.plans.migration_checks import TargetFacts, find_target_reasons
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

NICS = (Nic(network="default"), Nic(bridge="br0"))
BASE, ISO = "/srv/images/ubuntu-24.04.qcow2", "/srv/images/debian-12-netinst.iso"


@pytest.fixture
def target(tmp_path: Path) -> SimulatedHost:
    """Return another host like the first one, with a storage pool."""
    other = open_sim_host(tmp_path / "target", "a100-40")
    other.ports.storage.create_pool("default", "/var/lib/libvirt/images")
    return other


def offered(host: SimulatedHost, **fields: object) -> MigrationOfferResult:
    create(host.ports, request("A100-4C", name="vm", image=BASE, cdrom=ISO, **fields), start=False)
    return offer_vm(host.ports, context(), "vm", offline=True).data


def facts_of(ports: Host, offer: MigrationOfferResult) -> TargetFacts:
    return gather_target_facts(ports, observe(ports, ReadScope(types=True)), offer)


def reasons(offer: MigrationOfferResult, facts: TargetFacts, *, copies_disks: bool = True) -> list[str]:
    named, _ = find_target_reasons(offer, facts, copies_disks=copies_disks, offline=True, needs_tls=False)
    assert all(isinstance(reason, MigrationReasonResult) for reason in named)
    return [reason.what for reason in named]


def test_a_host_like_the_first_takes_its_vm(host: SimulatedHost, target: SimulatedHost) -> None:
    offer = offered(host, nics=NICS)
    with unchanged(target):
        facts = facts_of(target.ports, offer)
    assert reasons(offer, facts) == []
    assert facts.host.machine_id != offer.host.machine_id
    assert facts.interfaces is not None
    assert "br0" in facts.interfaces
    assert [name for name, network in facts.networks.items() if network is not None] == ["default"]
    assert facts.memory_mib == facts.free_memory_mib == 512 << 10
    assert facts.files == {offer.disks[0].path: False, BASE: True, ISO: True}


def test_an_empty_host_says_all_that_it_lacks(host: SimulatedHost, tmp_path: Path) -> None:
    offer = offered(host, nics=NICS)
    facts = facts_of(open_sim_host(tmp_path / "empty", "empty").ports, offer)
    named = " | ".join(reasons(offer, facts))
    for text in (
        "no interface or bridge 'br0'",
        f"clone of {BASE}",
        f"the file {ISO}",
        "no GPU offers A100-4C: the host has no GPU",
    ):
        assert text in named


def test_a_host_is_not_its_own_target(host: SimulatedHost) -> None:
    offer = offered(host)
    (first, *_) = reasons(offer, facts_of(host.ports, offer))
    assert first.startswith("both hosts have the machine id")


def test_a_vm_of_this_name_and_a_file_are_seen(host: SimulatedHost, target: SimulatedHost) -> None:
    offer = offered(host)
    create(target.ports, request("A100-4C", name="vm"), start=False)
    target.ports.storage.create_volume("default", str(offer.disks[0].volume), 1 << 30)
    named = reasons(offer, facts_of(target.ports, offer))
    assert [text for text in named if text.startswith("this host has another VM with the name vm")]
    assert [text for text in named if f"{offer.disks[0].path} exists already" in text]


def test_the_drivers_library_is_asked_about_each_gpu_that_has_the_profile(
    host: SimulatedHost, target: SimulatedHost
) -> None:
    offer = offered(host)
    assert facts_of(target.ports, offer).pair_limits == {}  # without metadata nothing is asked
    with_metadata = replace(offer, vgpus=tuple(replace(vgpu, metadata="e30=") for vgpu in offer.vgpus))
    assert set(facts_of(target.ports, with_metadata).pair_limits) <= {(offer.vgpus[0].carrier, offer.vgpus[0].gpu)}


def test_what_cannot_be_read_is_left_out(host: SimulatedHost, target: SimulatedHost) -> None:
    def refuse(path: str) -> None:
        raise LibvirtFailed("no answer")

    offer = offered(host)
    facts = facts_of(with_calls(target.ports, "storage", resolve=refuse), offer)
    assert facts.files == {}
    assert reasons(offer, facts) == []
