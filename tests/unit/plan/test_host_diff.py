# SPDX-License-Identifier: Apache-2.0
"""What differs is told key by key, and what a host is like is what would change nothing there."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import Refused
from vgpuctl.model.gpu import Mode
from vgpuctl.model.partition import MigSpec
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.model.wish import PlacementSpec
from vgpuctl.plan.host_diff import as_it_is, differences, not_as_set, refuse_lost_vgpus, settings_differ
from vgpuctl.sim.world import SCENARIOS
from vgpuctl.spec.host import Defaults, GpuSpec, HostSpec, VgpuSpec
from vgpuctl.value import replace

A100, A16, FLEX = "0000:3b:00.0", "0000:17:00.0", "0000:86:00.0"


def gpu(tmp_path, address):
    return observe(open_host(tmp_path, "mixed").world, Want()).gpu(address)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_as_it_is_is_no_difference_on_any_host(tmp_path, scenario):
    for one in observe(open_host(tmp_path, scenario).world, Want(every_function=True)).gpus:
        assert differences(one, as_it_is(one)) == ()
        for desired in Mode:
            asked = replace(one, desired=desired, cordoned=True, desired_scheduler=SchedulerSpec(Policy.FIXED_SHARE))
            assert differences(asked, as_it_is(asked)) == ()
            for mig in (MigSpec(), MigSpec(("1g.10gb",)), MigSpec(("3g.40gb", "1g.10gb", "1g.10gb"))):
                parts = replace(asked, desired_mig=mig, desired_mixed_size=True)
                assert differences(parts, as_it_is(parts)) == ()


H100, MIG = "0000:3f:00.0", "0000:3b:00.0"


@pytest.mark.parametrize(
    ("address", "said", "rows"),
    [
        (MIG, GpuSpec("vgpu", mig=MigSpec(("1g.10gb", "19", "3g.40gb"))), []),
        (MIG, GpuSpec("vgpu", mig=MigSpec(vgpus=(("H100-1-10C", 2), ("H100-3-40C", 1)))), []),
        (MIG, GpuSpec("vgpu", mig=MigSpec()), [("mig", "off", ["3g.40gb", "1g.10gb", "1g.10gb"])]),
        (MIG, GpuSpec("vgpu", mig=MigSpec(("9g.9gb",))), [("mig", ["9g.9gb"], ["3g.40gb", "1g.10gb", "1g.10gb"])]),
        (
            MIG,
            GpuSpec("passthrough", mig=MigSpec(("1g.10gb",))),
            [("mode", "passthrough", "vgpu"), ("mig", "off", ["3g.40gb", "1g.10gb", "1g.10gb"])],
        ),
        (H100, GpuSpec("vgpu", mig=MigSpec(("1g.10gb",))), [("mig", ["1g.10gb"], "off")]),
        (H100, GpuSpec("vgpu", mixed_size=True), [("mixed_size", True, False)]),
        (H100, GpuSpec("vgpu", mig=MigSpec(), mixed_size=False), []),
        (H100, GpuSpec("unmanaged", mig=MigSpec(("1g.10gb",))), [("mode", "unmanaged", "vgpu")]),
    ],
)
def test_mig_and_mixed_sizes_are_compared_with_what_the_driver_says(tmp_path, address, said, rows):
    one = observe(open_host(tmp_path, "h100-mig").world, Want(types=True)).gpu(address)
    assert [(d.key, d.wanted, d.found) for d in differences(one, said)] == rows


def test_what_was_taken_away_after_it_was_set_is_told(tmp_path):
    one = observe(open_host(tmp_path, "h100-mig").world, Want(types=True)).gpu(MIG)
    assert not_as_set(one, GpuSpec("vgpu", mig=MigSpec(("1g.10gb",)), mixed_size=True)) == [
        f"{MIG}: mig is 3g.40gb, 1g.10gb, 1g.10gb, not 1g.10gb",
        f"{MIG}: mixed_size is False, not True",
    ]


def test_a_partition_that_is_asked_for_no_more_is_a_difference_where_it_is_so(tmp_path):
    one = observe(open_host(tmp_path, "h100-mig").world, Want(types=True)).gpu(MIG)
    there = MigSpec(("3g.40gb", "1g.10gb", "1g.10gb"))
    assert [d.key for d in differences(replace(one, desired_mig=there), GpuSpec("vgpu"))] == ["mig"]
    assert differences(replace(one, desired_mig=MigSpec(("1g.10gb",))), GpuSpec("vgpu")) == ()
    mixed = replace(one, mig=None, mixed_size=True, desired_mixed_size=True)
    assert [d.key for d in differences(mixed, GpuSpec("vgpu"))] == ["mixed_size"]


@pytest.mark.parametrize(
    ("address", "said", "rows"),
    [
        (A16, GpuSpec("vgpu"), [("mode", "vgpu", "unmanaged")]),
        (A100, GpuSpec("passthrough"), [("mode", "passthrough", "vgpu")]),
        (A100, GpuSpec("vgpu"), []),
        (FLEX, GpuSpec("sriov"), []),
        (FLEX, GpuSpec("sriov", 8), []),
        (FLEX, GpuSpec("sriov", 4), [("vfs", 4, 8)]),
        (A100, GpuSpec(cordoned=True), [("cordoned", True, None)]),
        (A100, GpuSpec(cordoned=False), []),
        (A100, GpuSpec(profiles=("A100-4C",)), [("profiles", ["A100-4C"], None)]),
        (A100, GpuSpec(reserved_for=("a",)), [("reserved_for", ["a"], None)]),
        (
            A100,
            GpuSpec(scheduler=SchedulerSpec(Policy.FIXED_SHARE)),
            [("scheduler", {"policy": "fixed_share"}, None)],
        ),
        (A100, GpuSpec(scheduler=SchedulerSpec(Policy.BEST_EFFORT)), []),
    ],
)
def test_each_key_is_compared_with_what_is_there(tmp_path, address, said, rows):
    assert [(d.key, d.wanted, d.found) for d in differences(gpu(tmp_path, address), said)] == rows


def test_what_is_asked_for_no_more_is_a_difference_where_it_is_so(tmp_path):
    kept = replace(gpu(tmp_path, A100), desired=Mode.VGPU, cordoned=True)
    assert [d.key for d in differences(kept, GpuSpec())] == ["mode", "cordoned"]
    assert differences(replace(kept, desired=Mode.PASSTHROUGH, cordoned=False), GpuSpec()) == ()


def test_the_other_sections_are_compared_too():
    entry = VgpuSpec("A100-4C", A100, "c")
    now = HostSpec(1, Defaults(memory="4G"), vgpus={"v": entry})
    wanted = HostSpec(1, Defaults(memory="8G"), vgpus={"v": entry, "w": entry}, placement=PlacementSpec("depth"))
    assert [d.key for d in settings_differ(wanted, now)] == ["defaults.memory", "placement.policy", "vgpus.w"]
    refuse_lost_vgpus(wanted, now, "FILE")
    for lost in (HostSpec(1), HostSpec(1, vgpus={"v": replace(entry, carrier="d")})):
        with pytest.raises(Refused, match="FILE lacks or changes the vGPU v"):
            refuse_lost_vgpus(lost, now, "FILE")
