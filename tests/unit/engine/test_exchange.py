"""VMs that take each other's places at once; on simulated hosts."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, Trial, Watch, counted, failing, outcome
from tests.layouts import Signals
from tests.lent import carriers, vm_of
from tests.mixed_sizes import mixed, overlapping, placed
from tests.unit.engine.test_faults import spawn
from tests.worlds import WAIT_SECONDS, Host, Silent, create, delete, mend, open_host, picture, start, stop, wish
from vgpuctl.engine.attach import attach
from vgpuctl.engine.change import move_vgpu
from vgpuctl.engine.cordon import cordon
from vgpuctl.engine.devices import missing_devices
from vgpuctl.engine.moves import defragment, make_room, move_all
from vgpuctl.engine.observe import Want, observe
from vgpuctl.engine.queries import explain
from vgpuctl.errors import Busy, Interrupted, NoCapacity, NotFound, PartlyApplied
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.records import DomainRecord
from vgpuctl.model.vm import VmState
from vgpuctl.model.world import World
from vgpuctl.plan.in_place import Goal
from vgpuctl.plan.rounds import VmMove
from vgpuctl.value import Value, replace

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
NEWEST = """kernel: 7.0.0-14-generic
libvirt: {version: "12.0.0", qemu: "10.2.1"}
nvidia: {driver: "595.45.04"}
"""
SOFTWARE = {"mdev-vf": 'kernel: "5.14.0"\n', "mig": NEWEST}
NAMES = ("first", "second", "third")


def opposite(directory: Path, kind: str, *, running: bool, more: str = "") -> Host:
    """Return a host with two GPUs that lock each other out: two small vGPUs on one, a large one on the other."""
    gpu, small, large = TWO[kind]
    host = open_host(directory, text=f"version: 1\n{SOFTWARE.get(kind, '')}{more}gpus:\n  - {gpu}\n  - {gpu}\n")
    for name, profile in zip(NAMES, (small, large, small), strict=True):
        create(host.world, wish(profile, name=name), start=running)
    return host.again()


def gpu_of(host: Host, name: str) -> str:
    promise = vm_of(host, name).promise
    assert promise is not None
    (vgpu,) = promise.vgpus
    return vgpu.gpu


def swap(world: World, first: str) -> tuple[VmMove, ...]:
    """Return the moves of each VM to the other GPU; `first` leads."""
    snapshot = observe(world, Want(types=True))
    one, other = (gpu.address for gpu in snapshot.gpus)
    moves = []
    for vm in sorted((vm for vm in snapshot.vms if vm.name in NAMES), key=lambda vm: (vm.name != first, vm.name)):
        assert vm.promise is not None
        (vgpu,) = vm.promise.vgpus
        moves.append(VmMove(vm, vgpu, other if vgpu.gpu == one else one))
    return tuple(moves)


def turned(world: World, first: str = "first") -> None:
    """Put each VM on the other GPU, all at once."""
    move_all(world, [swap(world, first)], WAIT_SECONDS, Silent())


@pytest.mark.parametrize("leader", NAMES[:2])
@pytest.mark.parametrize("running", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", TWO)
def test_each_vm_is_as_it_was_at_the_others_place(tmp_path: Path, kind: str, running: bool, leader: str) -> None:
    host = opposite(tmp_path, kind, running=running)
    before = {name: gpu_of(host, name) for name in NAMES}
    assert before["first"] == before["third"] != before["second"]
    turned(host.world, leader)
    assert gpu_of(host, "first") == gpu_of(host, "third") == before["second"]
    assert gpu_of(host, "second") == before["first"]
    for name in NAMES:
        assert vm_of(host, name).state is (VmState.RUNNING if running else VmState.STOPPED)
    whole(host, "done")


def whole(host: Host, where: str) -> None:
    """See that each VM is there and starts, that no two are in each other's way, and that nothing is left over."""
    assert not mend(host.world, dry_run=True).data["findings"], where
    now = picture(host)
    assert {*now.types, *now.mdevs} <= set(now.claims), where
    assert (gpu_of(host, "first") == gpu_of(host, "third")) != (gpu_of(host, "first") == gpu_of(host, "second")), where
    for name in NAMES:
        start(host.world, name)
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

        world = Watch(before=come).watch(host.world)
        with pytest.raises((Interrupted, PartlyApplied)) as told:
            move_all(world, [swap(world, "first")], WAIT_SECONDS, signals)
        assert picture(host) == before or told.value.left, where
        undone, left = undone + (picture(host) == before), left + (picture(host) != before)
        later = host.again()
        mend(later.world)
        whole(later, where)
    assert undone >= 10
    assert left >= 5


STANDS = {"a": ("DC-24Q", 24), "b": ("DC-24Q", 72), "c": ("DC-16Q", 0), "d": ("DC-12Q", 60)}
"""The vGPUs of a mixed-size GPU: 8 and 12 GiB are free, and only between 36 and 60 could 16 be, in one way."""
MIXED = f"version: 1\n{NEWEST}gpus:\n  - {{model: RTX PRO 6000, vfs: {{total: 6, enabled: 6}}}}\n"


def crowded(directory: Path, names: str = "abcd") -> Host:
    host = mixed(directory, text=MIXED)
    for name in names:
        profile, place = STANDS[name]
        create(host.world, wish(profile, name=name))
        if placed(host)[name] != place:
            stop(host.world, name)
            goal = Goal(gpu_of(host, name), place)
            move_vgpu(host.world, name, *carriers(host, name), goal, wait_seconds=WAIT_SECONDS, progress=Silent())
            start(host.world, name)
    assert placed(host) == {name: STANDS[name][1] for name in names}
    return host.again()


def two_off(directory: Path) -> Host:
    """Return a host with a mixed-size GPU and two VMs on it that are off."""
    host = crowded(directory, "ad")
    for name in "ad":
        stop(host.world, name)
    return host.again()


def overlapped(world: World) -> None:
    """Put each of the two where the other one is in its way."""
    snapshot = observe(world, Want(types=True))
    moves = []
    for name, place in (("a", 48), ("d", 36)):
        vm = next(vm for vm in snapshot.vms if vm.name == name)
        assert vm.promise is not None
        (vgpu,) = vm.promise.vgpus
        moves.append(VmMove(vm, vgpu, vgpu.gpu, place))
    move_all(world, [tuple(moves)], WAIT_SECONDS, Silent())


def apart(host: Host, where: str) -> None:
    """See that both VMs start, each at its place, and that nothing is left over."""
    assert not mend(host.world, dry_run=True).data["findings"], where
    for name in "ad":
        start(host.world, name)
    assert placed(host) in ({"a": 24, "d": 60}, {"a": 48, "d": 36}), where
    assert overlapping(host) == [], where
    now = picture(host)
    assert sorted(now.claims) == sorted({*now.types, *now.mdevs}), where
    assert len(now.claims) == 2, where


def test_on_a_mixed_size_gpu_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, spawn) -> None:
    trial = Trial(tmp_path, two_off, overlapped, apart)
    assert trial.deaths(trial.calls(), spawn) >= 4


class Sizes(Value):
    """A GPU in a scenario, of which four small vGPUs or fewer large ones fit on one; `twin` is as large as small."""

    gpu: str
    small: str
    twin: str
    large: str


STOOD = {
    "vendor-vf": Sizes("model: L40S", "L40S-12Q", "L40S-12A", "L40S-24Q"),
    "mdev-vf": Sizes("model: A16", "A16-4Q", "A16-4A", "A16-8Q"),
    "mig": Sizes("model: RTX PRO 6000, mig: [1g.24gb+gfx]", "DC-1-6Q", "DC-1-6A", "DC-1-24Q"),
}


def stood(directory: Path, gpus: str, stands: dict[str, tuple[str, int]], *, software: str = "", on: bool) -> Host:
    """Return a host on which each VM has a vGPU of its profile on the GPU of its number, and is bound to none."""
    host = open_host(directory, text=f"version: 1\n{software}gpus:\n{gpus}")
    addresses = [gpu.address for gpu in observe(host.world, Want()).gpus]
    for name, (profile, number) in stands.items():
        for address in addresses:
            cordon(host.world, address, cordoned=address != addresses[number], dry_run=False, progress=Silent())
        create(host.world, wish(profile, name=name), start=on)
    for address in addresses:
        cordon(host.world, address, cordoned=False, dry_run=False, progress=Silent())
    return host.again()


def with_vfs(directory: Path, kind: str, vfs: tuple[int, ...], *, on: bool) -> Host:
    """Return a host with GPUs of so many VFs: a small vGPU on the first, a large one on the second, a twin on a third.

    The third one does not offer the small profile.
    """
    sizes = STOOD[kind]
    stands = {"a": (sizes.small, 0), "b": (sizes.large, 1), "c": (sizes.twin, 2)}
    both = f"{sizes.twin}, {sizes.large}"
    gpus = "".join(
        f"  - {{{sizes.gpu}, vfs: {{total: {number}, enabled: {number}}}, profiles: [{profiles}]}}\n"
        for number, profiles in zip(vfs, (f"{sizes.small}, {both}", f"{sizes.small}, {both}", both), strict=False)
    )
    on_them = dict(list(stands.items())[: len(vfs)])
    return stood(directory, gpus, on_them, software=SOFTWARE.get(kind, ""), on=on)


def room(world: World, profile: str, number: int, *, yes: bool) -> Outcome:
    """plan-moves --profile."""
    return make_room(world, [(profile, number)], most=None, yes=yes, wait_seconds=WAIT_SECONDS, progress=Silent())


@pytest.mark.parametrize("on", [True, False], ids=["running", "off"])
@pytest.mark.parametrize("kind", STOOD)
def test_what_lacks_a_function_is_refused_when_it_is_shown_as_when_it_is_done(
    tmp_path: Path, kind: str, on: bool
) -> None:
    """The only VF of the first GPU is the one from which its VM would go."""
    host = with_vfs(tmp_path, kind, (1, 4), on=on)
    before = picture(host)
    said = []
    for yes in (False, True):
        with pytest.raises(NoCapacity, match=r"for b at once: each needs .*, 1 in all, and 0 of 1 are free") as no:
            room(host.world, STOOD[kind].twin, 2, yes=yes)
        said.append((str(no.value), no.value.hint, no.value.facts))
    assert said[0] == said[1]
    assert picture(host) == before
    assert explain(host.world, STOOD[kind].twin).data["moves"] is None


@pytest.mark.parametrize("kind", STOOD)
def test_of_two_exchanges_the_one_that_finds_its_functions_is_shown_and_done(tmp_path: Path, kind: str) -> None:
    host = with_vfs(tmp_path, kind, (1, 4, 3), on=True)
    gpus = [gpu.address for gpu in observe(host.world, Want()).gpus]
    shown = room(host.world, STOOD[kind].twin, 3, yes=False)
    assert {(m["vm"], m["to_gpu"], m["round"]) for m in shown.data["moves"]} == {("b", gpus[2], 1), ("c", gpus[1], 1)}
    assert not shown.data["fewest"]
    done = room(host.world, STOOD[kind].twin, 3, yes=True)
    assert done.steps == shown.steps
    assert not done.warnings
    assert [gpu_of(host, name) for name in "abc"] == [gpus[0], gpus[2], gpus[1]]
    assert all(vm_of(host, name).state is VmState.RUNNING for name in "abc")
    assert not mend(host.again().world, dry_run=True).data["findings"]


def test_what_lacks_a_function_brings_no_order(tmp_path: Path) -> None:
    """With the two at each other's places one more large one would fit; the first GPU has no other function."""
    sizes = STOOD["vendor-vf"]
    gpus = "".join(f"  - {{{sizes.gpu}, vfs: {{total: {number}, enabled: {number}}}}}\n" for number in (1, 4))
    host = stood(tmp_path, gpus, {"a": (sizes.large, 0), "b": (sizes.small, 1)}, on=True)
    for yes in (False, True):
        done = defragment(host.world, most=None, yes=yes, wait_seconds=WAIT_SECONDS, progress=Silent())
        assert (done.changed, done.data["moves"]) == (False, [])


def test_what_fits_as_it_is_needs_no_round(tmp_path: Path) -> None:
    shown = room(crowded(tmp_path, "a").world, "DC-24Q", 1, yes=False)
    assert (shown.steps, shown.data["moves"], shown.changed) == ((), [], False)


H100 = "  - {model: H100, mig: [1g.10gb]}\n"
PAIR = {"a": ("H100-1-10C", 0), "b": ("H100-1-10C", 1)}
"""Where a GPU instance takes one vGPU its profile is all that counts: no plan has vGPUs change places there."""


def crossed(world: World) -> None:
    """Put each of the two into the GPU instance of the other."""
    snapshot = observe(world, Want(types=True))
    one, other = (gpu.address for gpu in snapshot.gpus)
    owned = [(vm, vm.promise.vgpus[0]) for vm in snapshot.vms if vm.promise is not None]
    moves = tuple(VmMove(vm, vgpu, other if vgpu.gpu == one else one) for vm, vgpu in owned)
    move_all(world, [moves], WAIT_SECONDS, Silent())


def each_in_one(host: Host, where: str) -> None:
    """See that both VMs start, on different GPUs, and that nothing is left over."""
    assert not mend(host.world, dry_run=True).data["findings"], where
    for name in PAIR:
        start(host.world, name)
    assert gpu_of(host, "a") != gpu_of(host, "b"), where
    now = picture(host)
    assert sorted(now.claims) == sorted(now.types), where
    assert len(now.claims) == 2, where


def pair(directory: Path, *, on: bool) -> Host:
    return stood(directory, H100 * 2, PAIR, on=on)


@pytest.mark.parametrize("on", [True, False], ids=["running", "off"])
def test_two_vms_change_gpu_instances(tmp_path: Path, on: bool) -> None:
    host = pair(tmp_path, on=on)
    before = [gpu_of(host, name) for name in PAIR]
    crossed(host.world)
    assert [gpu_of(host, name) for name in PAIR] == before[::-1]
    assert vm_of(host, "a").state is vm_of(host, "b").state is (VmState.RUNNING if on else VmState.STOPPED)
    each_in_one(host, "done")


def test_whatever_call_fails_or_a_process_dies_in_two_vms_have_gpu_instances(tmp_path: Path, spawn) -> None:
    trial = Trial(tmp_path, partial(pair, on=False), crossed, each_in_one)
    calls = trial.calls()
    assert trial.failures(calls) >= 5
    assert trial.deaths(calls, spawn) >= 4


def test_two_vgpus_of_one_vm_do_not_go_at_once(tmp_path: Path) -> None:
    """Two VMs could make that room, as the next test shows; one that has both vGPUs cannot."""
    host = crowded(tmp_path, "abc")
    stop(host.world, "a")
    attach(host.world, wish("DC-12Q", name="a"), dry_run=False, wait_seconds=WAIT_SECONDS, progress=Silent())
    promise = vm_of(host, "a").promise
    assert promise is not None
    _, vgpu = promise.vgpus
    if vgpu.placement_id != 60:
        goal = Goal(vgpu.gpu, 60)
        move_vgpu(host.world, "a", vgpu.carrier, goal, wait_seconds=WAIT_SECONDS, progress=Silent())
    with pytest.raises(NoCapacity, match="moving the"):
        make_room(host.world, [("DC-16Q", 1)], most=2, yes=False, wait_seconds=WAIT_SECONDS, progress=Silent())


def test_a_plan_says_who_goes_at_once_and_carries_it_out(tmp_path: Path) -> None:
    host = crowded(tmp_path)
    with pytest.raises(NoCapacity, match="with 1 moves or fewer"):
        make_room(host.world, [("DC-16Q", 1)], most=1, yes=False, wait_seconds=WAIT_SECONDS, progress=Silent())
    shown = make_room(host.world, [("DC-16Q", 1)], most=None, yes=False, wait_seconds=WAIT_SECONDS, progress=Silent())
    assert [(m["vm"], m["round"]) for m in shown.data["moves"]] in ([("a", 1), ("d", 1)], [("d", 1), ("a", 1)])
    assert [step.partition(":")[0] for step in shown.steps] == ["2 at once, as each needs the place of another"]
    make_room(host.world, [("DC-16Q", 1)], most=None, yes=True, wait_seconds=WAIT_SECONDS, progress=Silent())
    to = {m["vm"]: m["to_placement_id"] for m in shown.data["moves"]}
    assert placed(host) == {name: place for name, (_, place) in STANDS.items()} | to
    assert all(vm_of(host, name).state is VmState.RUNNING for name in STANDS)
    create(host.world, wish("DC-16Q", name="large"))
    assert overlapping(host) == []
    assert not mend(host.again().world, dry_run=True).data["findings"]


def test_where_one_guest_does_not_shut_down_all_run_again_where_they_were(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=True, more="faults: [{on: shutdown, match: third, kind: lost}]\n")
    before = picture(host)
    with pytest.raises(Busy, match="third did not shut down within"):
        turned(host.world)
    assert picture(host) == before


def test_a_vm_that_may_not_be_moved_any_more_is_told_before_any_is_shut_down(tmp_path: Path) -> None:
    host = opposite(tmp_path, "vendor-vf", running=True)
    moves = swap(host.world, "first")
    delete(host.world, "second")
    before = picture(host)
    with pytest.raises(NotFound, match="second"):
        move_all(host.world, [moves], WAIT_SECONDS, Silent())
    create(host.world, wish("A100-40C", name="other"))
    assert len(picture(host).running) == len(before.running) + 1


def interrupted(directory: Path, *, decided: bool) -> Host:
    """Return a host on which an exchange was broken off after VMs were switched over, or before any was."""
    calls = counted(opposite(directory / "dry", "vendor-vf", running=False).world, turned)
    redefined = [n for n, call in enumerate(calls, 1) if call == "hypervisor.redefine"]
    at = redefined[-1] if decided else redefined[0]
    host = opposite(directory, "vendor-vf", running=False)
    error = outcome(partial(turned, failing(host.world, at, done=not decided, for_good=True)))
    assert error is not None
    assert error.code == "partly-applied"
    return host.again()


def half(host: Host) -> list[str]:
    promises = {name: vm_of(host, name).promise for name in NAMES}
    return [name for name, promise in promises.items() if promise is not None and promise.exchange is not None]


def test_until_reconcile_has_run_a_vm_whose_exchange_was_interrupted_is_left_alone(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)
    assert half(host) == ["third"]
    for refused in (partial(start, host.world, "third"), partial(turned, host.world)):
        with pytest.raises(Busy, match="its place is being exchanged"):
            refused()
    vm = vm_of(host, "third")
    with pytest.raises(Busy, match="its place is being exchanged"):
        missing_devices(host.world, vm, vm.promise)
    assert "half-exchanged" in {finding["kind"] for finding in mend(host.world).data["findings"]}
    whole(host, "mended")


def test_an_exchange_is_finished_after_a_boot_too(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)
    before = {name: gpu_of(host, name) for name in NAMES}
    assert before["third"] != before["first"]
    host.sim.reboot()
    host = host.again()
    mend(host.world)
    assert gpu_of(host, "third") == gpu_of(host, "first") == before["first"]
    whole(host.again(), "booted")


def test_nobody_gets_the_place_that_a_vm_goes_to_before_it_is_there(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)
    host.sim.reboot()
    host = host.again()
    with pytest.raises(NoCapacity):
        create(host.world, wish("A100-40C", name="faster"))


def test_where_the_deciding_vm_was_not_put_back_the_exchange_counts(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=False)
    assert half(host) == ["second", "third"]
    mend(host.world)
    assert half(host) == []
    whole(host, "mended")


def test_a_vm_that_runs_where_it_was_keeps_that_place(tmp_path: Path) -> None:
    host = interrupted(tmp_path, decided=True)

    class Runs:
        """A hypervisor on which the VM was started behind vgpuctl's back."""

        def __getattr__(self, name: str) -> object:
            return getattr(host.world.hypervisor, name)

        def domains(self) -> tuple[DomainRecord, ...]:
            found = host.world.hypervisor.domains()
            return tuple(replace(r, state=VmState.RUNNING) if r.name == "third" else r for r in found)

    before = picture(host)
    seen = mend(replace(host.world, hypervisor=Runs()), dry_run=True).data["findings"]
    assert [f["action"] for f in seen if f["kind"] == "half-exchanged"] == [
        "nothing while it runs where it was: virsh shutdown third first"
    ]
    assert picture(host) == before
