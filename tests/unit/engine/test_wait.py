# SPDX-License-Identifier: Apache-2.0
"""Waiting for a guest: it ends with an answer, with the deadline, or because the VM went off; the VM stays."""

from __future__ import annotations

import pytest

from tests.worlds import EagerClock, Silent, create, open_host, stop, wish
from vgpuctl.engine.wait import refuse_no_wait, wait_for_guest
from vgpuctl.errors import Busy, Interrupted, InvalidInput, PartlyApplied
from vgpuctl.model.records import GuestAddress
from vgpuctl.model.vm import VmState
from vgpuctl.value import replace


class Booting:
    """A hypervisor whose guest's agent begins to answer at a moment of the clock."""

    def __init__(self, real, clock, moment, answer):
        self._real = real
        self._clock = clock
        self._moment = moment
        self._answer = answer

    def __getattr__(self, name):
        return getattr(self._real, name)

    def guest_addresses(self, uuid, source):
        ready = source == "agent" and self._clock.monotonic() >= self._moment
        return self._answer if ready else None


class ThenOff(EagerClock):
    """A clock on which a VM goes off while somebody waits."""

    def pause(self, seconds):
        super().pause(seconds)
        if self.monotonic() > 1_000_003:
            self.off()


def booting(tmp_path, after, answer):
    clock = EagerClock()
    world = open_host(tmp_path, clock=clock).world
    made = create(world, wish("A100-4C", name="vm"))
    hypervisor = Booting(world.hypervisor, clock, clock.monotonic() + after, answer)
    return replace(world, hypervisor=hypervisor), made, clock


@pytest.mark.parametrize("answer", [(), (GuestAddress("127.0.0.1", 8, None, "lo"),)])
def test_an_agent_that_answers_without_an_address_is_enough(tmp_path, answer):
    world, made, clock = booting(tmp_path, 20, answer)
    begun = clock.monotonic()
    outcome = wait_for_guest(world, made, 60, Silent())
    assert outcome.data["guest"] == {"source": "agent", "addresses": []}
    assert outcome.steps[:-1] == made.steps
    assert 20 <= clock.monotonic() - begun < 22


def test_the_deadline_leaves_the_vm_running_and_says_so(tmp_path):
    world, made, clock = booting(tmp_path, 1000, ())
    begun = clock.monotonic()
    with pytest.raises(Busy, match=r"vm was made and runs, but its guest did not answer within 30 s") as caught:
        wait_for_guest(world, made, 30, Silent())
    assert caught.value.status == 75
    assert clock.monotonic() - begun == 30
    record = world.hypervisor.find_domain("vm")
    assert record is not None
    assert record.state is VmState.RUNNING
    assert caught.value.changed


def test_a_vm_that_goes_off_is_not_waited_for(tmp_path):
    clock = ThenOff()
    world = open_host(tmp_path, clock=clock).world
    made = create(world, wish("A100-4C", name="vm"))
    clock.off = lambda: stop(world, "vm")
    with pytest.raises(PartlyApplied, match="went off before its guest answered") as caught:
        wait_for_guest(world, made, 300, Silent())
    assert caught.value.left == ["VM vm with its vGPUs and disks"]
    assert clock.monotonic() < 1_000_010


def test_a_signal_ends_the_waiting_and_leaves_the_vm_running(tmp_path):
    class Signalled(Silent):
        looks = 0

        def started(self, number, text):
            self.looks += 1
            if self.looks > 3:
                raise Interrupted("interrupted", signal_number=2)

    world, made, _clock = booting(tmp_path, 1000, ())
    with pytest.raises(Interrupted) as caught:
        wait_for_guest(world, made, 300, Signalled())
    assert caught.value.left == ["VM vm: it is made and runs"]
    assert world.hypervisor.find_domain("vm").live_xml is not None


def test_a_dry_run_says_that_it_would_wait(tmp_path):
    world = open_host(tmp_path).world
    planned = create(world, wish("A100-4C", name="vm"), dry_run=True)
    steps = wait_for_guest(world, planned, 60, Silent()).steps
    assert steps == (*planned.steps, "wait until the guest of vm answers (at most 60 s)")


def test_what_cannot_come_is_refused_before_anything_is_made():
    with pytest.raises(InvalidInput, match="--no-start"):
        refuse_no_wait(wait_for="guest", timeout=None, start=False)
    with pytest.raises(InvalidInput, match="--wait-timeout"):
        refuse_no_wait(wait_for=None, timeout=5.0, start=True)
    refuse_no_wait(wait_for=None, timeout=None, start=False)
    refuse_no_wait(wait_for="guest", timeout=5.0, start=True)
