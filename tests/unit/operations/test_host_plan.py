# SPDX-License-Identifier: Apache-2.0
"""Every configured GPU has its tasks in order, or the reason why not; nothing else is planned."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from tests.layouts import A16, A100, FLEX, do
from vgpuctl.errors import HostCannot, InUse, Refused
from vgpuctl.operations.desired_state import HostFileText, read_desired_state
from vgpuctl.operations.gpu_mode import ModeRequest
from vgpuctl.operations.gpu_scheduler import SchedulerRequest
from vgpuctl.operations.host_plan import observe_host, plan_host, raise_refusals

H100 = "0000:3b:00.0"
SCHEDULER = f"gpus[{A100}].scheduler.policy=fixed_share"


def plan(ports, *sets):
    asked = read_desired_state(ports, None, sets)
    return plan_host(ports, observe_host(ports, asked)[0], asked, drain=False)


def test_configured_gpus_are_planned_by_address_and_others_not_at_all(tmp_path):
    result = plan(open_sim_host(tmp_path, "mixed").ports, f"gpus[{FLEX}].mode=sriov", f"gpus[{A16}].mode=vgpu")
    assert [(one.gpu.address, len(one.planned_requests)) for one in result] == [(A16, 1), (FLEX, 0)]


def test_a_scheduler_is_set_with_new_vfs_or_else_by_a_task_of_its_own(tmp_path):
    host = open_sim_host(tmp_path)
    (one,) = plan(host.ports, SCHEDULER)
    assert [type(job) for job, _ in one.planned_requests] == [SchedulerRequest]
    do(host.ports, A100, "passthrough")
    (one,) = plan(host.ports, SCHEDULER, f"gpus[{A100}].mode=vgpu")
    assert [type(job) for job, _ in one.planned_requests] == [ModeRequest]
    assert any("scheduler" in line for line in one.lines)
    assert plan(host.ports, SCHEDULER)[0].lines == ()


def test_only_the_named_gpus_are_read(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    asked = read_desired_state(host.ports, None, ("gpus[H100].mode=vgpu",))
    snapshot, notes = observe_host(host.ports, asked)
    assert all(gpu.is_display_class or gpu.address == "mtty" for gpu in snapshot.gpus)
    assert len(notes) == 1


def test_a_gpu_no_longer_named_is_planned_too(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    host.sim.host_file.write_text('version: 1\ngpus: {"0000:3b:00.0": {cordoned: true}}\n')
    asked = read_desired_state(host.ports, HostFileText("version: 1\n", "FILE"), ())
    (one,) = plan_host(host.ports, observe_host(host.ports, asked)[0], asked, drain=False)
    assert [(d.key, d.wanted, d.is_) for d in one.differences] == [("cordoned", None, True)]


def test_one_refusal_is_raised_unchanged_and_several_are_joined():
    first, other = InUse("a is in use", hint="stop it"), HostCannot("b cannot")
    raise_refusals([], [])
    with pytest.raises(InUse, match=r"^a is in use$"):
        raise_refusals([first], [])
    with pytest.raises(InUse, match="2 GPUs"):
        raise_refusals([first, InUse("c is in use")], [])
    with pytest.raises(Refused, match="b cannot") as raised:
        raise_refusals([first], [other])
    assert str(raised.value).startswith("1 GPU cannot be set up and 1 vGPU cannot be created, so nothing was changed:")
    assert [one["code"] for one in raised.value.facts["refused"]] == ["in-use", "host-cannot"]


def test_what_a_wider_entry_says_of_mig_counts_for_gpus_of_the_mode_vgpu_alone(tmp_path):
    ports = open_sim_host(tmp_path, "h100-mig").ports
    wide = ("gpus[all].mode=vgpu", "gpus[all].mig={A100-1-5C: 4}")
    apart, other = plan(ports, *wide, f"gpus[{H100}].mode=passthrough")
    assert (apart.gpu.address, apart.error, len(apart.planned_requests)) == (H100, None, 1)
    assert "has no vGPU profile A100-1-5C" in str(other.error)


def test_a_profile_that_a_gpu_can_never_offer_is_noted_with_its_line(tmp_path):
    text = f"version: 1\ngpus:\n  '{A100}':\n    profiles: [A100-4C, L40S-8Q]\n  A16: {{profiles: [A16-2Qx]}}\n"
    ports = open_sim_host(tmp_path, "mixed").ports
    notes = observe_host(ports, read_desired_state(ports, HostFileText(text, "new.yaml"), ()))[1]
    assert [note.split("(")[0].strip() for note in notes] == [
        f"new.yaml:4: gpus.{A100}: {A100} can never offer the profile L40S-8Q",
        f"new.yaml:5: gpus.A16: {A16} can never offer the profile A16-2Qx",
    ]
