# SPDX-License-Identifier: Apache-2.0
"""VMs that reserve nothing while off, VMs with whole GPUs, vGPUs without a VM: every call fails or is killed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.failed_calls import failed_calls
from tests.faults import CHANGING, Trial, acts_on_backends
from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    open_sim_host,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.reserving_vms import SMALL, record_of, reserving_request, small
from tests.unit.operations.test_change import ensure
from tests.unit.operations.test_faults import HOSTS
from tests.unit.operations.test_restore import restore
from tests.vgpus import drop, finding_kinds, make, spec_of
from vgpuctl.operations.attach import attach, detach
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

RESERVING = ["start", "stop", "delete", "to-running", "to-always"]
WHOLE_GPUS = """version: 1
gpus:
  - {model: H100, driver: vfio-pci, numa_node: 0, count: 2}
  - {model: RTX 4090, numa_node: 1}
"""
GPUS = ("0000:3b:00.0", "0000:3f:00.0")


class Case(NamedTuple):
    """What is done, on which host, and when the host is consistent."""

    prepared: Callable[[Path], SimulatedHost]
    do: Callable[[Host], object]
    whole: Callable[[SimulatedHost, str], None]

    def trial(self, directory: Path) -> Trial:
        return Trial(directory, *self)


def reserving_vm(directory: Path, kind: str, act: str) -> SimulatedHost:
    """Return a host with the VM, and with another one in the place that its record names."""
    host, profile = small(directory, kind, gpus=2 if kind == "mdev-pf" else 1)
    wanted = request(profile, name="vm") if act == "to-running" else reserving_request(profile, "vm")
    create(host.ports, wanted, start=False)
    others = () if act == "to-running" else ("kept", "kept-2") if kind == "mdev-pf" else ("kept",)
    for name in others:
        create(host.ports, request(profile, name=name, gpu=record_of(host, "vm").vgpus[0].gpu))
    if act in ("stop", "delete"):
        start(host.ports, "vm")
    return host.again()


def change_reserving(ports: Host, kind: str, act: str) -> object:
    if act in ("start", "stop", "delete"):
        return {"start": start, "stop": stop, "delete": delete}[act](ports, "vm")
    reserve = act.removeprefix("to-")
    wanted = replace(request(SMALL[kind][1], name="vm", reserve=reserve), sources={"reserve": "given"})
    return ensure(SimulatedHost(ports, None, Path(), ""), wanted)


def reserving_is_whole(host: SimulatedHost, where: str) -> None:
    """Check that everything has an owner, that the other VMs are unchanged, and that the VM starts."""
    assert finding_kinds(host) == [], where
    now = picture(host)
    devices = set(now.types) | set(now.mdevs)
    assert devices <= set(now.claims), where
    others = [uuid for uuid, (name, _) in now.domains.items() if name.startswith("kept")]
    assert all(set(now.running[uuid]) <= devices for uuid in others), where
    for name in [name for name, _ in now.domains.values() if name == "vm"]:
        start(host.ports, name)
        now = picture(host)
        held = [carrier for running in now.running.values() for carrier in running]
        assert sorted(held) == sorted(now.claims) == sorted({*now.types, *now.mdevs}), where


def several_gpus(count: int) -> object:
    return request(name="vm", mode="passthrough", gpus=count, image=None)


def vm_with_gpus(directory: Path, act: str) -> SimulatedHost:
    """Return a host with the VM that the act needs."""
    host = open_sim_host(directory, text=WHOLE_GPUS)
    if act != "create":
        create(host.ports, several_gpus(1 if act == "attach" else 2), start=act == "delete")
    return host.again()


def change_gpus(ports: Host, act: str) -> object:
    if act == "create":
        return create(ports, several_gpus(2))
    if act == "delete":
        return delete(ports, "vm")
    if act == "attach":
        return attach(ports, context(), several_gpus(1))
    return detach(ports, context(wait_seconds=5), "vm", gpus=GPUS[:1])


def gpus_are_whole(host: SimulatedHost, where: str) -> None:
    """Check that record, definition and claims agree, and that a VM that is there starts with what it claims."""
    assert finding_kinds(host) == [], where
    if not picture(host).domains:
        assert not picture(host).claims, where
        return
    if not picture(host).running:
        start(host.ports, "vm")
    now = picture(host)
    (held,) = now.running.values()
    assert set(held) == set(now.claims) <= set(GPUS), where


def host_vgpu(directory: Path, kind: str, act: str) -> SimulatedHost:
    host = open_sim_host(directory, text=HOSTS[kind][0])
    if act == "delete":
        make(host.ports, HOSTS[kind][1])
    return host.again()


def change_host_vgpu(ports: Host, kind: str, act: str) -> object:
    return make(ports, HOSTS[kind][1]) if act == "create" else drop(ports)


def host_vgpus_are_whole(host: SimulatedHost, where: str) -> None:
    """Finish what a crash left, as an admin would: reconcile, then restore-host."""
    run_reconcile(host.ports)
    restore(host, spec_of(host))
    assert finding_kinds(host) == [], where
    now = picture(host)
    kept = {v.carrier for v in spec_of(host).vgpus.values()}
    assert set(now.mdevs) | set(now.types) == kept == set(now.claims), where


def reserving(act: str, kind: str) -> Case:
    how = {"kind": kind, "act": act}
    return Case(partial(reserving_vm, **how), partial(change_reserving, **how), reserving_is_whole)


def of_host(act: str, kind: str) -> Case:
    how = {"kind": kind, "act": act}
    return Case(partial(host_vgpu, **how), partial(change_host_vgpu, **how), host_vgpus_are_whole)


ON_TWO_BACKENDS = {f"{act}-{kind}": reserving(act, kind) for kind in ("vendor-vf", "mdev-pf") for act in RESERVING}
OF_GPUS = {
    f"{act}-gpus": Case(partial(vm_with_gpus, act=act), partial(change_gpus, act=act), gpus_are_whole)
    for act in ("create", "delete", "attach", "detach")
}
HOST_VGPUS = {f"{act}-vgpu-{kind}": of_host(act, kind) for act, kind in acts_on_backends(["create", "delete"], HOSTS)}
FAILING = OF_GPUS | {name: ON_TWO_BACKENDS[name] for name in ON_TWO_BACKENDS if "vendor-vf" in name or "start" in name}
KILLED = (
    OF_GPUS
    | HOST_VGPUS
    | {f"{act}-{kind}": reserving(act, kind) for act, kind in acts_on_backends(RESERVING, ["vendor-vf", "mdev-pf"])}
)


@pytest.mark.parametrize("case", FAILING.values(), ids=FAILING)
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, case: Case) -> None:
    trial = case.trial(tmp_path)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= (3 if case in OF_GPUS.values() else 2)
    assert trial.failures(calls) >= (2 if case in OF_GPUS.values() else 1)


@pytest.mark.parametrize("case", KILLED.values(), ids=KILLED)
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, case: Case, spawn) -> None:
    trial = case.trial(tmp_path)
    assert trial.deaths(trial.calls(), spawn) >= 1, "the kills left nothing to mend, so they prove nothing"


@pytest.mark.parametrize("name", HOST_VGPUS)
def test_whatever_call_fails_no_vgpu_is_without_an_owner(tmp_path: Path, name: str) -> None:
    trial = HOST_VGPUS[name].trial(tmp_path)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    refused = 0
    for one in failed_calls(trial, calls, lambda host: (picture(host), host.ports.host_file.read())):
        refused += one.error is not None
        later = one.host.again()
        if one.is_left and name.startswith("create") and spec_of(later).vgpus:
            assert one.error.left or one.for_good, one.where
        trial.whole(later, one.where)
    assert refused >= 3
