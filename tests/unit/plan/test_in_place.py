# SPDX-License-Identifier: Apache-2.0
"""One change of a stopped VM: where the vGPU that comes goes, the steps in their order, and the VM afterwards."""

from __future__ import annotations

import pytest

from tests.worlds import Host, create, open_host, wish
from vgpuctl.engine.move import definition
from vgpuctl.engine.observe import Want, observe
from vgpuctl.plan.change import swap
from vgpuctl.plan.in_place import Goal, Job, chosen, expected, steps_of
from vgpuctl.steps.plug import Redefine, TakeOut
from vgpuctl.value import replace


@pytest.fixture
def host(tmp_path):
    made = open_host(tmp_path, "a100-40")
    create(made.world, wish("A100-4C", name="a"), start=False)
    return made


def job(host: Host, fields: set[str], **changes) -> Job:
    """Return the change of the VM `a` to what is wished for."""
    seen = observe(host.world, Want(types=True))
    (vm,) = [vm for vm in seen.vms if vm.name == "a"]
    assert vm.promise is not None
    wanted = wish(changes.pop("profile", "A100-4C"), name="a", **changes)
    exchange = swap(vm, vm.promise, [text for text, _ in wanted.profiles])
    xml = definition(host.world, vm, dry_run=False)
    return Job(seen, vm, vm.promise, wanted, frozenset(fields), exchange, xml, "always", ())


def test_memory_alone_is_one_definition_and_no_vgpu_is_touched(host):
    change = job(host, {"memory"}, memory_mib=8192)
    new = chosen(change.snapshot, change, frozenset())
    (step,) = steps_of(change.snapshot, change, new, ())
    assert isinstance(step, Redefine)
    assert "memory: 1 GiB -> 8 GiB" in step.describe()
    assert expected(change, new)["memory_mib"] == 8192


def test_the_old_vgpu_goes_before_the_new_one_is_made_and_the_definition_comes_last(host):
    change = job(host, {"profile"}, profile="A100-8C")
    (new,) = chosen(change.snapshot, change, frozenset())
    steps = steps_of(change.snapshot, change, (new,), ())
    assert (isinstance(steps[0], TakeOut), isinstance(steps[-1], Redefine)) == (True, True)
    assert "profile: A100-4C -> A100-8C" in steps[-1].describe()
    vgpus = expected(change, (new,))["vgpus"]
    assert [vgpu["profile"] for vgpu in vgpus] == ["A100-8C"]


def test_where_no_second_size_fits_the_new_one_goes_to_the_gpu_of_the_old_one(host):
    change = job(host, {"profile"}, profile="A100-8C")
    (new,) = chosen(change.snapshot, change, frozenset())
    assert new.gpu == change.swap.go[0].gpu


def test_what_is_moved_keeps_its_parameters(host):
    change = job(host, {"profile"})
    (old,) = change.promise.vgpus
    moved = replace(change, swap=replace(change.swap, stay=(), go=(replace(old, params="a=1"),), come=("A100-4C",)))
    (new,) = chosen(moved.snapshot, replace(moved, goal=Goal(old.gpu)), frozenset())
    assert (new.params, new.index) == ("a=1", 1)
