# SPDX-License-Identifier: Apache-2.0
"""A VM in a move that was interrupted: who refuses to touch it, who ends it, and how it is shown."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.hosts import SimulatedHost, context, delete, picture, request, run_reconcile, set_vm, start, stop
from tests.meanwhile import on_call, unchanged
from tests.moves.pairs import KINDS, Pair, end_move, final, invariants, move_again, settled
from tests.moves.trial import MIGRATE, RECORD, SEND, Moves
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import Busy, Failed, Refused, VgpuctlError
from vgpuctl.hook.run import prepare
from vgpuctl.library import GpuHost
from vgpuctl.library.move_end import settle_alone
from vgpuctl.model.migration import MigrationRole
from vgpuctl.model.outcome import CallSettings
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.power import reboot_vm
from vgpuctl.operations.refresh import refresh_vm
from vgpuctl.operations.resize_disk import resize_disk
from vgpuctl.operations.restore import restore_host
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

LEFT_SO: dict[str, tuple[str, str, str, str, str]] = {
    "leaving, runs": ("live, disks copied", "source", MIGRATE, "killed in the middle", "source"),
    "arriving, comes": ("live, disks copied", "source", MIGRATE, "killed in the middle", "target"),
    "arriving": ("live, disks copied", "source", MIGRATE, "killed before", "target"),
    "leaving, off": ("live, disks copied", "source", MIGRATE, "killed after", "source"),
    "arrived": ("live, disks copied", "source", MIGRATE, "killed after", "target"),
    "leaving, paused": ("live, libvirt dies", "source", MIGRATE, "killed on failure", "source"),
    "arriving, off": ("offline, disks copied", "source", SEND, "killed after", "target"),
    "left": ("offline, disks copied", "target", RECORD, "killed before", "source"),
}
"""For each state on one host: the kind of move, in which call of which side it died, and which host that is."""
COMMANDS: dict[str, Callable[[Host], object]] = {
    "start-vm": partial(start, name="vm"),
    "stop-vm": partial(stop, name="vm"),
    "delete-vm": partial(delete, name="vm"),
    "set-vm": lambda ports: set_vm(ports, request(name="vm", owner="ada"), "owner"),
    "refresh-vm": lambda ports: refresh_vm(ports, context(), "vm", "/base.qcow2", drain=True),
    "reboot-vm": lambda ports: reboot_vm(ports, context(), "vm", force=False),
    "resize-disk": lambda ports: resize_disk(ports, context(), "vm", 30 << 10, "vda"),
}


def interrupted(directory: Path, state: str) -> tuple[Pair, SimulatedHost]:
    """Return both hosts after a move that died, and the one of this state."""
    kind, side, call, how, shown = LEFT_SO[state]
    pair = Moves(KINDS[kind], directory, end_move, (side, call, how)).made
    return pair, pair.source if shown == "source" else pair.target


@pytest.fixture(params=LEFT_SO)
def left(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Pair, SimulatedHost]]:
    pair, host = interrupted(tmp_path, request.param)
    yield request.param, pair, host
    pair.close()


def role_of(host: SimulatedHost) -> tuple[MigrationRole, VmState]:
    vm = observe(host.ports, ReadScope()).vm("vm")
    assert vm is not None
    assert vm.record is not None
    assert vm.record.migration is not None
    return vm.record.migration.role, vm.state


def test_each_state_is_what_its_name_says(left: tuple[str, Pair, SimulatedHost]) -> None:
    state, _, host = left
    role, power = role_of(host)
    word, _, how = state.partition(", ")
    assert role == word
    assert how in (
        "",
        {"running": "runs", "stopped": "off", "paused": "comes" if word == "arriving" else "paused"}[power],
    )


def test_every_command_refuses_it_and_says_how_it_ends(left: tuple[str, Pair, SimulatedHost]) -> None:
    state, pair, host = left
    for command, act in COMMANDS.items():
        with unchanged(host), pytest.raises(Busy, match="or that move was interrupted") as raised:
            act(host.ports)
        host.ports.operations.end()
        assert raised.value.status == 75, (state, command)
        words = shlex.split(str(raised.value.hint).partition("any more: ")[2])
        assert words[:4] == ["vgpuctl", "end-migration", "vm", "--with"], (state, command)
    assert invariants(pair) == []


def test_libvirts_hook_lets_nobody_start_it(left: tuple[str, Pair, SimulatedHost]) -> None:
    _, pair, host = left
    xml = host.sim._core.read_state().domains[pair.uuid].xml
    with unchanged(host), pytest.raises(Busy, match="or that move was interrupted") as raised:
        prepare(host.ports, xml)
    assert "end-migration vm" in str(raised.value.hint)


def test_libvirts_hook_lets_the_memory_of_one_come(tmp_path: Path) -> None:
    pair, host = interrupted(tmp_path, "arriving, comes")
    running = host.sim._core.read_state().running[pair.uuid]
    assert f'role="{MigrationRole.INCOMING}"' in running.xml.replace("'", '"')
    with unchanged(host):
        prepare(host.ports, running.xml)


def test_libvirts_hook_refuses_memory_for_a_place_that_was_given_up(tmp_path: Path) -> None:
    pair, host = interrupted(tmp_path, "arriving, comes")
    late = host.sim._core.read_state().running[pair.uuid].xml
    settled(pair.source.ports, pair.target.ports)
    with unchanged(host), pytest.raises(Refused, match=r"nothing is ready on this host for vm from sim:"):
        prepare(host.ports, late)


def test_libvirts_hook_refuses_memory_for_the_place_of_another_move(tmp_path: Path) -> None:
    pair, host = interrupted(tmp_path, "arriving")
    xml = host.sim._core.read_state().domains[pair.uuid].xml.replace(MigrationRole.ARRIVING, MigrationRole.INCOMING)
    prepare(host.ports, xml)
    record = parse_domain(xml, VmState.STOPPED, host.ports.machine_id).record
    assert record is not None
    assert record.migration is not None
    with unchanged(host), pytest.raises(Refused, match="nothing is ready on this host for vm"):
        prepare(host.ports, xml.replace(record.migration.id, "another-move"))


def test_reconcile_ends_only_what_this_host_alone_can_know(left: tuple[str, Pair, SimulatedHost]) -> None:
    state, pair, host = left
    before = picture(host)
    outcome = run_reconcile(host.ports)
    findings = [f for f in outcome.data.findings if f.kind == "moving"]
    now = picture(host)
    if state == "leaving, runs":
        assert [f.action for f in findings] == ["record that vm is a VM of this host"]
        assert (now.running, now.files, now.claims) == (before.running, before.files, before.claims)
    elif state == "arriving":
        assert [f.action for f in findings] == ["remove what was made ready for VM vm: it has not come"]
        assert now == pair.empty[1]
    else:
        (finding,) = findings
        assert finding.action.startswith(
            "nothing: only both hosts together can tell where it goes on: vgpuctl end-migration"
        )
        assert now == before
    settled(pair.source.ports, pair.target.ports)
    assert final(pair, may_be_off=pair.kind.offline) == []
    assert move_again(pair) == []


def test_it_is_shown_as_moving_and_nothing_is_broken(left: tuple[str, Pair, SimulatedHost]) -> None:
    _, _, host = left
    library = GpuHost(host.ports, CallSettings())
    assert [row.name for row in library.list_vms().data] == ["vm"]
    assert library.show_vm("vm").data.record == RecordState.MOVING
    checks = library.doctor().data.checks
    assert [c.id for c in checks if c.verdict == "fail" and any("vm" in text.split() for text in c.evidence)] == []
    left_over = [text for c in checks for text in c.evidence if "the move of VM vm" in text]
    assert len(left_over) == 1


def test_a_boot_neither_starts_nor_remakes_it(left: tuple[str, Pair, SimulatedHost]) -> None:
    _, pair, host = left
    host.sim.reboot()
    booted = host.again()
    with unchanged(booted):
        assert restore_host(booted.ports, context(), HostSpec(1)).data.restored == ()
    assert invariants(pair) == []


def test_a_third_host_decides_nothing(left: tuple[str, Pair, SimulatedHost]) -> None:
    _, pair, host = left
    third = Moves(KINDS["live, disks copied"], pair.directory / "third").made.target
    for hosts in ((third, host), (host, third)):
        with unchanged(host), unchanged(third), pytest.raises(Busy, match="or that move was interrupted"):
            settled(hosts[0].ports, hosts[1].ports)


def test_the_wrong_way_round_decides_nothing(left: tuple[str, Pair, SimulatedHost]) -> None:
    _, pair, _ = left
    with unchanged(pair.source), unchanged(pair.target), pytest.raises(Busy, match="or that move was interrupted"):
        settled(pair.target.ports, pair.source.ports)


def test_what_was_decided_is_not_done_when_the_move_has_gone_on(tmp_path: Path) -> None:
    pair, host = interrupted(tmp_path, "arrived")
    library = GpuHost(pair.source.ports, CallSettings())
    mark = library.show_migration("vm").data.id
    assert mark is not None
    with (
        unchanged(pair.source),
        unchanged(host),
        pytest.raises(Busy, match="was leaving running, and is leaving stopped"),
    ):
        library.finish_migration("vm", migration_id=mark, outcome="runs-here", seen="leaving running")


@pytest.mark.parametrize("outcome", ["runs-here", "runs-there"])
def test_what_one_host_alone_cannot_do_is_refused_before_anybody_is_asked(tmp_path: Path, outcome: str) -> None:
    pair, host = interrupted(tmp_path, "arriving" if outcome == "runs-here" else "leaving, runs")

    def ask(question: str, _: tuple[str, ...]) -> None:
        raise AssertionError(question)

    library = GpuHost(host.ports, CallSettings())
    with unchanged(pair.source), unchanged(pair.target), pytest.raises(Busy) as raised:
        settle_alone(library, "vm", outcome, confirm=ask)
    peer = library.show_migration("vm").data.peer
    assert f"vgpuctl end-migration vm --with ssh://{peer}" in str(raised.value.hint).replace(
        "--with sim:", "--with ssh://sim:"
    )


def test_what_a_person_was_asked_about_is_all_that_is_done(tmp_path: Path) -> None:
    pair, host = interrupted(tmp_path, "leaving, paused")

    def resume(question: str, _: tuple[str, ...]) -> None:
        host.sim.hypervisor.resume(pair.uuid)

    with pytest.raises(Busy, match="it was leaving paused, and is leaving running"):
        settle_alone(GpuHost(host.ports, CallSettings()), "vm", "runs-there", confirm=resume)
    assert pair.running_on() == [host]


def test_one_that_runs_while_the_other_host_has_it_too_is_for_a_person(tmp_path: Path) -> None:
    pair, _ = interrupted(tmp_path, "arrived")
    library = GpuHost(pair.source.ports, CallSettings())
    mark = library.show_migration("vm").data.id
    assert mark is not None
    library.finish_migration("vm", migration_id=mark, outcome="runs-here")  # as with --runs-here, of one that is off
    pair.target.sim.hypervisor.resume(pair.uuid)
    with unchanged(pair.source), unchanged(pair.target), pytest.raises(Failed, match="it could run on both") as raised:
        settled(pair.source.ports, pair.target.ports)
    assert "vgpuctl delete-vm vm on " in str(raised.value.hint)


def test_disks_of_both_kinds_do_not_move(tmp_path: Path) -> None:
    pair = Moves(KINDS["offline, disks copied"], tmp_path).made
    library = GpuHost(pair.source.ports, CallSettings())
    offer = library.offer_vm("vm", offline=True).data
    mixed = replace(offer, disks=(replace(offer.disks[0], is_shared=True), *offer.disks[1:]))
    target = GpuHost(pair.target.ports, CallSettings())
    place = target.prepare_incoming(mixed, copies_disks=True, offline=True, dry_run=True).data
    assert [r.what for r in place.reasons if "--copy-storage cannot mix them" in r.what]


def test_a_host_without_libvirt_changes_nothing_on_the_other_one(tmp_path: Path) -> None:
    pair, host = interrupted(tmp_path, "arrived")

    def fail() -> None:
        raise VgpuctlError("libvirt does not answer")

    for ports in (
        (on_call(pair.source.ports, "hypervisor.find_domain", fail), pair.target.ports),
        (pair.source.ports, on_call(pair.target.ports, "hypervisor.find_domain", fail)),
    ):
        with unchanged(pair.source), unchanged(host), pytest.raises(VgpuctlError, match="does not answer"):
            settled(*ports)
