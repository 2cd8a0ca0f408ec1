# SPDX-License-Identifier: Apache-2.0
"""A command killed while its drained VMs are off leaves a note for each; running VMs are not reported."""

from __future__ import annotations

import os
import signal
import traceback

import pytest

from tests import schedulers
from tests.hosts import delete, living_operation, picture, run_reconcile, stop, with_calls
from tests.layouts import FLEX, do, drained, numvfs, starts
from tests.unit.operations.test_refresh import prepared, refresh
from vgpuctl.errors import InUse
from vgpuctl.model.vm import DrainedVm, ProcessId
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.value import replace


class Deadly:
    """A port in which the process dies at the calls that `at` accepts."""

    def __init__(self, real, at):
        self.real, self.at = real, at

    def __getattr__(self, name):
        def call(*args, **more):
            if self.at(name, args):
                os.kill(os.getpid(), signal.SIGKILL)
            return getattr(self.real, name)(*args, **more)

        return call


def killed(work):
    child = os.fork()
    if not child:
        try:
            work()
        except BaseException:  # noqa: BLE001 - nothing may leave the child
            traceback.print_exc()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.mark.parametrize(
    ("port", "at", "off"),
    [("sysfs", numvfs, {"one", "two"}), ("hypervisor", starts(1), {"one", "two"}), ("hypervisor", starts(2), {"two"})],
    ids=["while-they-are-off", "before-the-first-starts", "before-the-second-starts"],
)
def test_vms_that_a_killed_set_mode_left_off_are_started_by_reconcile(tmp_path, port, at, off):
    host = drained(tmp_path).again()
    running = picture(host).running
    deadly = replace(host.ports, **{port: Deadly(getattr(host.ports, port), at)})
    assert killed(lambda: do(deadly, FLEX, "sriov", 6, drain=True))
    later = host.again()
    assert len(picture(later).running) == len(running) - len(off)
    reported = [f.action for f in run_reconcile(later.ports, dry_run=True).data.findings if f.kind == "drained"]
    if port == "sysfs":
        assert all("set-mode" in action and "starts" in action for action in reported), (
            "it has no VFs to start VMs with"
        )
        with pytest.raises(InUse) as raised:
            do(later.ports, FLEX, "sriov", 6, drain=True)
        assert str(raised.value.hint).startswith("vgpuctl reconcile-host frees it")
        run_reconcile(later.ports)
        do(later.ports, FLEX, "sriov", 6)
    else:
        assert set(reported) == {f"start VM {name}" for name in off}
        run_reconcile(later.ports)
    assert picture(later).running == running
    assert not run_reconcile(later.ports, dry_run=True).data.findings


def test_a_vm_that_was_drained_and_started_is_not_started_again_once_it_is_stopped(tmp_path):
    host = drained(tmp_path)
    do(host.ports, FLEX, "sriov", 6, drain=True)
    stop(host.ports, "one")
    later = host.again()
    assert later.ports.claims.drained_vms() == ()
    assert not run_reconcile(later.ports, dry_run=True).data.findings


@pytest.mark.parametrize("off", [True, False])
def test_one_that_somebody_stops_stays_off(tmp_path, off):
    host = drained(tmp_path)
    uuid = noted(host)
    if off:
        host.ports.hypervisor.destroy(uuid)
        assert run_reconcile(host.ports, dry_run=True).changed
    stop(host.ports, "two")
    assert not run_reconcile(host.ports).changed
    assert uuid not in picture(host).running


def dies_at(call):
    """Accept the call of this name: the process dies before the call completes."""
    return lambda name, args: name == call


def noted(host):
    """Note VM two as shut down by a process that died; return its UUID."""
    uuid = host.ports.hypervisor.find_domain("two").uuid
    host.ports.claims.add_drained_vm(DrainedVm(uuid, FLEX, ProcessId(999999, 1)))
    return uuid


def set_up(ports):
    do(ports, FLEX, "sriov", 6, drain=True)


def scheduled(ports):
    schedulers.act(ports, schedulers.TWO_MS, drain=True)


def refreshed(ports):
    refresh(ports, "drain")


DRAINING = {
    "set-mode": (drained, set_up, "one"),
    "set-scheduler": (lambda path: schedulers.with_vms(schedulers.small(path)), scheduled, "on"),
    "refresh-vm": (lambda path: prepared(path, "drain"), refreshed, "vm"),
    "refresh-vm, reserve running": (lambda path: prepared(path, "drain", reserve="running"), refreshed, "vm"),
}


@pytest.mark.parametrize("command", DRAINING)
def test_a_vm_that_runs_again_and_is_switched_off_later_stays_off(tmp_path, command):
    prepare, act, name = DRAINING[command]
    host = prepare(tmp_path).again()
    uuid = host.ports.hypervisor.find_domain(name).uuid
    deadly = replace(host.ports, claims=Deadly(host.ports.claims, dies_at("remove_drained_vm")))
    assert killed(lambda: act(deadly))
    later = host.again()
    assert uuid in picture(later).running
    run_reconcile(later.ports)
    assert uuid not in {vm.vm_uuid for vm in later.ports.claims.drained_vms()}, "it was seen running"
    later.ports.hypervisor.destroy(uuid)
    run_reconcile(later.ports)
    assert uuid not in picture(later).running


@pytest.mark.parametrize(("seconds", "starts"), [(0, True), (3600, False)])
def test_a_guest_that_is_slow_to_power_off_is_started_again_if_it_is_off_in_its_time(tmp_path, seconds, starts):
    host = prepared(tmp_path, "drain")
    uuid = host.ports.hypervisor.find_domain("vm").uuid
    assert killed(lambda: refreshed(replace(host.ports, hypervisor=Deadly(host.ports.hypervisor, dies_at("shutdown")))))
    later = host.again()
    later.ports.clock.sleep(seconds)
    assert not run_reconcile(later.ports).changed
    later.ports.hypervisor.destroy(uuid)
    assert run_reconcile(later.ports).changed is starts
    assert (uuid in picture(later).running) is starts


def test_the_note_of_a_living_operation_stays(tmp_path):
    host = drained(tmp_path)
    uuid = host.ports.hypervisor.find_domain("two").uuid
    operation = living_operation(host.ports)
    host.ports.claims.add_drained_vm(DrainedVm(uuid, FLEX, operation.process, operation=operation.id))
    run_reconcile(host.ports)
    assert [vm.vm_uuid for vm in host.ports.claims.drained_vms()] == [uuid]


@pytest.mark.parametrize("by", ["delete-vm", "virsh"])
def test_the_note_of_a_deleted_vm_is_dropped(tmp_path, by):
    host = drained(tmp_path)
    uuid = noted(host)
    if by == "delete-vm":
        delete(host.ports, "two")
    else:
        host.ports.hypervisor.destroy(uuid)
        host.ports.hypervisor.undefine(uuid)
        run_reconcile(host.ports)
    assert host.ports.claims.drained_vms() == ()


@pytest.mark.parametrize("observed", ["reconcile --dry-run", "set-mode --dry-run", "doctor"])
def test_a_look_drops_no_note(tmp_path, observed):
    """The note is for a VM that runs again, so the next reconcile drops it."""
    host = drained(tmp_path)
    uuid = noted(host)
    {
        "reconcile --dry-run": lambda: run_reconcile(host.ports, dry_run=True),
        "set-mode --dry-run": lambda: do(host.ports, FLEX, "sriov", 6, drain=True, dry_run=True),
        "doctor": lambda: diagnose(host.ports),
    }[observed]()
    assert [vm.vm_uuid for vm in host.ports.claims.drained_vms()] == [uuid]
    run_reconcile(host.ports)
    assert host.ports.claims.drained_vms() == ()


def test_a_vm_that_was_noted_after_the_look_keeps_its_note(tmp_path):
    """A snapshot is older than the notes read after it: a VM that runs in it may have been shut down since."""
    host = drained(tmp_path)
    claims = host.ports.claims

    def drained_vms():
        if not claims.is_locked:
            host.ports.hypervisor.destroy(noted(host))
        return claims.drained_vms()

    assert not run_reconcile(with_calls(host.ports, "claims", drained_vms=drained_vms)).changed
    assert run_reconcile(host.ports).changed
    assert host.ports.hypervisor.find_domain("two").uuid in picture(host).running
