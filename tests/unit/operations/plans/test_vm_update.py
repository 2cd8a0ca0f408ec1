# SPDX-License-Identifier: Apache-2.0
"""One change of a stopped VM: the slot of the added vGPU, the order of the steps, and the VM afterwards."""

from __future__ import annotations

import pytest

from tests.hosts import SimulatedHost, create, open_sim_host, request
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.place_and_start import read_domain_xml
from vgpuctl.operations.plans.change import diff_vgpus
from vgpuctl.operations.plans.vm_update import (
    MoveTarget,
    VmUpdate,
    choose_update_vgpus,
    update_steps,
    updated_vm_result,
)
from vgpuctl.operations.steps.attach import RedefineDomain, RemoveForReplace
from vgpuctl.value import replace


@pytest.fixture
def host(tmp_path):
    made = open_sim_host(tmp_path, "a100-40")
    create(made.ports, request("A100-4C", name="a"), start=False)
    return made


def job(host: SimulatedHost, fields: set[str], **changes) -> VmUpdate:
    """Return the change of the VM `a` to the requested state."""
    seen = observe(host.ports, ReadScope(types=True))
    (vm,) = [vm for vm in seen.vms if vm.name == "a"]
    assert vm.record is not None
    wanted = request(changes.pop("profile", "A100-4C"), name="a", **changes)
    exchange = diff_vgpus(vm, vm.record, [text for text, _ in wanted.profiles])
    xml = read_domain_xml(host.ports, vm, dry_run=False)
    return VmUpdate(seen, vm, vm.record, wanted, frozenset(fields), exchange, xml, "always", ())


def test_memory_alone_is_one_definition_and_no_vgpu_is_touched(host):
    change = job(host, {"memory"}, memory_mib=8192)
    new = choose_update_vgpus(change.snapshot, change)
    (step,) = update_steps(change.snapshot, change, new, ())
    assert isinstance(step, RedefineDomain)
    assert "memory: 1 GiB -> 8 GiB" in step.describe()
    assert updated_vm_result(change, new).memory_mib == 8192


def test_the_old_vgpu_goes_before_the_new_one_is_made_and_the_definition_comes_last(host):
    change = job(host, {"profile"}, profile="A100-8C")
    (new,) = choose_update_vgpus(change.snapshot, change)
    steps = update_steps(change.snapshot, change, (new,), ())
    assert (isinstance(steps[0], RemoveForReplace), isinstance(steps[-1], RedefineDomain)) == (True, True)
    assert "profile: A100-4C -> A100-8C" in steps[-1].describe()
    vgpus = updated_vm_result(change, (new,)).vgpus
    assert [vgpu.profile for vgpu in vgpus] == ["A100-8C"]


def test_where_no_second_size_fits_the_new_one_goes_to_the_gpu_of_the_old_one(host):
    change = job(host, {"profile"}, profile="A100-8C")
    (new,) = choose_update_vgpus(change.snapshot, change)
    assert new.gpu == change.vgpu_changes.removed[0].gpu


def test_what_is_moved_keeps_its_parameters(host):
    change = job(host, {"profile"})
    (old,) = change.record.vgpus
    moved = replace(
        change,
        vgpu_changes=replace(
            change.vgpu_changes, kept=(), removed=(replace(old, params="a=1"),), added_profiles=("A100-4C",)
        ),
    )
    (new,) = choose_update_vgpus(moved.snapshot, replace(moved, move_target=MoveTarget(old.gpu)))
    assert (new.params, new.index) == ("a=1", 1)
