# SPDX-License-Identifier: Apache-2.0
"""A process that is killed at a random instant leaves nothing that reconcile does not finish or undo.

`test_faults.py` kills at every call of a port; here a timer of the kernel kills in between as well.
The seed is printed; VGPUCTL_SEED repeats a run.
"""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import EVERYTHING
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
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.model.request import CloudInit, CloudInitFile
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.operations.refresh import refresh_vm

ROUNDS = 100 if EVERYTHING else 30
MOST_ROUNDS = 20 * ROUNDS
"""Of all kills one in twenty leaves something; a run goes on until one did."""
HOSTS = {"vendor-vf": ("a100-40", "A100-4C"), "mdev-pf": ("t4", "T4-2Q")}
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
ACTS = ("create", "delete", "restart", "refresh", "refresh")


def act(host: SimulatedHost, what: str, profile: str) -> None:
    """Do one thing to the VM "vm"."""
    if what == "create":
        create(
            host.ports,
            request(profile, name="vm", image=IMAGE, seed=CloudInit(CloudInitFile("/ud", "#cloud-config\na: 1\n"))),
        )
    elif what == "delete":
        delete(host.ports, "vm")
    elif what == "refresh":
        refresh_vm(host.ports, context(), "vm", IMAGE, drain=True)
    else:
        stop(host.ports, "vm")
        start(host.ports, "vm")


def killed_after(seconds: float, work: Callable[[], None]) -> bool:
    """Do the work in a child that dies after so many seconds of CPU; return whether it died before it finished."""
    child = os.fork()
    if not child:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # its default ends the process at once, as SIGKILL does
        signal.setitimer(signal.ITIMER_PROF, seconds)
        try:
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing may leave the child
            traceback.print_exc()
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGPROF), "the work itself failed"
    return status == signal.SIGPROF


def unowned(host: SimulatedHost, images: frozenset[str]) -> list[str]:
    """Return what has no owner: devices and claims without a VM, files and half-made VMs that no command finishes."""
    now = picture(host)
    vms = [parse_domain(xml, VmState.STOPPED, host.ports.machine_id) for _, xml in now.domains.values()]
    assigned = {v.carrier for vm in vms if vm.record for v in vm.record.vgpus}
    disks = {str(disk.source) for vm in vms for disk in vm.disks}
    result = [f"device {carrier}" for carrier in (*now.mdevs, *now.types) if carrier not in assigned]
    result += [f"claim {carrier}" for carrier, uuid in now.claims.items() if uuid not in now.domains]
    result += [f"disk {path}" for path in now.files if path not in disks | images]
    result += [f"no disk {path}" for path in disks if path not in now.files]
    result += [f"VM {vm.name}" for vm in vms if vm.record is None or vm.record.state is not RecordState.READY]
    return result


@pytest.mark.parametrize("kind", HOSTS)
def test_whatever_the_instant_of_the_kill_reconcile_leaves_nothing_without_an_owner(tmp_path: Path, kind: str) -> None:
    seed = int(os.environ.get("VGPUCTL_SEED") or random.randrange(2**32))
    print(f"VGPUCTL_SEED={seed}")
    chance = random.Random(seed)
    scenario, profile = HOSTS[kind]
    host = open_sim_host(tmp_path, scenario)
    images = frozenset(picture(host).files)
    took: dict[str, float] = {}
    for what in ("create", "restart", "refresh", "delete") * 2:  # the first time imports and warms up
        begun = time.process_time()
        act(host, what, profile)
        took[what] = time.process_time() - begun
    rounds = killed = left = 0
    while rounds < ROUNDS or (not left and rounds < MOST_ROUNDS):
        rounds += 1
        there = bool(picture(host).domains)
        what = chance.choice(ACTS[1:]) if there else "create"
        died = killed_after(chance.uniform(0, 2 * took[what]), lambda what=what, host=host: act(host, what, profile))
        host.sim.close()
        host = host.again()
        left += died and unowned(host, images) != []
        run_reconcile(host.ports)
        assert unowned(host, images) == [], f"seed {seed}: {what}"
        assert run_reconcile(host.ports, dry_run=True).data.findings == (), f"seed {seed}: {what}"
        killed += died
    assert killed > rounds / 4, "the timer came too late to prove anything"
    assert left, "the kills left nothing to mend, so they prove nothing"
