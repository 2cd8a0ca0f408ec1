# SPDX-License-Identifier: Apache-2.0
"""Draining a GPU: whatever interrupts it, the stopped desktops run again, or the error names them."""

from __future__ import annotations

import errno
from functools import partial

import pytest

from tests.faults import Watch, acting_before
from tests.hosts import WAIT_SECONDS, delete, open_sim_host, picture, start, with_calls
from tests.layouts import FLEX, Signals, StrikesTheRequest, Struck, configured_modes, do, drained, numvfs, stand, starts
from tests.schedulers import SMALL, TWO_MS, with_vms
from tests.schedulers import act as set_scheduler
from tests.vgpus import drop, make
from vgpuctl.errors import Busy, Interrupted
from vgpuctl.value import replace


@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_a_signal_while_vms_are_drained_brings_all_of_them_back(tmp_path, error):
    host, signals = drained(tmp_path), Signals()
    running = picture(host).running
    if error is not None:
        signals.come = lambda: (_ for _ in ()).throw(error)
    struck = replace(host.ports, sysfs=Struck(host.ports.sysfs, signals, numvfs))
    with pytest.raises(Interrupted) as raised:
        do(struck, FLEX, "sriov", 6, drain=True, progress=signals)
    assert (picture(host).running, stand(host)[0][FLEX]) == (running, 8)
    assert (configured_modes(host), raised.value.left) == ({}, [])


def test_a_guest_that_goes_off_after_the_signal_is_started_again_too(tmp_path):
    host, signals = drained(tmp_path), Signals()
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
def test_a_signal_just_before_the_first_request_to_shut_down_leaves_all_running(tmp_path, call):
    host = drained(tmp_path)
    signals = StrikesTheRequest(host.ports.hypervisor, call)
    before, begun = stand(host), host.ports.clock.monotonic()
    with pytest.raises(Interrupted) as raised:
        do(replace(host.ports, hypervisor=signals.port()), FLEX, "sriov", 6, drain=True, progress=signals)
    assert (stand(host), raised.value.left) == (before, [])
    assert host.ports.clock.monotonic() - begun < WAIT_SECONDS, "it waited for a guest that nobody asked"


def test_a_signal_during_vm_restart_is_raised_after_all_run(tmp_path):
    host, signals = drained(tmp_path), Signals()
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
    set_scheduler(acting_before(host.ports, "claims.lock", lambda: what(other.ports)), TWO_MS, drain=True)
    left = picture(host)
    assert (len(left.types), set(left.types)) == (2, set(left.claims))


def test_a_gpu_that_is_set_up_gives_the_claims_back_before_the_command_goes_on_with_others(tmp_path):
    host = full_card(tmp_path)
    before = {c.carrier: c.operation for c in host.ports.claims.all()}
    set_scheduler(host.ports, TWO_MS, drain=True)
    assert host.ports.operations.living(frozenset([host.ports.operations.current().id]))
    assert {c.carrier: c.operation for c in host.ports.claims.all()} == before
    delete(open_sim_host(tmp_path, host.scenario).ports, "on")
