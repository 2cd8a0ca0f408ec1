"""VMs that take each other's places at once; on simulated hosts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.exchanges import SOFTWARE, crowded, gpu_of, stood
from tests.faults import CHANGING, Trial, Watch, counted, failing, outcome
from tests.hosts import (
    WAIT_SECONDS,
    Silent,
    SimulatedHost,
    create,
    delete,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.layouts import Signals
from tests.mixed_sizes import overlapping, placed
from tests.reserving_vms import carriers, vm_of
from tests.unit.engine.test_faults import spawn
from vgpuctl.engine.devices import has_missing_devices
from vgpuctl.engine.moves import move_in_rounds
from vgpuctl.errors import Busy, Interrupted, NoCapacity, NotFound, PartlyApplied
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.vm import VmState
from vgpuctl.observe import ReadScope, observe
from vgpuctl.plan.rounds import VmMove
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

__all__ = ["spawn"]
TWO = {
    "vendor-vf": ("{model: A100, vfs: {total: 4, enabled: 4}, profiles: [A100-20C, A100-40C]}", "A100-20C", "A100-40C"),
    "mdev-pf": ("{model: T4, profiles: [T4-8Q, T4-16Q]}", "T4-8Q", "T4-16Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 4, enabled: 4}, profiles: [A16-8Q, A16-16Q]}", "A16-8Q", "A16-16Q"),
    "mig": (
        "{model: RTX PRO 6000, vfs: {total: 4, enabled: 4}, mig: [1g.24gb+gfx], profiles: [DC-1-12Q, DC-1-24Q]}",
        "DC-1-12Q",
        "DC-1-24Q",
    ),
}
NAMES = ("first", "second", "third")


def opposite(directory: Path, kind: str, *, running: bool, more: str = "") -> SimulatedHost:
    """Return a host with two GPUs that lock each other out: two small vGPUs on one, a large one on the other."""
    gpu, small, large = TWO[kind]
    host = open_sim_host(directory, text=f"version: 1\n{SOFTWARE.get(kind, '')}{more}gpus:\n  - {gpu}\n  - {gpu}\n")
    for name, profile in zip(NAMES, (small, large, small), strict=True):
        create(host.ports, request(profile, name=name), start=running)
    return host.again()


def swap(ports: Host, first: str) -> tuple[VmMove, ...]:
    """Return the moves of each VM to the other GPU; `first` leads."""
    snapshot = observe(ports, ReadScope(types=True))
    one, other = (gpu.address for gpu in snapshot.gpus)
    moves = []
    for vm in sorted((vm for vm in snapshot.vms if vm.name in NAMES), key=lambda vm: (vm.name != first, vm.name)):
        assert vm.record is not None
        (vgpu,) = vm.record.vgpus
        moves.append(VmMove(vm, vgpu, other if vgpu.gpu == one else one))
    return tuple(moves)


def turned(ports: Host, first: str = "first") -> None:
    """Put each VM on the other GPU, all at once."""
    move_in_rounds(ports, [swap(ports, first)], WAIT_SECONDS, Silent())


@pytest.mark.parametrize("leader", NAMES[:2])
@pytest.mark.parametrize("running", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", TWO)
def test_each_vm_is_as_it_was_at_the_others_place(tmp_path: Path, kind: str, running: bool, leader: str) -> None:
    host = opposite(tmp_path, kind, running=running)
    before = {name: gpu_of(host, name) for name in NAMES}
    assert before["first"] == before["third"] != before["second"]
    turned(host.ports, leader)
    assert gpu_of(host, "first") == gpu_of(host, "third") == before["second"]
    assert gpu_of(host, "second") == before["first"]
    for name in NAMES:
        assert vm_of(host, name).state is (VmState.RUNNING if running else VmState.STOPPED)
    whole(host, "done")


def whole(host: SimulatedHost, where: str) -> None:
    """See that each VM is there and starts, that no two are in each other's way, and that nothing is left over."""
    assert not run_reconcile(host.ports, dry_run=True).data["findings"], where
    now = picture(host)
    assert {*now.types, *now.mdevs} <= set(now.claims), where
    assert (gpu_of(host, "first") == gpu_of(host, "third")) != (gpu_of(host, "first") == gpu_of(host, "second")), where
    for name in NAMES:
        start(host.ports, name)
    now = picture(host)
    held = sorted(carrier for running in now.running.values() for carrier in running)
    assert len(held) == 3, where
    assert held == sorted(now.claims) == sorted({*now.types, *now.mdevs}), where
    assert sorted(held) == sorted(carrier for name in NAMES for carrier in carriers(host, name)), where


def trial_of(directory: Path, kind: str, *, running: bool) -> Trial:
    return Trial(directory, partial(opposite, kind=kind, running=running), turned, whole)


@pytest.mark.parametrize("kind", TWO)
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, kind: str) -> None:
    trial = trial_of(tmp_path, kind, running=False)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 4
    assert trial.failures(calls) >= 5


@pytest.mark.parametrize("running", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", TWO)
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(
    tmp_path: Path, kind: str, spawn, running: bool
) -> None:
    trial = trial_of(tmp_path, kind, running=running)
    assert trial.deaths(trial.calls(), spawn) >= 4


def test_whenever_ctrl_c_comes_all_is_as_it_was_or_it_says_what_is_left_and_reconcile_makes_it_whole(
    tmp_path: Path,
) -> None:
    trial = trial_of(tmp_path, "vendor-vf", running=True)
    calls = trial.calls()
    undone = left = 0
    for number in [n for n, call in enumerate(calls, 1) if call in CHANGING]:
        where = f"Ctrl-C in call {number} {calls[number - 1]}"
        host, signals = trial.host(str(number)), Signals()
        before = picture(host)

        def come(
            at: int, call: str, args: tuple[object, ...], number: int = number, signals: Signals = signals
        ) -> None:
            if at == number:
                signals.come()

        ports = Watch(before=come).watch(host.ports)
        with pytest.raises((Interrupted, PartlyApplied)) as told:
            move_in_rounds(ports, [swap(ports, "first")], WAIT_SECONDS, signals)
        assert picture(host) == before or told.value.left, where
        undone, left = undone + (picture(host) == before), left + (picture(host) != before)
        later = host.again()
        run_reconcile(later.ports)
        whole(later, where)
    assert undone >= 10
    assert left >= 5


def two_off(directory: Path) -> SimulatedHost:
    """Return a host with a mixed-size GPU and two VMs on it that are off."""
    host = crowded(directory, "ad")
    for name in "ad":
        stop(host.ports, name)
    return host.again()


def overlapped(ports: Host) -> None:
    """Put each of the two where the other one is in its way."""
    snapshot = observe(ports, ReadScope(types=True))
    moves = []
    for name, place in (("a", 48), ("d", 36)):
        vm = next(vm for vm in snapshot.vms if vm.name == name)
        assert vm.record is not None
        (vgpu,) = vm.record.vgpus
        moves.append(VmMove(vm, vgpu, vgpu.gpu, place))
    move_in_rounds(ports, [tuple(moves)], WAIT_SECONDS, Silent())


def apart(host: SimulatedHost, where: str) -> None:
    """See that both VMs start, each at its place, and that nothing is left over."""
    assert not run_reconcile(host.ports, dry_run=True).data["findings"], where
    for name in "ad":
        start(host.ports, name)
    assert placed(host) in ({"a": 24, "d": 60}, {"a": 48, "d": 36}), where
    assert overlapping(host) == [], where
    now = picture(host)
    assert sorted(now.claims) == sorted({*now.types, *now.mdevs}), where
    assert len(now.claims) == 2, where


def test_on_a_mixed_size_gpu_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, spawn) -> None:
    trial = Trial(tmp_path, two_off, overlapped, apart)
    assert trial.deaths(trial.calls(), spawn) >= 4


H100 = "  - {model: H100, mig: [1g.10gb]}\n"
PAIR = {"a": ("H100-1-10C", 0), "b": ("H100-1-10C", 1)}
"""Where a GPU instance takes one vGPU its profile is all that counts: no plan has vGPUs change places there."""


def crossed(ports: Host) -> None:
    """Put each of the two into the GPU instance of the other."""
    snapshot = observe(ports, ReadScope(types=True))
    one, other = (gpu.address for gpu in snapshot.gpus)
    owned = [(vm, vm.record.vgpus[0]) for vm in snapshot.vms if vm.record is not None]
    moves = tuple(VmMove(vm, vgpu, other if vgpu.gpu == one else one) for vm, vgpu in owned)
    move_in_rounds(ports, [moves], WAIT_SECONDS, Silent())


def each_in_one(host: SimulatedHost, where: str) -> None:
    """See that both VMs start, on different GPUs, and that nothing is left over."""
    assert not run_reconcile(host.ports, dry_run=True).data["findings"], where
    for name in PAIR:
        start(host.ports, name)
    assert gpu_of(host, "a") != gpu_of(host, "b"), where
    now = picture(host)
    assert sorted(now.claims) == sorted(now.types), where
    assert len(now.claims) == 2, where


def pair(directory: Path, *, on: bool) -> SimulatedHost:
    return stood(directory, H100 * 2, PAIR, on=on)


@pytest.mark.parametrize("on", [True, False], ids=["running", "off"])
def test_two_vms_change_gpu_instances(tmp_path: Path, on: bool) -> None:
    host = pair(tmp_path, on=on)
    before = [gpu_of(host, name) for name in PAIR]
    crossed(host.ports)
    assert [gpu_of(host, name) for name in PAIR] == before[::-1]
    assert vm_of(host, "a").state is vm_of(host, "b").state is (VmState.RUNNING if on else VmState.STOPPED)
    each_in_one(host, "done")


def test_whatever_call_fails_or_a_process_dies_in_two_vms_have_gpu_instances(tmp_path: Path, spawn) -> None:
    trial = Trial(tmp_path, partial(pair, on=False), crossed, each_in_one)
    calls = trial.calls()
    assert trial.failures(calls) >= 5
    assert trial.deaths(calls, spawn) >= 4


def test_where_one_guest_does_not_shut_down_all_run_again_where_they_were(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=True, more="faults: [{on: shutdown, match: third, kind: lost}]\n")
    before = picture(host)
    with pytest.raises(Busy, match="third did not shut down within"):
        turned(host.ports)
    assert picture(host) == before


def test_a_vm_that_cannot_move_any_more_is_refused_before_any_shutdown(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=True)
    moves = swap(host.ports, "first")
    delete(host.ports, "second")
    before = picture(host)
    with pytest.raises(NotFound, match="second"):
        move_in_rounds(host.ports, [moves], WAIT_SECONDS, Silent())
    create(host.ports, request("A100-40C", name="other"))
    assert len(picture(host).running) == len(before.running) + 1


def interrupted(directory: Path, *, decided: bool) -> SimulatedHost:
    """Return a host on which an exchange was broken off after VMs were switched over, or before any was."""
    calls = counted(opposite(directory / "dry", "vendor-vf", running=False).ports, turned)
    redefined = [n for n, call in enumerate(calls, 1) if call == "hypervisor.redefine"]
    at = redefined[-1] if decided else redefined[0]
    host = opposite(directory, "vendor-vf", running=False)
    error = outcome(partial(turned, failing(host.ports, at, done=not decided, for_good=True)))
    assert error is not None
    assert error.code == "partly-applied"
    return host.again()


def half(host: SimulatedHost) -> list[str]:
    records = {name: vm_of(host, name).record for name in NAMES}
    return [name for name, record in records.items() if record is not None and record.exchange is not None]


def test_until_reconcile_has_run_a_vm_whose_exchange_was_interrupted_is_left_alone(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)
    assert half(host) == ["third"]
    for refused in (partial(start, host.ports, "third"), partial(turned, host.ports)):
        with pytest.raises(Busy, match="its place is being exchanged"):
            refused()
    vm = vm_of(host, "third")
    with pytest.raises(Busy, match="its place is being exchanged"):
        has_missing_devices(host.ports, vm, vm.record)
    assert "half-exchanged" in {finding["kind"] for finding in run_reconcile(host.ports).data["findings"]}
    whole(host, "mended")


def test_an_exchange_is_finished_after_a_boot_too(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)
    before = {name: gpu_of(host, name) for name in NAMES}
    assert before["third"] != before["first"]
    host.sim.reboot()
    host = host.again()
    run_reconcile(host.ports)
    assert gpu_of(host, "third") == gpu_of(host, "first") == before["first"]
    whole(host.again(), "booted")


def test_nobody_gets_the_place_that_a_vm_goes_to_before_it_is_there(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)
    host.sim.reboot()
    host = host.again()
    with pytest.raises(NoCapacity):
        create(host.ports, request("A100-40C", name="faster"))


def test_where_the_deciding_vm_was_not_put_back_the_exchange_counts(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=False)
    assert half(host) == ["second", "third"]
    run_reconcile(host.ports)
    assert half(host) == []
    whole(host, "mended")


def test_a_vm_that_another_program_starts_meanwhile_loses_nothing_to_reconcile(tmp_path: Path) -> None:
    made = interrupted(tmp_path / "made", decided=True)
    leader = vm_of(made, "first").record
    assert leader is not None
    profile = picture(made).types[leader.vgpus[0].carrier]
    delete(made.ports, "second")  # which has the whole GPU now
    record = vm_of(made, "third").record
    assert record is not None
    (old,) = record.vgpus
    made.ports.sysfs.write(f"/sys/bus/pci/devices/{old.function}/nvidia/current_vgpu_type", f"{profile}\n")
    made = made.again()
    looked = []

    def begin(number: int, call: str, args: object) -> None:
        looked.extend([call] if call == "hypervisor.find_domain" else [])
        if looked == [call]:  # it was off when reconcile looked last; libvirt has no hook of vgpuctl's here
            made.sim.hypervisor.start(made.sim._core.read_state().uuids_by_name["third"])

    error = outcome(partial(run_reconcile, Watch(after=begin).watch(made.ports)))
    assert vm_of(made, "third").state is VmState.RUNNING
    assert error is not None
    assert error.message.startswith("VM third is running")
    assert error.hint == "virsh shutdown third, then run the command again"  # stop-vm refuses one that is half-way
    assert picture(made).types[old.carrier] == profile


def test_a_vm_that_runs_where_it_was_keeps_that_place(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)

    class Runs:
        """A hypervisor on which the VM was started behind vgpuctl's back."""

        def __getattr__(self, name: str) -> object:
            return getattr(host.ports.hypervisor, name)

        def domains(self) -> tuple[DomainInfo, ...]:
            found = host.ports.hypervisor.domains()
            return tuple(replace(r, state=VmState.RUNNING) if r.name == "third" else r for r in found)

    before = picture(host)
    seen = run_reconcile(replace(host.ports, hypervisor=Runs()), dry_run=True).data["findings"]
    assert [f["action"] for f in seen if f["kind"] == "half-exchanged"] == [
        "nothing while it runs where it was: virsh shutdown third first"
    ]
    assert picture(host) == before
