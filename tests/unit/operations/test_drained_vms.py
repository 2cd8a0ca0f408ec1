# SPDX-License-Identifier: Apache-2.0
"""Draining a GPU: whatever interrupts it, the stopped VMs run again, or the error or a note names them.

A command that is killed while its drained VMs are off leaves a note for each, and reconcile starts them.
"""

from __future__ import annotations

import errno
import os
import signal
import traceback
from functools import partial

import pytest

from tests.faults import Watch
from tests.hosts import WAIT_SECONDS, delete, living_operation, open_sim_host, picture, run_reconcile, start, stop
from tests.layouts import FLEX, Signals, StrikesTheRequest, Struck, configured_modes, do, drained, numvfs, stand, starts
from tests.meanwhile import on_call, with_calls
from tests.schedulers import SMALL, TWO_MS, small, with_vms
from tests.schedulers import act as set_scheduler
from tests.unit.operations.test_refresh import prepared, refresh
from tests.vgpus import drop, make
from vgpuctl.errors import Busy, Interrupted, InUse
from vgpuctl.model.vm import DrainedVm, ProcessId
from vgpuctl.operations.diagnose import diagnose
from vgpuctl.value import replace


@pytest.fixture
def host(tmp_path):
    return drained(tmp_path)


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


def test_a_vm_that_was_drained_and_started_is_not_started_again_once_it_is_stopped(host):
    do(host.ports, FLEX, "sriov", 6, drain=True)
    stop(host.ports, "one")
    later = host.again()
    assert later.ports.claims.drained_vms() == ()
    assert not run_reconcile(later.ports, dry_run=True).data.findings


@pytest.mark.parametrize("off", [True, False])
def test_one_that_somebody_stops_stays_off(host, off):
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
    set_scheduler(ports, TWO_MS, drain=True)


def refreshed(ports):
    refresh(ports, "drain")


DRAINING = {
    "set-mode": (drained, set_up, "one"),
    "set-scheduler": (lambda path: with_vms(small(path)), scheduled, "on"),
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


def test_the_note_of_a_living_operation_stays(host):
    uuid = host.ports.hypervisor.find_domain("two").uuid
    operation = living_operation(host.ports)
    host.ports.claims.add_drained_vm(DrainedVm(uuid, FLEX, operation.process, operation=operation.id))
    run_reconcile(host.ports)
    assert [vm.vm_uuid for vm in host.ports.claims.drained_vms()] == [uuid]


@pytest.mark.parametrize("by", ["delete-vm", "virsh"])
def test_the_note_of_a_deleted_vm_is_dropped(host, by):
    uuid = noted(host)
    if by == "delete-vm":
        delete(host.ports, "two")
    else:
        host.ports.hypervisor.destroy(uuid)
        host.ports.hypervisor.undefine(uuid)
        run_reconcile(host.ports)
    assert host.ports.claims.drained_vms() == ()


@pytest.mark.parametrize("observed", ["reconcile --dry-run", "set-mode --dry-run", "doctor"])
def test_a_look_drops_no_note(host, observed):
    """The note is for a VM that runs again, so the next reconcile drops it."""
    uuid = noted(host)
    {
        "reconcile --dry-run": lambda: run_reconcile(host.ports, dry_run=True),
        "set-mode --dry-run": lambda: do(host.ports, FLEX, "sriov", 6, drain=True, dry_run=True),
        "doctor": lambda: diagnose(host.ports),
    }[observed]()
    assert [vm.vm_uuid for vm in host.ports.claims.drained_vms()] == [uuid]
    run_reconcile(host.ports)
    assert host.ports.claims.drained_vms() == ()


def test_a_vm_that_was_noted_after_the_look_keeps_its_note(host):
    """A snapshot is older than the notes read after it: a VM that runs in it may have been shut down since."""
    claims = host.ports.claims

    def drained_vms():
        if not claims.is_locked:
            host.ports.hypervisor.destroy(noted(host))
        return claims.drained_vms()

    assert not run_reconcile(with_calls(host.ports, "claims", drained_vms=drained_vms)).changed
    assert run_reconcile(host.ports).changed
    assert host.ports.hypervisor.find_domain("two").uuid in picture(host).running


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_signal_while_vms_are_drained_brings_all_of_them_back(host, error):
    signals = Signals()
    running = picture(host).running
    if error is not None:
        signals.come = lambda: (_ for _ in ()).throw(error)
    struck = replace(host.ports, sysfs=Struck(host.ports.sysfs, signals, numvfs))
    with pytest.raises(Interrupted) as raised:
        do(struck, FLEX, "sriov", 6, drain=True, progress=signals)
    assert (picture(host).running, stand(host)[0][FLEX]) == (running, 8)
    assert (configured_modes(host), raised.value.left) == ({}, [])


def test_a_guest_that_goes_off_after_the_signal_is_started_again_too(host):
    signals = Signals()
    before = stand(host)
    asked = []

    def shutdown(uuid):
        asked.append(uuid)
        signals.come()

    def wait_stopped(uuid, deadline_seconds):
        if uuid in asked:
            host.ports.hypervisor.shutdown(asked.pop())
        return host.ports.hypervisor.wait_stopped(uuid, deadline_seconds)

    slow = with_calls(host.ports, "hypervisor", shutdown=shutdown, wait_stopped=wait_stopped)
    with pytest.raises(Interrupted) as raised:
        do(slow, FLEX, "sriov", 6, drain=True, progress=signals)
    assert (stand(host), asked, raised.value.left) == (before, [], [])


@pytest.mark.parametrize("call", ["find_domain", "shutdown"])
def test_a_signal_just_before_the_first_request_to_shut_down_leaves_all_running(host, call):
    signals = StrikesTheRequest(host.ports.hypervisor, call)
    before, begun = stand(host), host.ports.clock.monotonic()
    with pytest.raises(Interrupted) as raised:
        do(replace(host.ports, hypervisor=signals.port()), FLEX, "sriov", 6, drain=True, progress=signals)
    assert (stand(host), raised.value.left) == (before, [])
    assert host.ports.clock.monotonic() - begun < WAIT_SECONDS, "it waited for a guest that nobody asked"


def test_a_signal_during_vm_restart_is_raised_after_all_run(host):
    signals = Signals()
    running = picture(host).running
    struck = replace(host.ports, hypervisor=Struck(host.ports.hypervisor, signals, starts(1)))
    with pytest.raises(Interrupted, match="SIGINT") as raised:
        do(struck, FLEX, "sriov", 6, drain=True, progress=signals)
    assert (picture(host).running, stand(host)[0][FLEX]) == (running, 6)
    assert raised.value.left == [f"GPU {FLEX}: it is set up"]


def test_a_second_signal_ends_it_and_names_the_vms_that_stay_off(tmp_path):
    unmanaged = picture(open_sim_host(tmp_path, "mixed")).running
    host, signals = drained(tmp_path), Signals()
    struck = replace(host.ports, hypervisor=Struck(host.ports.hypervisor, signals, starts(1, 2)))
    with pytest.raises(Interrupted) as raised:
        do(struck, FLEX, "sriov", 6, drain=True, progress=signals)
    assert raised.value.left[1:] == ["VM one is not started again", "VM two is not started again"]
    assert raised.value.hint == "vgpuctl reconcile-host starts them, as does vgpuctl start-vm NAME"
    assert picture(host).running == unmanaged


@pytest.mark.parametrize("breaks", [True, False])
def test_one_vm_that_does_not_start_keeps_no_other_off_and_is_named(tmp_path, breaks):
    unmanaged = picture(open_sim_host(tmp_path, "mixed")).running
    host = drained(tmp_path)
    seen = starts(1)

    def fail(number, call, args):
        if call == "hypervisor.start" and seen("start", ()):
            raise OSError(errno.EIO, "Input/output error")
        if breaks and call == "sysfs.write" and numvfs("write", args):
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(Exception, match="sriov_numvfs" if breaks else "not every VM") as raised:
        do(Watch(before=fail).watch(host.ports), FLEX, "sriov", 6, drain=True)
    assert len(picture(host).running) == len(unmanaged) + 1
    assert "VM one is not started again: Input/output error" in raised.value.left[-1]
    assert "vgpuctl start-vm NAME" in raised.value.hint


def full_card(directory):
    """Return a host with one card: a VM that runs, one that is off, and a vGPU of host.yaml."""
    text = SMALL.format(driver="550.90.05", nvml="present", more="").replace("2, enabled: 2", "3, enabled: 3")
    host = with_vms(open_sim_host(directory, text=text))
    make(host.ports)
    return host.again()


def test_what_is_removed_for_a_moment_is_left_alone_by_every_other_vgpuctl(tmp_path):
    host = full_card(tmp_path)
    other, before, refusals = open_sim_host(tmp_path, host.scenario), picture(host), []

    def interfere(number, call, args):
        if call in ("sysfs.write", "nvml.set_scheduler", "hypervisor.shutdown", "hypervisor.start"):
            for act in (partial(delete, name="off"), drop, partial(start, name="off")):
                with pytest.raises(Busy, match=r"process [0-9]+ (is setting up|works on)") as raised:
                    act(other.ports)
                refusals.append(raised.value)

    set_scheduler(Watch(before=interfere).watch(host.ports), TWO_MS, drain=True)
    assert {refusal.hint for refusal in refusals} == {"wait for it, then run the command again"}
    assert len(refusals) >= 3 * 5
    after = picture(host)
    assert (after.types, after.claims, set(after.running)) == (before.types, before.claims, set(before.running))


@pytest.mark.parametrize("what", [partial(delete, name="off"), drop], ids=["vm", "vgpu"])
def test_a_vm_that_goes_before_its_gpu_is_claimed_is_not_brought_back(tmp_path, what):
    host = full_card(tmp_path)
    other = open_sim_host(host.directory, host.scenario)
    set_scheduler(on_call(host.ports, "claims.lock", lambda: what(other.ports), nth=1), TWO_MS, drain=True)
    left = picture(host)
    assert (len(left.types), set(left.types)) == (2, set(left.claims))


def test_a_gpu_that_is_set_up_gives_the_claims_back_before_the_command_goes_on_with_others(tmp_path):
    host = full_card(tmp_path)
    before = {c.carrier: c.operation for c in host.ports.claims.all()}
    set_scheduler(host.ports, TWO_MS, drain=True)
    assert host.ports.operations.living(frozenset([host.ports.operations.current().id]))
    assert {c.carrier: c.operation for c in host.ports.claims.all()} == before
    delete(open_sim_host(tmp_path, host.scenario).ports, "on")
