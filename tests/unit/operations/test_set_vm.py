# SPDX-License-Identifier: Apache-2.0
"""set-vm changes what differs and nothing else: labels at any time, the rest of a VM that is off, or with drain.

After a signal during a drain the VM runs again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import vgpuctl
from tests.faults import CHANGING, Watch
from tests.hosts import (
    WAIT_SECONDS,
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    set_vm,
    start,
)
from tests.layouts import Signals, StrikesTheRequest
from tests.meanwhile import on_call, unchanged
from tests.reserving_vms import SMALL, record_of, reserving_request, small, taken, vm_of
from tests.unit.operations.test_change import HOSTS
from tests.unit.operations.test_states_between import in_state
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import (
    Busy,
    Interrupted,
    InUse,
    InvalidInput,
    LibvirtFailed,
    NeedsConfirmation,
    NoCapacity,
    NotFound,
    PartlyApplied,
    Unmanaged,
    VgpuctlError,
)
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.vm import VmState
from vgpuctl.operations.gpu_transaction import with_vm_stopped
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

FULL = """version: 1
gpus:
  - {model: A100, vfs: {total: 4, enabled: 4}, profiles: [A100-4C, A100-20C, A100-40C]}
"""


def with_vm(tmp_path: Path, scenario: str = "a100-40", *, on: bool = False, **more: Any) -> SimulatedHost:
    """Return a host with a VM."""
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, request(HOSTS[scenario][0], name="vm", **more), start=on)
    return host


@pytest.fixture
def host(tmp_path: Path) -> SimulatedHost:
    """Return a host with a VM that runs."""
    return with_vm(tmp_path, on=True)


def run(ports: Host, wanted: VmRequest, *fields: str, **options: Any) -> Outcome:
    """Run set-vm as a command of its own."""
    with operation(ports):
        return set_vm(ports, wanted, *fields, **options)


@pytest.mark.parametrize("scenario", HOSTS)
def test_several_fields_change_in_one_step_and_the_second_time_nothing_does(tmp_path: Path, scenario: str) -> None:
    host = with_vm(tmp_path, scenario)
    fields = ("profile", "memory", "vcpus", "labels", "owner")
    wanted = request(HOSTS[scenario][1], name="vm", memory_mib=2048, vcpus=3, labels={"a": "1"}, owner="ada")
    with unchanged(host):
        planned = run(host.ports, wanted, *fields, dry_run=True)
    done = run(host.ports, wanted, *fields)
    assert len([step for step in done.steps if step.startswith("change VM")]) == 1
    for outcome in (planned, done):
        vm = outcome.data
        values = (vm.memory_mib, vm.vcpus, vm.labels, vm.owner, [v.profile for v in vm.vgpus])
        assert values == (2048, 3, {"a": "1"}, "ada", [HOSTS[scenario][1]])
    with unchanged(host):
        assert not run(host.ports, wanted, *fields).changed
    start(host.ports, "vm")
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_what_is_not_named_stays(tmp_path: Path) -> None:
    host = with_vm(tmp_path, labels={"a": "1"}, owner="ada", memory_mib=2048, vcpus=3)
    data = run(host.ports, request("A100-5C", name="vm", vcpus=4), "vcpus").data
    assert (data.memory_mib, data.vcpus, data.labels, data.owner) == (2048, 4, {"a": "1"}, "ada")
    assert [v.profile for v in data.vgpus] == ["A100-4C"]


def test_another_gpu_takes_the_vgpus_that_keep_their_profile_too(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "l40s-x4")
    first, second = "0000:3b:00.0", "0000:3f:00.0"
    create(host.ports, request("L40S-4Q", name="vm", gpu=first), start=False)
    wanted = replace(request("L40S-4Q", name="vm"), gpu=(second,))
    assert [v.gpu for v in run(host.ports, wanted, "profile", "gpu").data.vgpus] == [second]
    assert record_of(host, "vm").request_fields["gpu"] == second


@pytest.mark.parametrize("on", [True, False])
def test_an_excluded_gpu_loses_the_vgpus_and_the_vm_keeps_the_model_that_it_was_created_for(
    tmp_path: Path, on: bool
) -> None:
    host = open_sim_host(tmp_path, "l40s-x4")
    create(host.ports, request("L40S-4Q", name="vm", gpu="L40S"), start=on)
    first = record_of(host, "vm").vgpus[0].gpu
    wanted = replace(request(name="vm"), not_gpu=(first,))
    assert [v.gpu == first for v in run(host.ports, wanted, "not_gpu", drain=on).data.vgpus] == [False]
    assert record_of(host, "vm").request_fields["gpu"] == "L40S"
    assert not run(host.ports, wanted, "not_gpu").changed


@pytest.mark.parametrize("field", ["profile", "memory", "vcpus", "reserve", "hugepages"])
def test_a_running_vm_is_refused_and_nothing_changes(host: SimulatedHost, field: str) -> None:
    wanted = request("A100-5C", name="vm", memory_mib=9, vcpus=9, reserve="running", hugepages="2MiB", owner="ada")
    message = f"vm is running; its {field} can be changed only while it is off"
    with unchanged(host), pytest.raises(InUse, match=message) as raised:
        run(host.ports, wanted, field, "owner")
    assert raised.value.hint == "vgpuctl stop-vm vm, then run the command again; or add --drain"


def test_a_paused_vm_gets_labels_and_is_not_offered_to_be_drained(host: SimulatedHost) -> None:
    ports = in_state(host.ports, VmState.PAUSED)
    assert run(ports, request(name="vm", owner="ada"), "owner").data.owner == "ada"
    with pytest.raises(InUse, match="vm is paused; its vcpus can be changed only while it is off") as raised:
        run(ports, request(name="vm", vcpus=2), "vcpus")
    assert str(raised.value.hint).startswith("virsh resume vm, then vgpuctl stop-vm vm; or vgpuctl stop-vm vm --force")
    assert "--drain" not in str(raised.value.hint)


def test_a_field_that_has_its_value_already_needs_no_vm_that_is_off(host: SimulatedHost) -> None:
    wanted = request("GRID A100-4C", name="vm", labels={"a": "1"})
    assert run(host.ports, wanted, "profile", "memory", "vcpus", "labels").data.labels == {"a": "1"}


def test_a_misspelt_profile_is_named_as_such_although_the_vm_runs(tmp_path: Path) -> None:
    host = with_vm(tmp_path, "t4", on=True)
    for drain in (False, True):
        with pytest.raises(NotFound, match="no GPU on this host offers the profile 'T4-2X'"):
            run(host.ports, request("T4-2X", name="vm"), drain=drain)


@pytest.mark.parametrize("reserve", ["always", "running"])
@pytest.mark.parametrize("scenario", HOSTS)
def test_drain_shuts_it_down_changes_it_and_starts_it_again(tmp_path: Path, scenario: str, reserve: str) -> None:
    host = with_vm(tmp_path, scenario, on=True, reserve=reserve)
    wanted = request(HOSTS[scenario][1], name="vm", memory_mib=2048)
    with unchanged(host):
        planned = run(host.ports, wanted, "profile", "memory", drain=True, dry_run=True)
    assert (planned.steps[0], planned.steps[-1]) == ("shut down VM vm", "start VM vm")
    done = run(host.ports, wanted, "profile", "memory", drain=True)
    for outcome in (planned, done):
        vm = outcome.data
        values = (vm.state, vm.memory_mib, vm.reserve, [v.profile for v in vm.vgpus])
        assert values == ("running", 2048, reserve, [HOSTS[scenario][1]])
    assert len(picture(host).claims) == 1
    with unchanged(host):
        assert not run(host.ports, wanted, "profile", "memory", drain=True).changed
    assert host.ports.claims.drained_vms() == ()
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_drain_shuts_nothing_down_for_labels_or_for_a_vm_that_is_off(tmp_path: Path) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []
    host = with_vm(tmp_path, on=True)
    before = picture(host).running
    done = run(host.ports, request(name="vm", owner="ada"), "owner", drain=True, confirm=lambda *q: asked.append(q))
    assert (done.changed, picture(host).running) == (True, before)
    off = with_vm(tmp_path / "off")
    assert run(off.ports, request(name="vm", vcpus=2), "vcpus", drain=True, confirm=lambda *q: asked.append(q)).changed
    assert (picture(off).running, asked) == ({}, [("", ()), ("", ())])


def test_the_answer_no_leaves_the_vm_running_as_it_was(host: SimulatedHost) -> None:

    def refuse(question: str, steps: tuple[str, ...]) -> None:
        assert question == "Shut down VM vm, change it, and start it again?"
        assert [steps[0], steps[-1]] == ["shut down VM vm", "start VM vm"]
        raise NeedsConfirmation(question)

    with unchanged(host), pytest.raises(NeedsConfirmation):
        run(host.ports, request(name="vm", vcpus=2), "vcpus", drain=True, confirm=refuse)


@pytest.mark.parametrize("reserve", ["always", "running"])
def test_no_room_is_known_before_the_vm_is_shut_down(tmp_path: Path, reserve: str) -> None:
    host = open_sim_host(tmp_path, text=FULL)
    create(host.ports, request("A100-4C", name="other"))
    create(host.ports, request("A100-4C", name="vm", reserve=reserve))
    with unchanged(host), pytest.raises(NoCapacity):
        run(host.ports, request("A100-40C", name="vm"), drain=True)


@pytest.mark.parametrize("kind", SMALL)
def test_its_own_room_counts_for_a_vm_that_is_drained(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, request(profile, name="other"))
    create(host.ports, reserving_request(profile, "vm"))
    before = taken(host)
    data = run(host.ports, request(name="vm"), "reserve", drain=True).data
    assert (data.reserve, data.state, taken(host)) == ("always", "running", before)
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def refuse() -> None:
    raise LibvirtFailed("no")


def test_a_change_that_libvirt_refuses_is_undone_and_the_vm_runs_again(host: SimulatedHost) -> None:
    claims = picture(host).claims
    ports = on_call(host.ports, "hypervisor.redefine", refuse)
    with pytest.raises(LibvirtFailed) as raised:
        run(ports, request("A100-5C", name="vm", vcpus=2), "profile", "vcpus", drain=True)
    vm = vm_of(host, "vm")
    assert (vm.state, vm.vcpus, raised.value.left) == (VmState.RUNNING, 1, [])
    assert picture(host).claims == claims
    assert host.ports.claims.drained_vms() == ()


def test_a_vm_that_does_not_start_again_is_reported_as_changed(host: SimulatedHost) -> None:
    ports = on_call(host.ports, "hypervisor.start", refuse)
    with pytest.raises(PartlyApplied, match="vm is changed and stays off") as raised:
        run(ports, request(name="vm", vcpus=2), "vcpus", drain=True)
    assert raised.value.hint == "vgpuctl start-vm vm"
    assert vm_of(host, "vm").vcpus == 2


@pytest.mark.parametrize("fields", [("owner",), ("profile", "vcpus", "owner")])
@pytest.mark.parametrize("drain", [True, False])
def test_a_vm_that_is_deleted_after_the_first_look_does_not_exist(
    tmp_path: Path, fields: tuple[str, ...], drain: bool
) -> None:
    host = with_vm(tmp_path, on=drain)
    other = open_sim_host(tmp_path, "a100-40")
    ports = on_call(host.ports, "hypervisor.domains", lambda: delete(other.ports, "vm"), nth=2)
    wanted = request("A100-5C", name="vm", vcpus=2, owner="ada")
    with pytest.raises(NotFound) as raised:
        run(ports, wanted, *fields, drain=drain)
    assert (raised.value.status, taken(host), picture(host).domains) == (2, set(), {})
    assert host.ports.claims.drained_vms() == ()


@pytest.mark.parametrize(("call", "field"), [("hypervisor.redefine", "vcpus"), ("hypervisor.set_record", "owner")])
def test_a_vm_that_virsh_undefines_at_the_last_moment_is_not_defined_again(
    tmp_path: Path, call: str, field: str
) -> None:
    host = with_vm(tmp_path)
    ports = on_call(host.ports, call, lambda: host.ports.hypervisor.undefine(vm_of(host, "vm").uuid), nth=1)
    with pytest.raises(VgpuctlError):
        run(ports, request(name="vm", vcpus=2, owner="ada"), field)
    assert picture(host).domains == {}
    run_reconcile(host.again().ports)
    assert taken(host) == set()


def test_a_label_that_another_command_sets_meanwhile_is_not_lost(tmp_path: Path) -> None:
    host = with_vm(tmp_path)
    other = open_sim_host(tmp_path, "a100-40")

    def label(ports: Host, key: str) -> None:
        run(ports, replace(request(name="vm"), label_changes={key: "1"}), "labels")

    ports = on_call(host.ports, "claims.add_vm_in_progress", lambda: label(other.ports, "theirs"), nth=1)
    with pytest.raises(Busy):
        label(ports, "mine")
    assert record_of(host, "vm").labels == {"theirs": "1"}
    label(host.ports, "mine")
    assert record_of(host, "vm").labels == {"mine": "1", "theirs": "1"}


def test_labels_are_merged_and_everything_else_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    host = vgpuctl.open_host("sim:a100-40")
    made = host.create_vm("vm", profile="A100-4C", labels={"a": "1", "b": "2"}, owner="x").data
    assert host.set_vm("vm", labels={"a": None, "c": "3"}, dry_run=True).changed
    host.set_vm("vm", labels={"a": None, "c": "3"})
    vm = host.show_vm("vm").data
    assert (vm.labels, vm.owner, vm.state, vm.vgpus) == ({"b": "2", "c": "3"}, "x", "running", made.vgpus)
    assert host.set_vm("vm", labels={"c": "3"}).changed is False
    host.set_vm("vm", owner="")
    host.stop_vm("vm", force=True)
    host.set_vm("vm", profile="A100-5C")
    assert (host.show_vm("vm").data.labels, host.show_vm("vm").data.owner) == ({"b": "2", "c": "3"}, None)


def test_too_many_labels_and_unmanaged_vms_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    host = vgpuctl.open_host("sim:a100-40")
    host.create_vm("vm", profile="A100-4C", labels={f"k{n}": "" for n in range(32)})
    with pytest.raises(InvalidInput, match="too many"):
        host.set_vm("vm", labels={"more": "x"})
    with pytest.raises(InvalidInput):
        host.set_vm("vm")
    with pytest.raises(Unmanaged):
        vgpuctl.open_host("sim:mixed").set_vm("old-desktop", labels={"a": "1"})


def test_a_display_that_the_profile_cannot_have_is_refused_before_anything_is_claimed(tmp_path: Path) -> None:
    host, watch = with_vm(tmp_path), Watch()
    with pytest.raises(InvalidInput, match="A100-4C has no display"):
        run(watch.watch(host.ports), request(name="vm", display=True), "display")
    assert not set(watch.calls) & CHANGING


@pytest.mark.parametrize("call", ["find_domain", "shutdown"])
def test_a_signal_just_before_the_request_to_shut_down_leaves_it_running(host: SimulatedHost, call: str) -> None:
    signals: Any = StrikesTheRequest(host.ports.hypervisor, call)
    begun = host.ports.clock.monotonic()
    struck = replace(host.ports, hypervisor=signals.port())
    with pytest.raises(Interrupted) as raised:
        with_vm_stopped(struck, context(progress=signals), vm_of(host, "vm"), list, "done")
    assert (vm_of(host, "vm").state, raised.value.left) == (VmState.RUNNING, [])
    assert host.ports.claims.drained_vms() == ()
    assert host.ports.clock.monotonic() - begun < WAIT_SECONDS, "it waited for a guest that nobody asked"
    assert (raised.value.hint is None) is (call == "find_domain")


def test_a_guest_that_got_the_request_before_the_signal_is_started_again(host: SimulatedHost) -> None:
    signals = Signals()
    ports = on_call(host.ports, "hypervisor.shutdown", signals.come, after=True)
    with pytest.raises(Interrupted) as raised:
        with_vm_stopped(ports, context(), vm_of(host, "vm"), list, "done")
    assert (vm_of(host, "vm").state, raised.value.left) == (VmState.RUNNING, [])
