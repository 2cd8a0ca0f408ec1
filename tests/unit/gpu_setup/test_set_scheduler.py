# SPDX-License-Identifier: Apache-2.0
"""Setting a scheduler as a step: verified, undone only while it is unchanged, and refusals explained."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import Failed, HostCannot, InvalidInput, NvmlFailed, VerifyFailed
from vgpuctl.gpu_setup.set_scheduler import (
    RemoveTemporarily,
    SetScheduler,
    read_running_scheduler,
    set_scheduler_command,
)
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy, SchedulerSpec, SchedulerState
from vgpuctl.scheduler.limits import scheduler_text
from vgpuctl.value import replace

GPU = "0000:3b:00.0"
TWO = SchedulerSpec(SchedulerPolicy.FIXED_SHARE, 2)
BEST = SchedulerState(SchedulerPolicy.BEST_EFFORT)
STEP = SetScheduler(GPU, TWO, BEST)


class Refusing:
    def __init__(self, code):
        self.code = code

    def set_scheduler(self, address, spec):
        raise NvmlFailed("no", nvml_code=self.code, call="set")


def test_it_is_set_read_back_and_taken_back(tmp_path):
    ports = open_sim_host(tmp_path).ports
    STEP.perform(ports)
    STEP.verify(ports)
    assert read_running_scheduler(ports, GPU) == SchedulerState(SchedulerPolicy.FIXED_SHARE, False, 2_000_000)
    STEP.undo(ports)
    assert read_running_scheduler(ports, GPU) == BEST
    with pytest.raises(VerifyFailed, match="best_effort"):
        STEP.verify(ports)


def test_another_programs_setting_is_not_undone(tmp_path):
    ports = open_sim_host(tmp_path).ports
    STEP.perform(ports)
    ports.nvml.set_scheduler(GPU, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE))
    STEP.undo(ports)
    state = read_running_scheduler(ports, GPU)
    assert state is not None
    assert state.policy is SchedulerPolicy.EQUAL_SHARE


def test_an_unknown_former_scheduler_is_not_restored(tmp_path):
    ports = open_sim_host(tmp_path).ports
    STEP.perform(ports)
    with pytest.raises(Failed, match="is not known"):
        SetScheduler(GPU, TWO).undo(ports)


@pytest.mark.parametrize(
    ("code", "kind"),
    [(2, InvalidInput), (3, HostCannot), (4, Failed), (16, Failed), (None, NvmlFailed), (9, NvmlFailed)],
)
def test_nvmls_numbers_in_words(tmp_path, code, kind):
    ports = replace(open_sim_host(tmp_path).ports, nvml=Refusing(code))
    with pytest.raises(kind) as raised:
        STEP.perform(ports)
    assert raised.value.facts["nvml_code"] == code


def test_a_scheduler_as_it_is_typed():
    assert set_scheduler_command(GPU, TWO) == f"vgpuctl set-scheduler {GPU} --policy fixed_share --time-slice 2"
    whole = set_scheduler_command(GPU, SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, None, 480, 33))
    assert whole.endswith("--policy equal_share --frequency 480 --averaging-factor 33")


def test_a_scheduler_in_words():
    assert scheduler_text(TWO) == "fixed_share, time slice 2 ms"
    assert (
        scheduler_text(SchedulerSpec(SchedulerPolicy.EQUAL_SHARE, None, 480, 33))
        == "equal_share, 480 Hz, averaging factor 33"
    )


class Device:
    """A device that is there or not."""

    def __init__(self, there):
        self.there, self.calls = there, []

    def describe(self):
        return "remove it"

    def perform(self, ports):
        self.calls.append("perform")
        self.there = not self.there

    def verify(self, ports):
        if not self.there:
            raise VerifyFailed("it is missing")


@pytest.mark.parametrize(("there", "calls"), [(True, []), (False, ["perform"])])
def test_a_suspended_device_is_made_again_if_gone(there, calls):
    device = Device(there)
    lend = RemoveTemporarily(device, device)
    lend.undo(None)
    assert (device.calls, device.there, lend.describe()) == (calls, True, "remove it temporarily")
