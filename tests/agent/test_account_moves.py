# SPDX-License-Identifier: Apache-2.0
"""A controller moves desktops between two hosts through their agents: what each host's root allows it, and what not."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.agent.conftest import RunningAgent, running
from tests.agent.test_members import Directory
from vgpuctl import library
from vgpuctl.agent.client import AgentHost
from vgpuctl.agent.rights import HostRights
from vgpuctl.errors import Busy, InvalidInput, NotAllowed, NotYours, Refused
from vgpuctl.library.move_between import MoveRequest, move_vm
from vgpuctl.model.agent_service import OPERATORS_GROUP
from vgpuctl.model.caller import Caller
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest
from vgpuctl.model.outcome import CallSettings
from vgpuctl.observe.migration_host import CERTIFICATES, CLIENT_FILES, SERVER_FILES
from vgpuctl.operations.host_signature import KEY_FILES
from vgpuctl.value import replace

HOSTS = {"gpu01": "sim:a100-40", "gpu02": "sim:mixed"}
FENCE = Fence("db-1", 1, "a")
DESKTOP = "4b20d080-1b54-4048-85b3-a6a62d165c01"
MARK = DesktopMark(DESKTOP, "office", "db-1", 1)
POOLS = 60005


class ControllersRights(HostRights):
    """Rights for which every client is the controller's account, as the process of the test, too."""

    def caller_of(self, uid: int) -> Caller:
        return super().caller_of(POOLS)


class Site:
    """One of two hosts, as the controller's account sees it."""

    def __init__(self, agent: RunningAgent, name: str, state: Path) -> None:
        self.agent = agent
        self.directory = state / HOSTS[name].removeprefix("sim:")
        self.ports = library.open_ports(HOSTS[name])
        self.root = library.open_host(HOSTS[name])
        self.calls = AgentHost(agent.dial, CallSettings(fleet=FleetRequest(FENCE)), "agent")

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the host's key, as OpenSSH prints it."""
        file = self.directory / "key"
        file.write_text(self.ports.sysfs.read(KEY_FILES[0]))
        file.chmod(0o600)
        done = subprocess.run(["ssh-keygen", "-lf", file], capture_output=True, text=True, check=True)
        return done.stdout.split()[1]

    def write(self, path: str, text: str) -> None:
        file = self.directory / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    @property
    def host_yaml(self) -> str:
        return (self.directory / "etc/vgpuctl/host.yaml").read_text()

    def allow(self, other: Site, name: str, **changes: str) -> None:
        """Have the host's root allow moves to another host; `changes`: other values of keys of `allow`."""
        values = {
            "networks": "[default]",
            "pools": "[default]",
            "migrate_to": f"{{{name}: {{host_key: '{other.fingerprint}', libvirt: 'sim:{other.directory.name}'}}}}",
            **changes,
        }
        lines = "".join(f"    {key}: {value}\n" for key, value in values.items() if key != "limits")
        accounts = "  accounts: {pools: fleet}\n"
        limits = f"  limits: {{each_account: {values['limits']}}}\n" if "limits" in values else ""
        self.write("/etc/vgpuctl/host.yaml", f"version: 1\nagent:\n  allow:\n{lines}{accounts}{limits}")


@pytest.fixture
def account_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Site, Site]]:
    """Two hosts whose agents give every client the rights of the controller's account, and allow moves between them."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    state = tmp_path / "state-home/vgpuctl"
    users = Directory()
    users.names |= {POOLS: "pools"}
    users.groups |= {"pools": {OPERATORS_GROUP}}
    with ExitStack() as stack:
        both = []
        for name, host in HOSTS.items():
            text = "version: 1\nagent:\n  accounts: {pools: fleet}\n"
            library.open_ports(host)
            file = state / host.removeprefix("sim:") / "etc/vgpuctl/host.yaml"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            policy = ControllersRights(library.open_ports(host), users)
            agent = stack.enter_context(running(host, tmp_path / name, policy=policy))
            both.append(Site(agent, name, state))
        for site in both:
            for certificate in {*CLIENT_FILES, *SERVER_FILES}:
                site.write(f"{CERTIFICATES}/{certificate}", "")
        source, target = both
        source.allow(target, "gpu02")
        target.allow(source, "gpu01")
        yield source, target


@pytest.fixture
def sites(account_sites: tuple[Site, Site]) -> tuple[Site, Site]:
    for site in account_sites:
        site.calls.announce_fleet(FENCE)
    return account_sites


def make_desktop(source: Site, **fields: Any) -> None:
    marking = source.calls.with_settings(CallSettings(fleet=FleetRequest(FENCE, MARK)))
    marking.create_vm("vdi", profile=("A100-4C",), **fields)


def own(site: Site) -> list[tuple[str, str, str | None]]:
    return [(vm.name, vm.state, vm.moves_with) for vm in site.calls.list_vms().data if vm.account == "pools"]


def to(name: str, **more: Any) -> MoveRequest:
    return replace(MoveRequest(name, copies_disks=True), **more)


@pytest.mark.parametrize("offline", [False, True])
def test_a_controller_moves_a_desktop_there_and_back(sites: tuple[Site, Site], offline: bool) -> None:
    source, target = sites
    make_desktop(source)
    moved = move_vm(source.calls, target.calls, DESKTOP, to("gpu02", offline=offline))
    assert (moved.is_live, moved.is_running, moved.copied_disks) == (not offline, True, ("vda",))
    assert own(source) == []
    there = target.calls.show_vm("vdi").data
    assert (there.account, there.state, there.moves_with) == ("pools", "running", None)
    assert there.desktop is not None
    assert (there.desktop.id, there.desktop.pool, there.desktop.generation) == (DESKTOP, "office", 1)
    assert move_vm(target.calls, source.calls, DESKTOP, to("gpu01", offline=offline)).is_running
    assert own(target) == []
    source.calls.delete_vm("vdi")


def stays(source: Site, target: Site) -> None:
    """Check that the desktop is where it was, and nothing of it on the other host."""
    assert own(source) == [("vdi", "running", None)]
    assert own(target) == []
    assert not [claim for claim in target.ports.claims.all() if claim.vm_uuid == DESKTOP]


def test_a_host_that_is_not_in_host_yaml_gets_nothing(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    for uri in ("gpu03", "sim:mixed", "qemu+ssh://gpu02/system"):
        with pytest.raises(NotAllowed, match=r"no host that VMs may move to; host\.yaml has: gpu02"):
            move_vm(source.calls, target.calls, DESKTOP, to(uri))
        stays(source, target)


@pytest.mark.parametrize("more", [{"insecure": True}, {"address": "192.0.2.9"}])
def test_memory_goes_where_and_how_root_says(sites: tuple[Site, Site], more: dict[str, Any]) -> None:
    source, target = sites
    make_desktop(source)
    with pytest.raises(NotAllowed, match="only root"):
        move_vm(source.calls, target.calls, DESKTOP, to("gpu02", **more))
    stays(source, target)


def test_a_definition_that_no_host_has_signed_is_not_run(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    offer = source.calls.offer_vm(DESKTOP).data
    emulator = replace(offer, definition=offer.definition.replace("<on_crash>", "<on_crash><!-- -->"))
    assert emulator.definition != offer.definition
    for forged in (emulator, replace(offer, signature=None), replace(offer, signature="ssh-ed25519 AAAA AAAA")):
        with pytest.raises(NotAllowed, match="signed by nobody"):
            target.calls.prepare_incoming(forged, copies_disks=True)
    stays(source, target)
    source.allow(source, "gpu02")
    target.allow(target, "gpu01")  # the key of another host than the one that signs
    with pytest.raises(NotAllowed, match=r"signed by SHA256:\S+, and no host in host.yaml has that key"):
        target.calls.prepare_incoming(source.calls.offer_vm(DESKTOP).data, copies_disks=True)
    stays(source, target)


def test_a_place_that_its_target_has_not_signed_gets_nothing(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    offer = source.calls.offer_vm(DESKTOP).data
    place = target.calls.prepare_incoming(offer, copies_disks=True).data
    other = replace(place, record=place.record.replace("0000:", "0001:"))
    assert other.record != place.record
    for forged in (other, replace(place, signature=offer.signature), replace(place, copied_disks=())):
        with pytest.raises(NotAllowed, match="signed by nobody"):
            source.calls.migrate_out(DESKTOP, forged, target_uri="gpu02")
    target.calls.finish_migration(DESKTOP, migration_id=place.id, outcome="runs-there")
    stays(source, target)


def test_a_place_that_its_target_has_given_up_gets_nothing(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    place = target.calls.prepare_incoming(source.calls.offer_vm(DESKTOP).data, copies_disks=True).data
    target.calls.finish_migration(DESKTOP, migration_id=place.id, outcome="runs-there")
    with pytest.raises(InvalidInput, match="has nothing ready for vdi any more"):
        source.calls.migrate_out(DESKTOP, place, target_uri="gpu02")
    again = target.calls.prepare_incoming(source.calls.offer_vm(DESKTOP).data, copies_disks=True).data
    with pytest.raises(InvalidInput, match="has nothing ready for vdi any more"):
        source.calls.migrate_out(DESKTOP, place, target_uri="gpu02")
    target.calls.finish_migration(DESKTOP, migration_id=again.id, outcome="runs-there")
    stays(source, target)


def test_a_place_is_for_the_vm_as_it_was_offered(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    place = target.calls.prepare_incoming(source.calls.offer_vm(DESKTOP).data, copies_disks=True).data
    source.calls.set_vm("vdi", labels={"team": "b"})
    with pytest.raises(Busy, match="vdi has just been changed"):
        source.calls.migrate_out(DESKTOP, place, target_uri="gpu02")
    target.calls.finish_migration(DESKTOP, migration_id=place.id, outcome="runs-there")
    stays(source, target)


def test_nothing_is_made_ready_for_one_that_still_runs_or_cannot_leave(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    runs = source.calls.offer_vm(DESKTOP, offline=True).data
    with pytest.raises(Refused, match="was running when it was offered: it must be off"):
        target.calls.prepare_incoming(runs, copies_disks=True, offline=True)
    source.calls.save_vm("vdi")
    with pytest.raises(Refused, match="is saved"):
        target.calls.prepare_incoming(source.calls.offer_vm(DESKTOP).data, copies_disks=True)
    source.calls.start_vm("vdi")
    stays(source, target)


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("vgpu_params", "[frame_rate_limiter]", "the plugin parameter cuda_enabled=1"),
        ("networks", "[office]", "the network default"),
        ("pools", "[other]", "the storage pool default"),
        ("modes", "[sriov]", "the mode vgpu"),
    ],
)
def test_what_a_vm_needs_of_the_target_must_be_allowed_there(
    sites: tuple[Site, Site], key: str, value: str, named: str
) -> None:
    source, target = sites
    source.allow(target, "gpu02", vgpu_params="[cuda_enabled]")
    make_desktop(source, **({"vgpu_params": {"cuda_enabled": "1"}} if key == "vgpu_params" else {}))
    target.allow(source, "gpu01", **{key: value})
    with pytest.raises(NotAllowed, match=named) as refused:
        move_vm(source.calls, target.calls, DESKTOP, to("gpu02"))
    assert refused.value.facts["rule"] == f"agent.allow.{key}"
    stays(source, target)


def test_limits_of_the_account_hold_on_the_target(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    target.allow(source, "gpu01", limits="{vgpus: 0}")
    with pytest.raises(Refused, match="may take 0 vGPUs"):
        move_vm(source.calls, target.calls, DESKTOP, to("gpu02"))
    stays(source, target)


def test_a_desktop_that_leaves_counts_as_removed(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    source.allow(target, "gpu02", limits="{removals_per_hour: 1}")
    move_vm(source.calls, target.calls, DESKTOP, to("gpu02"))
    move_vm(target.calls, source.calls, DESKTOP, to("gpu01"))
    with pytest.raises(NotAllowed, match="may delete or refresh 1 VM in an hour"):
        move_vm(source.calls, target.calls, DESKTOP, to("gpu02"))
    stays(source, target)


def test_vms_of_others_stay(sites: tuple[Site, Site]) -> None:
    source, target = sites
    source.root.create_vm("roots", profile=("A100-4C",))
    with pytest.raises(NotYours):
        move_vm(source.calls, target.calls, "roots", to("gpu02"))
    assert own(target) == []


def test_a_controller_that_the_target_does_not_obey_brings_nothing(sites: tuple[Site, Site]) -> None:
    source, target = sites
    make_desktop(source)
    late = target.calls.with_settings(CallSettings(fleet=FleetRequest(Fence("db-1", 0, "b"))))
    target.calls.announce_fleet(Fence("db-1", 2, "b"))
    with pytest.raises(Refused):
        move_vm(source.calls, late, DESKTOP, to("gpu02"))
    assert own(target) == []
