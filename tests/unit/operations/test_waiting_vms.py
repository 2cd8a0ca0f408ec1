"""VMs in each other's way: one gives up its place and waits, the others move, and it gets its new one.

Size: every way in which such moves end early, on the same hosts with two VMs in each other's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from tests import EVERYTHING
from tests.blocked_hosts import ON_TWO, crowded, gpu_of, on_two_gpus, stood
from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial, acts_on_backends, counted, outcome, sampled
from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    set_vm,
    start,
    stop,
)
from tests.layouts import Signals
from tests.meanwhile import on_call, rebooted, unchanged
from tests.mixed_sizes import overlapping, placed
from tests.reserving_vms import all_start, carriers, record_of, vm_of
from tests.vgpus import finding_kinds
from vgpuctl.errors import Busy, Interrupted, InUse, NoCapacity, NotFound, PartlyApplied
from vgpuctl.model.outcome import Progress
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.attach import attach, detach
from vgpuctl.operations.change import change_vm, move_vgpu
from vgpuctl.operations.devices import has_missing_devices, make_devices
from vgpuctl.operations.moves import carry_out
from vgpuctl.operations.plans.move_order import MoveEntry, VmLeave, VmMove
from vgpuctl.operations.plans.results import vm_result, vm_row
from vgpuctl.operations.plans.vm_update import MoveTarget
from vgpuctl.operations.unowned import give_place, give_up_place
from vgpuctl.ports.host import Host

NAMES = ("first", "second", "third")


def opposite(directory: Path, kind: str, *, running: bool, more: str = "") -> SimulatedHost:
    """Return a host with two GPUs that lock each other out: two small vGPUs on one, a large one on the other."""
    _, small, large = ON_TWO[kind]
    return on_two_gpus(
        directory, kind, dict(zip(NAMES, (small, large, small), strict=True)), running=running, more=more
    )


def devices_and_claims(host: SimulatedHost) -> object:
    """Return what VMs hold on the GPUs."""
    now = picture(host)
    return now.claims, now.types, now.mdevs


def order_from(ports: Host, leaving: Sequence[str], moving: Sequence[str]) -> tuple[MoveEntry, ...]:
    """Return the order in which some VMs leave their places, and then all go to the other of two GPUs."""
    snapshot = observe(ports, ReadScope(types=True))
    one, other = (gpu.address for gpu in snapshot.gpus)
    vms = {vm.name: vm for vm in snapshot.vms}
    vgpus = {name: vm.record.vgpus[0] for name, vm in vms.items() if vm.record is not None and vm.record.vgpus}
    leaves = [VmLeave(vms[name], vgpus[name]) for name in leaving]
    moves = [
        VmMove(vms[name], vgpus[name], other if vgpus[name].gpu == one else one, waits=name in leaving)
        for name in moving
    ]
    return (*leaves, *moves)


def turned(ports: Host, leaving: Sequence[str] = ("second",), progress: Progress | None = None) -> None:
    """Put each VM on the other GPU."""
    moving = ("first", "third", "second") if "second" in leaving else ("second", "first", "third")
    carry_out(ports, context(progress=progress), order_from(ports, leaving, moving))


@pytest.mark.parametrize("leaving", [("second",), ("first", "third")], ids=["one", "two"])
@pytest.mark.parametrize("running", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", ON_TWO)
def test_each_vm_is_as_it_was_at_the_others_place(
    tmp_path: Path, kind: str, running: bool, leaving: tuple[str, ...]
) -> None:
    host = opposite(tmp_path, kind, running=running)
    before = {name: gpu_of(host, name) for name in NAMES}
    assert before["first"] == before["third"] != before["second"]
    turned(host.ports, leaving)
    assert gpu_of(host, "first") == gpu_of(host, "third") == before["second"]
    assert gpu_of(host, "second") == before["first"]
    for name in NAMES:
        assert vm_of(host, name).state is (VmState.RUNNING if running else VmState.STOPPED)
        assert record_of(host, name).always_reserves
    assert host.ports.claims.drained_vms() == ()
    assert host.ports.claims.vms_in_progress() == ()
    whole(host, "done")


def waiting(host: SimulatedHost) -> list[str]:
    """Return the VMs that wait for a place."""
    return [name for name in NAMES if record_of(host, name).waiting_vgpus()]


def whole(host: SimulatedHost, where: str) -> None:
    """See that each VM is there and starts, that no two are in each other's way, and that nothing is left over.

    Where a kill left the host full, a VM waits for a place, and reconcile says so until there is one.
    """
    findings = run_reconcile(host.ports, dry_run=True).data.findings
    if findings:
        assert waiting(host) == ["second"], where
        assert {f.kind for f in findings} <= {"no-place", "drained"}, where
        assert all(f.action.startswith("nothing") and "no room" in f.action for f in findings), where
        go_on(host)
    assert waiting(host) == [], where
    all_start(host, where, NAMES)
    assert sorted(picture(host).claims) == sorted(one for name in NAMES for one in carriers(host, name)), where


def go_on(host: SimulatedHost) -> None:
    """Bring the third VM to the first one: that makes room for the second."""
    stop(host.ports, "third")
    (carrier,) = carriers(host, "third")
    target = MoveTarget(gpu_of(host, "first"))
    move_vgpu(host.ports, context(), "third", carrier, target)
    run_reconcile(host.ports)


def trial_of(directory: Path, kind: str, *, running: bool) -> Trial:
    return Trial(directory, partial(opposite, kind=kind, running=running), turned, whole)


def failures(trial: Trial, calls: tuple[str, ...], *, one_of: int = 1) -> int:
    """Make each call of the moves fail, or one of so many; return how often the error named a VM left waiting.

    Moves that are complete stay. After an error all VMs have a place, or the error names what is left.
    """
    assert len(set(calls) & CHANGING) >= 4
    named = 0
    for one in failed_calls(trial, calls, one_of=one_of):
        later = one.host.again()
        if one.error is not None:
            assert not one.is_left or one.error.left or one.error.changed, one.where
            vms = observe(later.ports, ReadScope()).vms
            for name in [vm.name for vm in vms if vm.record and vm.record.waiting_vgpus()]:
                assert any(f"VM {name} " in line for line in one.error.left), one.where
                assert f"vgpuctl start-vm {name}" in str(one.error.hint) or one.error.code == "partly-applied", (
                    one.where
                )
                named += 1
            run_reconcile(later.ports)
        trial.whole(later, one.where)
    return named


@pytest.mark.parametrize("kind", [kind for _, kind in acts_on_backends(["move"], ON_TWO)])
def test_whatever_call_fails_no_vm_is_lost(tmp_path: Path, kind: str) -> None:
    trial = trial_of(tmp_path, kind, running=False)
    assert failures(trial, trial.calls()) >= (kind == "vendor-vf")


@pytest.mark.parametrize(("state", "kind"), acts_on_backends(["running", "off"], ON_TWO))
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, kind: str, spawn, state: str) -> None:
    trial = trial_of(tmp_path, kind, running=state == "running")
    assert trial.deaths(trial.calls(), spawn) >= 1


@pytest.mark.parametrize("kind", [kind for _, kind in acts_on_backends(["start"], ON_TWO)])
def test_whatever_call_a_process_dies_in_start_vm_gives_the_vm_a_place(tmp_path: Path, kind: str, spawn) -> None:
    """Before reconcile has run; where the host is full, start-vm says so, and reconcile finds the same."""
    trial = trial_of(tmp_path, kind, running=False)
    started = 0
    for _, _, where, later in trial.killed(trial.calls(), spawn):
        for name in waiting(later):
            error = outcome(partial(start, later.ports, name))
            assert error is None or isinstance(error, NoCapacity), where
            assert (error is None) == (waiting(later) == []), where
            started += error is None
        run_reconcile(later.ports)
        whole(later, where)
    assert started >= (3 if EVERYTHING else 1)


def test_whenever_ctrl_c_comes_all_is_as_it_was_or_it_says_what_is_left_and_reconcile_makes_it_whole(
    tmp_path: Path,
) -> None:
    trial = trial_of(tmp_path, "vendor-vf", running=True)
    calls = trial.calls()
    undone = left = 0
    for number in sampled(n for n, call in enumerate(calls, 1) if call in CHANGING):
        where = f"Ctrl-C in call {number} {calls[number - 1]}"
        host, signals = trial.host(str(number)), Signals()
        before = picture(host)
        at = calls[:number].count(calls[number - 1])
        ports = on_call(host.ports, calls[number - 1], signals.come, nth=at)
        error = outcome(partial(turned, ports, progress=signals))
        assert error is None or isinstance(error, Interrupted | PartlyApplied), where
        assert error is None or picture(host) == before or error.left or error.changed, where
        undone, left = undone + (picture(host) == before), left + (picture(host) != before)
        later = host.again()
        run_reconcile(later.ports)
        whole(later, where)
    assert undone >= (5 if EVERYTHING else 1)
    assert left >= (10 if EVERYTHING else 1)


def test_three_vms_change_places_in_a_circle(tmp_path: Path) -> None:
    host = stood(tmp_path, ONE_VF * 3, {name: ("A100-40C", n) for n, name in enumerate("abc")}, on=True)
    snapshot = observe(host.ports, ReadScope(types=True))
    vms = {vm.name: vm for vm in snapshot.vms}
    vgpus = {name: record_of(host, name).vgpus[0] for name in "abc"}
    targets = {"a": vgpus["b"].gpu, "b": vgpus["c"].gpu, "c": vgpus["a"].gpu}
    moves = [VmMove(vms[name], vgpus[name], targets[name], waits=name == "a") for name in "cba"]
    carry_out(host.ports, context(), (VmLeave(vms["a"], vgpus["a"]), *moves))
    assert {name: gpu_of(host, name) for name in "abc"} == targets
    assert all(vm_of(host, name).state is VmState.RUNNING for name in "abc")
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def two_off(directory: Path) -> SimulatedHost:
    """Return a host with a mixed-size GPU and two VMs on it that are off."""
    host = crowded(directory, "ad")
    for name in "ad":
        stop(host.ports, name)
    return host.again()


def overlapped(ports: Host) -> None:
    """Put each of the two where the other one is in its way."""
    vms = {vm.name: vm for vm in observe(ports, ReadScope(types=True)).vms}
    entries: list[MoveEntry] = []
    for name, place in (("d", 36), ("a", 48)):
        (vgpu,) = vms[name].record.vgpus
        entries.append(VmMove(vms[name], vgpu, vgpu.gpu, place, waits=name == "a"))
    carry_out(ports, context(), (VmLeave(vms["a"], entries[1].vgpu), *entries))


def apart(host: SimulatedHost, where: str) -> None:
    """See that both VMs start, each at its place, and that nothing is left over."""
    all_start(host, where, "ad")
    assert set(placed(host)) == {"a", "d"}, where
    assert None not in placed(host).values(), where
    assert overlapping(host) == [], where


def test_on_a_mixed_size_gpu_each_is_where_the_other_was_in_its_way(tmp_path: Path) -> None:
    host = two_off(tmp_path)
    overlapped(host.ports)
    apart(host, "done")
    assert placed(host) == {"a": 48, "d": 36}


ONE_VF = "  - {model: A100, vfs: {total: 1, enabled: 1}, profiles: [A100-20C, A100-40C]}\n"
H100 = "  - {model: H100, mig: [1g.10gb]}\n"
PAIR = {"a": ("H100-1-10C", 0), "b": ("H100-1-10C", 1)}
"""Where a GPU instance takes one vGPU its profile is all that counts: no plan has vGPUs change places there."""


def crossed(ports: Host) -> None:
    """Put each of the two into the GPU instance of the other."""
    carry_out(ports, context(), order_from(ports, ["a"], ["b", "a"]))


@pytest.mark.parametrize("on", [True, False], ids=["running", "off"])
@pytest.mark.parametrize(
    ("gpu", "vms"), [(ONE_VF, {"a": ("A100-20C", 0), "b": ("A100-40C", 1)}), (H100, PAIR)], ids=["VFs", "instances"]
)
def test_two_vms_change_places_although_no_vf_or_instance_is_free(
    tmp_path: Path, on: bool, gpu: str, vms: dict[str, tuple[str, int]]
) -> None:
    host = stood(tmp_path, gpu * 2, vms, on=on)
    before = [gpu_of(host, name) for name in PAIR]
    crossed(host.ports)
    assert [gpu_of(host, name) for name in PAIR] == before[::-1]
    assert vm_of(host, "a").state is vm_of(host, "b").state is (VmState.RUNNING if on else VmState.STOPPED)
    all_start(host.again(), "done", PAIR)


@pytest.mark.parametrize(
    ("made", "act", "check"),
    [
        (two_off, overlapped, apart),
        (partial(stood, gpus=H100 * 2, placed_on=PAIR, on=False), crossed, partial(all_start, names=PAIR)),
    ],
    ids=["mixed sizes", "GPU instances"],
)
def test_within_a_gpu_whatever_call_fails_or_a_process_dies_in_no_vm_is_lost(
    tmp_path: Path, spawn, made, act, check
) -> None:
    trial = Trial(tmp_path, made, act, check)
    calls = trial.calls()
    failures(trial, calls, one_of=1 if EVERYTHING else 3)
    assert trial.deaths(calls, spawn) >= 1


def test_where_a_guest_does_not_shut_down_who_waits_runs_again(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=True, more="faults: [{on: shutdown, match: first, kind: lost}]\n")
    before = {name: gpu_of(host, name) for name in NAMES}
    with pytest.raises(Busy, match="first did not shut down within") as failed:
        turned(host.ports)
    assert len(failed.value.left) == 2
    assert all(line.endswith(": not done") for line in failed.value.left)
    assert {name: gpu_of(host, name) for name in NAMES} == before
    assert all(vm_of(host, name).state is VmState.RUNNING for name in NAMES)
    whole(host, "placed again")


def test_where_there_is_no_place_any_more_the_error_names_who_waits(tmp_path: Path) -> None:
    lost = "faults: [{on: shutdown, match: third, kind: lost}]\n"
    host = opposite(tmp_path, "vendor-vf", running=True, more=lost)
    with pytest.raises(Busy, match="third did not shut down within") as failed:
        turned(host.ports)
    assert any(line.startswith("VM second has no place: no room for A100-40C") for line in failed.value.left)
    assert "vgpuctl start-vm second" in str(failed.value.hint)
    assert waiting(host) == ["second"]


def test_a_vm_that_is_gone_is_reported_and_the_others_stay(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=True)
    order = order_from(host.ports, ["second"], ["first", "third", "second"])
    delete(host.ports, "second")
    with unchanged(host), pytest.raises(NotFound, match="second"):
        carry_out(host.ports, context(), order)


def test_a_vm_deleted_while_it_waits_is_reported(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=False)
    order = order_from(host.ports, ["second"], ["first", "third", "second"])
    ports = on_call(host.ports, "hypervisor.redefine", lambda: delete(host.again().ports, "second"), nth=2, after=True)
    with pytest.raises(NotFound, match="second"):
        carry_out(ports, context(), order)
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def without_place(directory: Path, kind: str = "vendor-vf", *, running: bool = False) -> SimulatedHost:
    """Return a host on which the second VM gave up its place; the claims and devices of the others are as before."""
    host = opposite(directory, kind, running=running)
    if running:
        stop(host.ports, "second")
    (carrier,) = carriers(host, "second")
    give_up_place(host.ports, context(), "second", carrier)
    return host.again()


@pytest.mark.parametrize("kind", ON_TWO)
def test_who_waits_has_neither_claim_nor_device_and_others_may_take_its_place(tmp_path: Path, kind: str) -> None:
    host = without_place(tmp_path, kind)
    last = record_of(host, "second").vgpus[0]
    now = picture(host)
    assert len(now.claims) == 2
    assert last.carrier not in {*now.claims, *now.types, *now.mdevs}
    vm = vm_of(host, "second")
    snapshot = observe(host.ports, ReadScope())
    for value in (vm_result(snapshot, vm), vm_row(snapshot, vm)):
        (vgpu,) = value.vgpus
        assert (vgpu.present, vgpu.gpu, vgpu.carrier) == (False, last.gpu, last.carrier)
        assert vgpu.reason == "it gave up its place for a move; vgpuctl reconcile-host or start-vm assigns one"
    create(host.ports, request(ON_TWO[kind][2], name="other"))
    assert gpu_of(host, "other") == last.gpu
    findings = run_reconcile(host.again().ports).data.findings
    assert [(f.kind, f.what) for f in findings] == [
        ("no-place", f"VM second gave up its place for {ON_TWO[kind][2]} for a move")
    ]
    assert findings[0].action.startswith("nothing: no room for")
    assert findings[0].action.endswith("; try again: vgpuctl start-vm second")
    with pytest.raises(NoCapacity):
        start(host.ports, "second")
    delete(host.ports, "other")
    assert run_reconcile(host.again().ports).data.findings[0].action == "give VM second a place"
    assert record_of(host, "second").always_reserves
    whole(host.again(), "room again")


@pytest.mark.parametrize("kind", ON_TWO)
def test_start_vm_gives_a_vm_that_waits_a_place(tmp_path: Path, kind: str) -> None:
    host = without_place(tmp_path, kind)
    start(host.ports, "second")
    assert vm_of(host, "second").state is VmState.RUNNING
    whole(host.again(), "started")


@pytest.mark.parametrize("kind", ON_TWO)
def test_a_vm_that_waits_is_deleted_without_what_others_have(tmp_path: Path, kind: str) -> None:
    host = without_place(tmp_path, kind)
    create(host.ports, request(ON_TWO[kind][2], name="other"))
    with unchanged(host, devices_and_claims):
        delete(host.ports, "second")
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_a_vm_that_waits_gets_another_profile_or_none(tmp_path: Path) -> None:
    host = without_place(tmp_path)
    wanted = request("A100-20C", name="second")
    set_vm(host.ports, wanted)
    assert record_of(host, "second").always_reserves
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    (carrier,) = carriers(host, "second")
    give_up_place(host.ports, context(), "second", carrier)
    detach(host.ports, context(), "second")
    assert record_of(host, "second").vgpus == ()
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


@pytest.mark.parametrize("kind", ["vendor-vf", "mdev-pf"])
def test_a_vm_that_waits_is_changed_and_gets_no_second_vgpu(tmp_path: Path, kind: str) -> None:
    """Its definition still refers to its last VF, which would be chosen for the second one."""
    host = opposite(tmp_path, kind, running=False)
    (carrier,) = carriers(host, "first")
    give_up_place(host.ports, context(), "first", carrier)
    larger = request(ON_TWO[kind][1], name="first", memory_mib=8192)
    change_vm(host.ports, context(), larger, {"memory"})
    assert vm_of(host, "first").memory_mib == 8192
    assert waiting(host) == ["first"]
    delete(host.ports, "second")
    second = request(ON_TWO[kind][1], name="first")
    with pytest.raises(Busy, match="first waits for a place") as refused:
        attach(host.ports, context(), second)
    assert refused.value.hint == "vgpuctl reconcile-host assigns one"
    run_reconcile(host.again().ports)
    later = host.again()
    attach(later.ports, context(), second)
    start(later.again().ports, "first")
    assert len(set(carriers(host, "first"))) == 2
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def started_by_virsh(host: SimulatedHost, name: str) -> None:
    """Start a VM as virsh does: libvirt's hook makes its devices first."""
    vm = vm_of(host, name)
    assert has_missing_devices(host.ports, vm, vm.record)
    others = tuple(other for other in observe(host.ports, ReadScope()).vms if other.name != name)
    make_devices(host.ports, context(), vm, vm.record, (vm, *others))
    host.ports.hypervisor.start(vm.uuid)


@pytest.mark.parametrize("kind", ON_TWO)
def test_a_vm_that_waits_and_is_started_by_virsh_has_its_place_recorded(tmp_path: Path, kind: str) -> None:
    host = without_place(tmp_path, kind)
    started_by_virsh(host, "second")
    assert waiting(host) == ["second"]
    findings = run_reconcile(host.again().ports).data.findings
    assert [(f.kind, f.action) for f in findings] == [("no-place", "record the place that VM second has")]
    assert waiting(host) == []
    whole(host.again(), "recorded")


def test_libvirts_hook_takes_no_vf_that_another_vm_has_by_now(tmp_path: Path) -> None:
    host = without_place(tmp_path)
    create(host.ports, request("A100-40C", name="other"))
    with pytest.raises(InUse, match=r"second gave up .* for a move, and other uses it") as refused:
        started_by_virsh(host, "second")
    assert refused.value.hint == "vgpuctl start-vm second assigns a free one"


@pytest.mark.parametrize("kind", ["vendor-vf", "mdev-pf", "mdev-vf"])
def test_after_a_boot_who_waits_gets_a_place_and_takes_none_from_others(tmp_path: Path, kind: str) -> None:
    host = without_place(tmp_path, kind, running=True)
    host = rebooted(host)
    for name in ("first", "third"):
        start(host.ports, name)
    run_reconcile(host.again().ports)
    assert waiting(host) == []
    whole(host.again(), "booted")


def test_while_a_process_moves_a_vm_reconcile_leaves_it_alone(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=False)
    seen: list[list[str]] = []

    def reconcile_meanwhile() -> None:
        other = open_sim_host(host.directory, host.scenario)
        seen.append(finding_kinds(other))

    turned(on_call(host.ports, "claims.remove", reconcile_meanwhile, nth=1, after=True))  # the place was given up
    assert seen == [[]]


def test_only_a_vm_that_is_off_and_has_the_vgpu_gives_up_its_place(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=True)
    (carrier,) = carriers(host, "second")
    give_up = partial(give_up_place, host.ports, context(), "second")
    with unchanged(host), pytest.raises(InUse, match="second is running"):
        give_up(carrier)
    stop(host.ports, "second")
    with pytest.raises(Busy, match="second no longer has gone"):
        give_up("gone")
    give_up(carrier)
    with pytest.raises(Busy, match="no longer has"):
        give_up(carrier)


def test_a_vm_with_a_place_gets_no_other(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=False)
    calls = counted(host.ports, partial(give_place, context=context(), name="second"))
    assert not set(calls) & CHANGING
