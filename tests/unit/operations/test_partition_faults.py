# SPDX-License-Identifier: Apache-2.0
"""Partitioning a GPU: on a signal, a failed call or a kill it is undone, or finished by the same command again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests import EVERYTHING
from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial, outcome
from tests.hosts import (
    SimulatedHost,
    context,
    create,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.layouts import Signals, Struck
from tests.meanwhile import unchanged, with_calls
from tests.partitions import FIRST, OFF, SECOND, act, everything, mig, names, partition_state, small
from tests.unit.operations.test_drained_vms import Deadly, killed
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.errors import Interrupted, InUse
from vgpuctl.gpu_setup.sriov import count_vfs, list_vfs
from vgpuctl.gpu_setup.sriov_errors import PCI_DEVICES
from vgpuctl.model.gpu import MigSpec
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec
from vgpuctl.model.vm import GPU_SETUP_CLAIM
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.apply import apply_host, diff_host
from vgpuctl.operations.desired_state import read_desired_state
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.operations.gpu_scheduler import SchedulerRequest, set_scheduler
from vgpuctl.operations.restore import restore_host
from vgpuctl.operations.vgpus import create_vgpu
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

AMPERE, HOPPER = "A100", "H100"
CHANGES = {
    "on": (HOPPER, {}, mig("3g.40gb", "1g.10gb"), None),
    "off": (HOPPER, {"more": "mig: [3g.40gb, 1g.10gb]"}, OFF, None),
    "warm": (HOPPER, {"more": "mig: [3g.40gb, 1g.10gb]"}, mig("4g.40gb", "1g.10gb"), None),
    "reset": (AMPERE, {"faults": '{on: nvml-set-mig, match: "*", kind: pending}'}, mig("3g.20gb"), None),
    "mixed": (HOPPER, {}, None, True),
}
"""The model, what is special about its host, and what is asked for."""


def partitioned(directory: Path, kind: str) -> SimulatedHost:
    """Return a host before a change; with a VM, where its vGPU is suspended and restored."""
    model, more, _, mixed = CHANGES[kind]
    host = small(directory, model, **more)
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\n")
    if kind == "warm":
        create(host.ports, request("H100-1-10C", name="vm"))
    if mixed:
        create(host.ports, request("H100-10C", name="vm"))
    return host.again()


def change(ports: Host, kind: str) -> object:
    """Run the act."""
    _, _, wanted, mixed = CHANGES[kind]
    return act(ports, FIRST, wanted, mixed, drain=True)


@pytest.mark.parametrize("kind", CHANGES)
def test_whatever_call_fails_it_is_undone_or_the_error_says_what_is_left(tmp_path, kind):
    trial = Trial(tmp_path, partial(partitioned, kind=kind), partial(change, kind=kind))
    calls = trial.calls()
    assert any(call.startswith("nvml.") and call in CHANGING for call in calls)
    refused = 0
    for one in failed_calls(trial, calls, everything):
        refused += one.error is not None
        if one.is_left:
            assert one.is_told or one.error.code == "verify-failed", (one.where, one.error)
            later = one.host.again()
            run_reconcile(later.ports)
            change(later.ports, kind)
            if one.before[3].running and not picture(later).running:
                start(later.ports, "vm")
    assert refused >= 2


@pytest.mark.parametrize("kind", CHANGES)
def test_a_signal_undoes_everything(tmp_path, kind):
    host, signals = partitioned(tmp_path, kind), Signals()
    before = everything(host)
    changes = ("set_mig", "create_gpu_instance", "set_mixed_size")
    once = Struck(host.ports.nvml, signals, lambda name, _: name in changes and not signals.received)
    struck = replace(host.ports, nvml=once)
    with pytest.raises(Interrupted) as raised:
        act(struck, FIRST, *CHANGES[kind][2:], drain=True, progress=signals)
    assert (everything(host), raised.value.left) == (before, [])


def test_instances_and_mixed_sizes_that_went_with_the_vfs_come_back_when_it_fails(tmp_path):
    """The last step fails for good: the undo sets the former state again, with the VFs off and on in between."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "no space left on device")

    host, mixed = small(tmp_path / "mig", more="mig: [3g.40gb, 1g.10gb]"), small(tmp_path / "mixed")
    act(mixed.ports, FIRST, mixed=True)
    for one, wanted, sizes in ((host, OFF, None), (mixed, mig("1g.10gb"), False)):
        with unchanged(one, everything):
            error = outcome(partial(act, with_calls(one.ports, "host_file", replace=full), FIRST, wanted, sizes))
        assert error.left == []
    assert names(host) == ["3g.40gb", "1g.10gb"]


H100, PRO = "h100-mig", "rtx-pro-6000"
LARGE = MigSpec(vgpus=(("DC-2-24Q", 4),))


class Case(NamedTuple):
    """What is done, on which host, and what is on it before. A VM's name says whether it is `on` or `off` then."""

    scenario: str
    do: Callable[[Host], object]
    before: tuple[Callable[[Host], object], ...] = ()
    vms: tuple[tuple[str, str, str], ...] = ()
    named: tuple[str, str] | None = None


def vm(name: str, profile: str, gpu: str = FIRST) -> tuple[str, str, str]:
    return name, profile, gpu


def scheduled(ports: Host, policy: SchedulerPolicy) -> object:
    job = SchedulerRequest(FIRST, SchedulerSpec(policy), drain=True)
    return set_scheduler(ports, context(), job)


def applied(ports: Host, sets: tuple[str, ...]) -> object:
    return apply_host(ports, context(), read_desired_state(ports, None, sets), drain=True)


def partition(gpu: str, wanted: MigSpec | None = None, mixed: bool | None = None, mode: str | None = None):
    return partial(act, gpu=gpu, wanted=wanted, mixed=mixed, mode=mode, drain=True)


BOTH = (
    f"gpus[{FIRST}].mode=vgpu",
    f"gpus[{FIRST}].mig=off",
    f"gpus[{FIRST}].mixed_size=true",
    f"gpus[{SECOND}].mode=vgpu",
    f"gpus[{SECOND}].mig=[3g.40gb, 1g.10gb]",
)
ON_THE_OTHER_GPU = (vm("beside-on", "H100-10C", SECOND),)
CASES = {
    "mig-on": Case(H100, partition(SECOND, mig("3g.40gb", "1g.10gb")), vms=(vm("beside-on", "H100-1-10C"),)),
    "mig-off": Case(H100, partition(FIRST, OFF), vms=ON_THE_OTHER_GPU),
    "warm-beside": Case(
        H100, partition(FIRST, mig("4g.40gb", "1g.10gb")), vms=(vm("on", "H100-1-10C"), *ON_THE_OTHER_GPU)
    ),
    "warm-moved": Case(
        H100,
        partition(FIRST, mig("4g.40gb", "2g.20gb", "1g.10gb")),
        vms=(vm("on", "H100-1-10C"), *ON_THE_OTHER_GPU),
    ),
    "mixed-on": Case(
        H100,
        partition(SECOND, None, mixed=True),
        vms=(vm("on", "H100-10C", SECOND), vm("off", "H100-10C", SECOND), vm("beside-on", "H100-1-10C")),
        named=("H100-10C", SECOND),
    ),
    "mixed-on-lent": Case(
        H100,
        partition(SECOND, None, mixed=True),
        (partial(create, wanted=request("H100-10C", name="on", gpu=SECOND, reserve="running")),),
    ),
    "mixed-off": Case(
        H100,
        partition(SECOND, None, mixed=False),
        (partition(SECOND, None, mixed=True),),
        (vm("on", "H100-10C", SECOND), vm("off", "H100-10C", SECOND), vm("beside-on", "H100-1-10C")),
    ),
    "to-passthrough": Case(H100, partition(FIRST, mode="passthrough"), vms=ON_THE_OTHER_GPU),
    "to-vgpu": Case(
        H100,
        partition(FIRST, mode="vgpu"),
        (partition(FIRST, mig("3g.40gb", "1g.10gb")), partition(FIRST, mode="passthrough")),
        ON_THE_OTHER_GPU,
    ),
    "apply-two": Case(H100, partial(applied, sets=BOTH)),
    "gb-mig-on": Case(PRO, partition(FIRST, LARGE)),
    "gb-scheduler": Case(
        PRO,
        partial(scheduled, policy=SchedulerPolicy.FIXED_SHARE),
        (partition(FIRST, LARGE),),
        (vm("on", "DC-2-24Q"), vm("off", "DC-2-24Q")),
    ),
    "gb-mixed-on": Case(PRO, partition(FIRST, None, mixed=True), vms=(vm("on", "DC-24Q"), vm("off", "DC-24Q"))),
}
QUICK = ("mig-on", "warm-moved", "mixed-on", "apply-two", "gb-scheduler")
"""Each kind of step once: MIG, instances that move, mixed sizes, two GPUs, VMs that are stopped and started."""


def prepared(directory: Path, case: str) -> SimulatedHost:
    """Return the host for the case."""
    what = CASES[case]
    host = open_sim_host(directory, what.scenario)
    for step in what.before:
        step(host.ports)
    for name, profile, gpu in what.vms:
        create(host.ports, request(profile, name=name, gpu=gpu))
        if name == "off":
            stop(host.ports, name)
    if what.named is not None:
        profile, gpu = what.named
        wanted = request(profile, name="named", gpu=gpu)
        create_vgpu(host.ports, context(), wanted)
    if any(name == "beside-on" for name, _, _ in what.vms):
        add_unmanaged_vgpu(host)
    return host.again()


def add_unmanaged_vgpu(host: SimulatedHost) -> None:
    """Put an unmanaged vGPU on the other GPU, next to its VM."""
    (carrier,) = next(held for uuid, held in picture(host).running.items() if name_of(host, uuid) == "beside-on")
    gpu = next(v.gpu for v in observe(host.ports, ReadScope(models=False)).vgpus if v.carrier == carrier)
    last = list_vfs(host.ports, gpu)[-1]
    host.ports.sysfs.write(f"{PCI_DEVICES}/{last}/nvidia/current_vgpu_type", f"{picture(host).types[carrier]}\n")


def name_of(host: SimulatedHost, uuid: str) -> str:
    """Return the name of a VM; `named` for the owner of a vGPU without one."""
    result = host.ports.hypervisor.find_domain(uuid)
    return result.name if result is not None else "named"


def seen(host: SimulatedHost) -> dict[str, object]:
    """Return all that the change of a partition could leave behind, with VMs by their names."""
    now = picture(host)
    gpus = [gpu.address for gpu in observe(host.ports, ReadScope(models=False)).gpus]
    reported = {gpu: host.sim.nvml.gpu(gpu) for gpu in gpus}
    return {
        "partitions": {gpu: (count_vfs(host.ports, gpu), *partition_state(host, gpu)) for gpu in gpus},
        "schedulers": {
            gpu: (one.scheduler, sorted(map(str, one.gi_schedulers.values()))) for gpu, one in reported.items()
        },
        "host.yaml": host.ports.host_file.read(),
        "types": now.types,
        "drivers": now.drivers,
        "claims": {carrier: name_of(host, uuid) for carrier, uuid in now.claims.items()},
        "running": {name_of(host, uuid): carriers for uuid, carriers in now.running.items()},
        "drained": host.ports.claims.drained_vms(),
    }


def whole(host: SimulatedHost, where: str, case: str, wanted: dict[str, object]) -> None:
    """Check that what is on other GPUs runs on, and that repeating the command gives the desired state."""
    what = CASES[case]
    running = {name_of(host, uuid) for uuid in picture(host).running}
    assert {name for name, _, _ in what.vms if name.startswith("beside")} <= running, where
    assert not [c for c in host.ports.claims.all() if c.vm == GPU_SETUP_CLAIM], where
    what.do(host.ports)
    restore(host.ports)
    assert {name_of(host, uuid) for uuid in picture(host).running} == set(wanted["running"]), where
    if "on" in wanted["running"]:
        start(host.ports, "on")  # it runs: killed after the start, its note is still there
    if any(name == "off" for name, _, _ in what.vms):
        start(host.ports, "off")
        stop(host.ports, "off")
    assert seen(host) == wanted, where
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    assert not what.do(host.ports).changed, where


def restore(ports: Host) -> None:
    """restore-host: it makes vGPUs of host.yaml again."""
    spec = parse_host_spec(ports.host_file.read() or "version: 1\n", "f")
    restore_host(ports, context(), spec)


@pytest.mark.parametrize("case", CASES if EVERYTHING else QUICK)
def test_whatever_call_a_process_dies_in_the_same_command_makes_it_whole(tmp_path: Path, case: str, spawn) -> None:
    undisturbed = prepared(tmp_path / "undisturbed", case)
    CASES[case].do(undisturbed.ports)
    wanted = seen(undisturbed)
    judge = partial(whole, case=case, wanted=wanted)
    trial = Trial(tmp_path, partial(prepared, case=case), CASES[case].do, judge)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    assert trial.deaths(calls, spawn) >= 1


def test_whatever_call_fails_while_instances_get_a_scheduler_it_is_undone_or_the_error_says_it(tmp_path: Path) -> None:
    trial = Trial(tmp_path, partial(prepared, case="gb-scheduler"), CASES["gb-scheduler"].do)
    calls = trial.calls()
    assert calls.count("nvml.set_scheduler") == 2, "one for each instance"
    refused = 0
    for one in failed_calls(trial, calls, seen, one_of=1 if EVERYTHING else 2):
        refused += one.error is not None
        if one.is_left:
            assert one.is_told, one.where
            later = one.host.again()
            run_reconcile(later.ports)
            trial.act(later.ports)
            start(later.ports, "on")
            assert seen(later)["running"].keys() == one.before["running"].keys(), one.where
    assert refused >= 2


def test_a_gpu_left_without_vfs_by_a_killed_set_mig_is_found_and_restored(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, H100)
    act(host.ports, FIRST, mig("3g.40gb", "1g.10gb"))
    before = seen(host)
    host = host.again()
    assert killed(lambda: act(replace(host.ports, nvml=Deadly(host.ports.nvml, sets_mig)), FIRST, OFF))
    later = host.again()
    assert partition_state(later)[1] == []
    with pytest.raises(InUse, match=f"^{FIRST} is half set up: process [0-9]+ \\(vgpuctl test\\) is gone$") as refused:
        act(later.ports, FIRST, OFF)
    assert refused.value.hint == "vgpuctl reconcile-host frees it; then run this command, or again: vgpuctl test"
    (result,) = run_reconcile(later.ports).data.findings
    assert result.kind == "half-set-up"
    assert "run this again to finish it: vgpuctl test; or vgpuctl apply" in result.action
    assert not run_reconcile(later.ports, dry_run=True).data.findings
    assert diff_host(later.ports, read_desired_state(later.ports, None, ()), drain=False).changed
    (row,) = diagnose(later.ports, ("partition",)).checks
    assert (row.verdict, row.fix[:20]) == ("warn", "vgpuctl restore-host")
    restore(later.ports)
    assert seen(later) == before
    assert diagnose(later.ports, ("partition",)).checks[0].verdict == "ok"


def test_a_drained_vm_without_its_instance_is_reported_until_gpu_setup(tmp_path: Path) -> None:
    host = prepared(tmp_path, "warm-moved")
    assert killed(lambda: CASES["warm-moved"].do(replace(host.ports, nvml=Deadly(host.ports.nvml, makes_instance))))
    later = host.again()
    for _ in range(2):
        reported = {f.kind: f.action for f in run_reconcile(later.ports).data.findings}
        assert reported["drained"].startswith("nothing before the GPU is set up: no room for H100-1-10C")
        assert reported["drained"].endswith("or vgpuctl apply also starts on")
    assert set(reported) == {"drained"}
    CASES["warm-moved"].do(later.ports)
    assert not run_reconcile(later.ports, dry_run=True).data.findings
    assert len(picture(later).running) == 2


def makes_instance(name: str, _: tuple[object, ...]) -> bool:
    return name == "create_gpu_instance"


def sets_mig(name: str, _: tuple[object, ...]) -> bool:
    return name == "set_mig"
