# SPDX-License-Identifier: Apache-2.0
"""Every GPU of which something is said has its tasks in their order, or the reason why not; nothing else is planned."""

from __future__ import annotations

import pytest

from tests.layouts import A16, A100, FLEX, do
from tests.worlds import open_host
from vgpuctl.engine.host_plan import How, look_for, plan_host, refuse_all
from vgpuctl.engine.host_wish import File, ask
from vgpuctl.engine.layout import Job
from vgpuctl.engine.scheduler import SchedulerJob
from vgpuctl.errors import HostCannot, InUse, Refused

H100 = "0000:3b:00.0"
SCHEDULER = f"gpus[{A100}].scheduler.policy=fixed_share"


def plan(world, *sets):
    asked = ask(world, None, sets)
    return plan_host(world, look_for(world, asked)[0], asked, How())


def test_gpus_come_in_the_order_of_their_addresses_and_those_of_which_nothing_is_said_not_at_all(tmp_path):
    found = plan(open_host(tmp_path, "mixed").world, f"gpus[{FLEX}].mode=sriov", f"gpus[{A16}].mode=vgpu")
    assert [(one.gpu.address, len(one.tasks)) for one in found] == [(A16, 1), (FLEX, 0)]


def test_a_scheduler_is_set_with_new_vfs_or_else_by_a_task_of_its_own(tmp_path):
    host = open_host(tmp_path)
    (one,) = plan(host.world, SCHEDULER)
    assert [type(job) for job, _ in one.tasks] == [SchedulerJob]
    do(host.world, A100, "passthrough")
    (one,) = plan(host.world, SCHEDULER, f"gpus[{A100}].mode=vgpu")
    assert [type(job) for job, _ in one.tasks] == [Job]
    assert any("scheduler" in line for line in one.lines)
    assert plan(host.world, SCHEDULER)[0].lines == ()


def test_only_as_much_is_looked_at_as_is_named(tmp_path):
    host = open_host(tmp_path, "mixed")
    asked = ask(host.world, None, ("gpus[H100].mode=vgpu",))
    snapshot, notes = look_for(host.world, asked)
    assert all(gpu.display_class or gpu.address == "mtty" for gpu in snapshot.gpus)
    assert len(notes) == 1


def test_a_gpu_that_is_named_no_more_is_planned_too(tmp_path):
    host = open_host(tmp_path, "mixed")
    host.sim.host_file.write_text('version: 1\ngpus: {"0000:3b:00.0": {cordoned: true}}\n')
    asked = ask(host.world, File("version: 1\n", "FILE"), ())
    (one,) = plan_host(host.world, look_for(host.world, asked)[0], asked, How())
    assert [(d.key, d.wanted, d.found) for d in one.differences] == [("cordoned", None, True)]


def test_one_refusal_is_told_as_it_is_and_several_together():
    first, other = InUse("a is in use", hint="stop it"), HostCannot("b cannot")
    refuse_all([], [])
    with pytest.raises(InUse, match=r"^a is in use$"):
        refuse_all([first], [])
    with pytest.raises(InUse, match="2 GPUs"):
        refuse_all([first, InUse("c is in use")], [])
    with pytest.raises(Refused, match="b cannot") as raised:
        refuse_all([first], [other])
    assert str(raised.value).startswith("1 GPU cannot be set up and 1 vGPU cannot be made, so nothing was changed:")
    assert [one["code"] for one in raised.value.facts["refused"]] == ["in-use", "host-cannot"]


def test_what_a_wider_entry_says_of_mig_counts_for_gpus_of_the_mode_vgpu_alone(tmp_path):
    world = open_host(tmp_path, "h100-mig").world
    wide = ("gpus[all].mode=vgpu", "gpus[all].mig={A100-1-5C: 4}")
    apart, other = plan(world, *wide, f"gpus[{H100}].mode=passthrough")
    assert (apart.gpu.address, apart.refusal, len(apart.tasks)) == (H100, None, 1)
    assert "has no vGPU profile A100-1-5C" in str(other.refusal)
