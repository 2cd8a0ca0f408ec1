# SPDX-License-Identifier: Apache-2.0
"""Setting a scheduler as a step: read back, taken back only while it is ours, and refusals in words."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.errors import Failed, HostCannot, InvalidInput, NvmlFailed, VerifyFailed
from vgpuctl.model.scheduler import Policy, SchedulerSpec, SchedulerState
from vgpuctl.steps.scheduler import LendDevice, SetScheduler, command, running, words
from vgpuctl.value import replace

GPU = "0000:3b:00.0"
TWO = SchedulerSpec(Policy.FIXED_SHARE, 2)
BEST = SchedulerState(Policy.BEST_EFFORT)
STEP = SetScheduler(GPU, TWO, BEST)


class Refusing:
    def __init__(self, code):
        self.code = code

    def set_scheduler(self, address, spec):
        raise NvmlFailed("no", nvml_code=self.code, call="set")


def test_it_is_set_read_back_and_taken_back(tmp_path):
    world = open_host(tmp_path).world
    STEP.perform(world)
    STEP.verify(world)
    assert running(world, GPU) == SchedulerState(Policy.FIXED_SHARE, False, 2_000_000)
    STEP.undo(world)
    assert running(world, GPU) == BEST
    with pytest.raises(VerifyFailed, match="best_effort"):
        STEP.verify(world)


def test_what_somebody_else_set_meanwhile_is_not_taken_back(tmp_path):
    world = open_host(tmp_path).world
    STEP.perform(world)
    world.nvml.set_scheduler(GPU, SchedulerSpec(Policy.EQUAL_SHARE))
    STEP.undo(world)
    state = running(world, GPU)
    assert state is not None
    assert state.policy is Policy.EQUAL_SHARE


def test_what_ran_before_must_be_known_to_be_set_again(tmp_path):
    world = open_host(tmp_path).world
    STEP.perform(world)
    with pytest.raises(Failed, match="is not known"):
        SetScheduler(GPU, TWO).undo(world)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, InvalidInput), (3, HostCannot), (4, Failed), (16, Failed), (None, NvmlFailed), (9, NvmlFailed)],
)
def test_nvmls_numbers_in_words(tmp_path, code, kind):
    world = replace(open_host(tmp_path).world, nvml=Refusing(code))
    with pytest.raises(kind) as raised:
        STEP.perform(world)
    assert raised.value.facts["nvml_code"] == code


def test_a_scheduler_as_it_is_typed():
    assert command(GPU, TWO) == f"vgpuctl set-scheduler {GPU} --policy fixed_share --time-slice 2"
    whole = command(GPU, SchedulerSpec(Policy.EQUAL_SHARE, None, 480, 33))
    assert whole.endswith("--policy equal_share --frequency 480 --averaging-factor 33")


def test_a_scheduler_in_words():
    assert words(TWO) == "fixed_share, time slice 2 ms"
    assert words(SchedulerSpec(Policy.EQUAL_SHARE, None, 480, 33)) == "equal_share, 480 Hz, averaging factor 33"


class Device:
    """A device that is there or not."""

    def __init__(self, there):
        self.there, self.calls = there, []

    def describe(self):
        return "remove it"

    def perform(self, world):
        self.calls.append("perform")
        self.there = not self.there

    def verify(self, world):
        if not self.there:
            raise VerifyFailed("it is not there")


@pytest.mark.parametrize(("there", "calls"), [(True, []), (False, ["perform"])])
def test_a_lent_device_is_made_again_unless_it_is_there(there, calls):
    device = Device(there)
    lend = LendDevice(device, device)
    lend.undo(None)
    assert (device.calls, device.there, lend.describe()) == (calls, True, "remove it for now")
