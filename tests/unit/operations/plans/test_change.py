# SPDX-License-Identifier: Apache-2.0
"""Changes of a VM: which vGPUs are kept, removed and added; how it differs from a request, and the command for it."""

from __future__ import annotations

import json

import pytest

from tests.hosts import SimulatedHost, create, open_sim_host, request
from tests.values import A4C, A5C, T2Q, T4Q, a100, assigned, snapshot, t4, taken, vm
from vgpuctl.backends.mdev import carrier_uuid
from vgpuctl.config.vm_request import CONSTRAINT_FIELDS
from vgpuctl.errors import InvalidInput, NoCapacity, NotFound, Refused
from vgpuctl.model.request import NewDisk
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.model.vm import HostdevRef, Nic, VmRecord
from vgpuctl.observe import ReadScope, observe
from vgpuctl.observe.definition import find_unreferenced_vgpus
from vgpuctl.operations.place_and_start import read_domain_xml
from vgpuctl.operations.plans import change
from vgpuctl.operations.plans import vm_diff as texts
from vgpuctl.operations.plans.change import diff_vgpus
from vgpuctl.operations.plans.vm_diff import diff_vm, request_fields_json
from vgpuctl.operations.plans.vm_update import (
    MoveTarget,
    VmUpdate,
    choose_update_vgpus,
)
from vgpuctl.operations.steps.attach import DetachDevice
from vgpuctl.value import replace

CARD = a100()
VGPUS = tuple(assigned(CARD, A4C, n, index=n) for n in range(2))
VM = vm(1, *VGPUS)


def own(of=VM) -> VmRecord:
    """Return the record of a VM."""
    assert of.record is not None
    return of.record


def test_new_vgpus_take_the_lowest_free_index_and_its_uuid() -> None:
    card = t4()
    have = assigned(card, T2Q, index=1, carrier=carrier_uuid(vm(1).uuid, 1))
    (first, second) = change.choose_added_vgpus(
        snapshot(card, vms=[vm(1, have)]), request("T4-2Q", 2), own(vm(1, have))
    )
    assert (first.index, second.index) == (0, 2)
    assert first.carrier == carrier_uuid(vm(1).uuid, 0)


def test_a_removed_vgpu_keeps_its_index() -> None:
    card = t4()
    have = assigned(card, T2Q, carrier=carrier_uuid(vm(1).uuid, 0))
    seen = snapshot(card, vms=[vm(1, have)])
    with pytest.raises(NoCapacity):
        change.choose_added_vgpus(seen, request("T4-4Q"), own(vm(1, have)), removed=(have,))
    (new,) = change.choose_added_vgpus(
        change.with_freed(seen, (have,)), request("T4-4Q"), own(vm(1, have)), removed=(have,)
    )
    assert (new.index, new.profile) == (1, T4Q.profile)


def test_a_profile_of_any_model_is_of_the_model_that_the_vm_has() -> None:
    other = a100(types=(replace(A4C, name="GRID A100-4Q", profile="A100-4Q"),))
    card = t4()
    have = assigned(card, T4Q, carrier=carrier_uuid(vm(1).uuid, 0))
    seen = snapshot(other, card, vms=[vm(1, have)], vgpus=[taken(card, T4Q, carrier=have.carrier)])
    asked = request("4Q", 2)
    asked = replace(asked, placement="first-fit")
    assert [v.profile for v in change.choose_added_vgpus(seen, asked, own(vm(1, have)))] == ["T4-4Q", "T4-4Q"]
    with pytest.raises(Refused, match="the same board type"):
        change.choose_added_vgpus(seen, request("A100-4Q"), own(vm(1, have)))


def test_the_record_keeps_the_text_of_each_vgpu() -> None:
    typed = replace(own(), request_json='{"gpu":"A100","profile":["468","GRID A100-4C"]}')
    third = assigned(CARD, A4C, 2, index=2)
    grown = change.record_with_vgpus(typed, (*VGPUS, third), ["A100-4C"])
    assert json.loads(grown.request_json) == {"gpu": "A100", "profile": ["468", "GRID A100-4C", "A100-4C"]}
    assert json.loads(change.record_with_vgpus(grown, (VGPUS[1],)).request_json)["profile"] == ["GRID A100-4C"]


def test_swap_keeps_what_is_wanted_already() -> None:
    assert change.diff_vgpus(VM, own(), ["A100-4C", "A100-4C"]) == change.VgpuChanges(VGPUS, (), ())
    assert change.diff_vgpus(VM, own(), ["A100-4C"]) == change.VgpuChanges(VGPUS[:1], VGPUS[1:], ())
    assert change.diff_vgpus(VM, own(), ["A100-5C"]) == change.VgpuChanges((), VGPUS, ("A100-5C",))
    assert change.diff_vgpus(VM, own(), ["GRID A100-4C", "A100-5C"]).added_profiles == ("A100-5C",)


def test_named_carriers_or_the_only_one() -> None:
    with pytest.raises(InvalidInput, match="has 2 vGPUs, and none is named") as several:
        change.select_vgpus(VM, own(), ())
    assert str(several.value.hint).endswith(" ".join(f"--vgpu {vgpu.carrier}" for vgpu in VGPUS))
    assert change.select_vgpus(VM, replace(own(), vgpus=VGPUS[:1]), ()) == VGPUS[:1]
    assert change.select_vgpus(VM, own(), [VGPUS[1].carrier.upper()]) == VGPUS[1:]
    with pytest.raises(NotFound, match="no vGPU nothing"):
        change.select_vgpus(VM, own(), ["nothing"])


def test_a_device_in_config_or_guest_is_referenced() -> None:
    assert find_unreferenced_vgpus(VM, own()) == ()
    half = replace(VM, hostdevs=(HostdevRef("pci", VGPUS[0].carrier, False),))
    assert find_unreferenced_vgpus(half, own()) == VGPUS[1:]
    steps = change.detach_steps(half, own(), find_unreferenced_vgpus(half, own()), frozenset(), 0)
    assert not any(isinstance(s, DetachDevice) for s in steps)


@pytest.fixture
def host(tmp_path):
    made = open_sim_host(tmp_path, "a100-40")
    create(made.ports, request("A100-4C", name="a"), start=False)
    return made


def job(host: SimulatedHost, fields: set[str], **changes) -> VmUpdate:
    """Return the change of the VM `a` to the requested state."""
    seen = observe(host.ports, ReadScope(types=True))
    (vm,) = [vm for vm in seen.vms if vm.name == "a"]
    wanted = request(changes.pop("profile", "A100-4C"), name="a", **changes)
    exchange = diff_vgpus(vm, vm.record, [text for text, _ in wanted.profiles])
    xml = read_domain_xml(host.ports, vm, dry_run=False)
    return VmUpdate(seen, vm, vm.record, wanted, frozenset(fields), exchange, xml, "always", ())


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


KEPT = ("os", "template", "hotplug_slots", "vgpu_params", "disk")
FIELDS = ("profile", "memory", "vcpus", "networks", "hugepages", "cpu_pin", "display", *CONSTRAINT_FIELDS[:-1], *KEPT)
WANTED = request("A100-4C", name="vdi-001", sources=dict.fromkeys(FIELDS, "given"), disks=(NewDisk(1024),))


def existing(wanted=WANTED):
    result = vm(1, assigned(a100(), A4C), nics=(Nic(network="default", model="virtio", mac="52:54:00:00:00:01"),))
    return replace(result, record=replace(result.record, request_json=request_fields_json(wanted)))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"memory_mib": 2048}, "memory"),
        ({"vcpus": 2}, "vcpus"),
        ({"nics": (Nic(network="lab"),)}, "networks"),
        ({"nics": ()}, "networks"),
        ({"nics": (Nic(network="default", model="e1000e"),)}, "networks"),
        ({"nics": (Nic(network="default", mac="52:54:00:00:00:02"),)}, "networks"),
        ({"hugepages": "2MiB"}, "hugepages"),
        ({"cpu_pin": "auto"}, "cpu_pin"),
        ({"display": True}, "display"),
        ({"os": "generic"}, "os"),
        ({"template": "mine"}, "template"),
        ({"hotplug_slots": 0}, "hotplug_slots"),
        ({"vgpu_params": (("a", "1"),)}, "vgpu_params"),
        ({"profiles": (("A100-4C", 2),)}, "profile"),
        ({"gpu": ("0000:86:00.0",)}, "gpu"),
        ({"not_gpu": ("A16",)}, "not_gpu"),
        ({"numa_node": 1}, "numa_node"),
        ({"spread_group": "exam"}, "spread_group"),
        ({"scheduler": SchedulerPolicy.FIXED_SHARE}, "scheduler"),
    ],
)
def test_a_typed_field_that_differs_is_named_with_both_sides(changes, field):
    quiet = replace(WANTED, sources={**WANTED.sources, "disk": "default"}, **changes)
    before, after = diff_vm(existing(), quiet)
    assert list(before) == list(after) == [field]
    assert before[field] != after[field]
    assert diff_vm(existing(), replace(quiet, sources={})) == ({}, {})


def by(*texts, gpu=None, **more):
    """Return a request with these explicit profiles, each once or several times."""
    counts = {text: texts.count(text) for text in texts}
    sources = {"profile": "given", **({"gpu": "given"} if gpu else {})}
    return request(name="vdi-001", profiles=tuple(counts.items()), gpu=gpu, sources=sources, **more)


def test_a_profile_of_any_model_is_the_one_that_the_vm_got():
    result, types = existing(by("4C")), a100().types
    for again in ("4C", "A100-4C", "a100-4c", "T4-4Q|A100-4C"):
        assert diff_vm(result, by(again), types=types) == ({}, {}), again
    assert diff_vm(existing(by("A100-4C")), by("4C"), types=types) == ({}, {})
    assert diff_vm(result, by("5C"), types=types)[1]["profile"] == {"5C": 1}


def test_a_driver_that_hides_types_of_a_gpu_in_use_makes_no_difference():
    for made in ("A100-4C", "4C", "468"):
        for again in ("4C", "T4-4Q|A100-4C", "NVIDIA T4-4Q|GRID A100-4C"):
            assert diff_vm(existing(by(made)), by(again)) == ({}, {}), (made, again)
    assert diff_vm(existing(by("A100-4C")), by("5C"))[1]["profile"] == {"5C": 1}


def test_two_full_names_with_the_same_last_word_are_two_profiles():
    assert diff_vm(existing(by("GRID A100-4C")), by("NVIDIA A100-4C"))[1]["profile"] == {"NVIDIA A100-4C": 1}


def test_the_order_of_several_profiles_makes_no_difference():
    made = by("GRID A100-4C", "469")
    result = vm(1, assigned(a100(), A4C), assigned(a100(), A5C, 1))
    result = replace(result, record=replace(result.record, request_json=request_fields_json(made)))
    assert diff_vm(result, by("469", "A100-4C")) == ({}, {})
    assert diff_vm(result, by("469", "469"))[0]


def test_a_record_without_texts_is_compared_by_its_profile():
    rebuilt = vm(1, assigned(a100(), A4C))
    assert rebuilt.record.request_json == "{}"
    assert diff_vm(rebuilt, by("GRID A100-4C", gpu="0000:3b:00.0")) == ({}, {})
    before, after = diff_vm(rebuilt, by("A100-5C", gpu="0000:86:00.0"))
    assert (before["gpu"], after["gpu"]) == ("0000:3b:00.0", "0000:86:00.0")
    assert "profile" in before


@pytest.mark.parametrize(
    ("field", "before", "after", "text"),
    [
        ("profile", {"A16-2Q": 1}, {"A16-4Q": 1}, "profile: A16-2Q -> A16-4Q"),
        ("profile", {}, {"A16-4Q": 2, "A16-2Q": 1}, "profile: none -> A16-4Q:2 A16-2Q"),
        ("image", None, "/srv/a.qcow2", "image: none -> /srv/a.qcow2"),
        ("memory", 4096, 8192, "memory: 4 GiB -> 8 GiB"),
        ("display", False, True, "display: false -> true"),
        ("disk", [], ["1 GiB", "/srv/b"], "disk: none -> 1 GiB /srv/b"),
        ("vgpu_params", {}, {"frame_rate_limiter": "0"}, "vgpu_params: none -> frame_rate_limiter=0"),
    ],
)
def test_values_are_as_in_a_spec(field, before, after, text):
    assert texts.describe_differences({field: before}, {field: after}) == text


@pytest.mark.parametrize(
    ("field", "before", "after", "hint"),
    [
        ("image", "/a", "/b c", "vgpuctl refresh-vm vm --image '/b c' gives it a new disk; the current disk is lost"),
        ("image", None, "/b", "image cannot be changed in place"),
        ("disk", ["1 GiB"], ["2 GiB"], "vgpuctl resize-disk vm SIZE grows a disk"),
        ("scheduler", None, "equal_share", "only a new VM is placed by scheduler: omit that for one that exists"),
        ("os", "linux", "windows11", "os cannot be changed in place"),
    ],
)
def test_the_hint_names_the_command_for_the_field(field, before, after, hint):
    given = texts.fixed_field_hint(["vm"], [field], {field: before}, {field: after})
    assert given.startswith(hint)
    assert ("vgpuctl show-vm vm -o yaml" in given) == ("cannot be changed in place" in hint)
    assert "delete" not in given


@pytest.mark.parametrize(
    ("field", "before", "after", "words"),
    [
        ("memory", 4096, 8192, "--memory 8GiB"),
        ("memory", 4096, 1500, "--memory 1500MiB"),
        ("vcpus", 1, 2, "--vcpus 2"),
        ("gpu", None, ["A16", "T4"], "--gpu A16 --gpu T4"),
        ("gpu", None, "A16", "--gpu A16"),
        ("networks", ["a"], ["b", "bridge=br0,vlan=3"], "--network b --network bridge=br0,vlan=3"),
        ("networks", ["a"], ["none"], "--network none"),
        ("hugepages", "none", "2MiB", "--hugepages 2MiB"),
        ("cpu_pin", "auto", "none", "--cpu-pin none"),
        ("display", False, True, "--display"),
        ("display", True, False, "--no-display"),
        ("reserve", "always", "running", "--reserve running"),
        ("labels", {"old": "1", "team": "x"}, {"team": "c d"}, "--label 'team=c d' --label old-"),
        ("autostart", "disabled", "last-state", "--autostart last-state"),
        ("start_order", 100, 7, "--start-order 7"),
        ("owner", "you", "me", "--owner me"),
        ("owner", "you", None, "--owner ''"),
    ],
)
def test_one_command_changes_every_field_that_can_change(field, before, after, words):
    assert texts.set_vm_command(["a", "b"], [field], {field: before}, {field: after}) == f"vgpuctl set-vm a b {words}"
