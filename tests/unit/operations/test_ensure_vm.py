# SPDX-License-Identifier: Apache-2.0
"""ensure-vm: it is idempotent, changes only the state in place, and leaves an unmanaged VM alone."""

from __future__ import annotations

import itertools

import pytest

from tests.hosts import open_sim_host, picture, request, set_vm, stop
from tests.meanwhile import unchanged
from tests.unit.operations.test_change import ensure
from vgpuctl.errors import InvalidInput, NotFound, SpecDiffers, Unmanaged
from vgpuctl.value import replace

TYPED = {"profile": "given", "memory": "given", "vcpus": "given"}
TYPICAL = request("A100-4C", name="vm", sources=TYPED)


@pytest.mark.parametrize("scenario", ["a100-40", "t4", "a16"])
@pytest.mark.parametrize("state", ["present", "started", "stopped", "absent"])
def test_ensuring_twice_changes_nothing_the_second_time(host, scenario, state):
    profile = {"a100-40": "A100-4C", "t4": "T4-2Q", "a16": "A16-2Q"}[scenario]
    wanted = request(profile, name="vm", sources=TYPED)
    first = ensure(host, wanted, state)
    after = picture(host)
    second = ensure(host, wanted, state)
    assert (first.changed, second.changed) == (state != "absent", False)
    assert picture(host) == after
    assert not second.steps
    assert (second.data.before, second.data.after) == (first.data.after, first.data.after)


def test_the_state_is_changed_in_place(host):
    assert ensure(host, TYPICAL, "stopped").data.state == "stopped"
    started = ensure(host, TYPICAL, "started")
    assert (started.changed, started.data.before.state, started.data.state) == (True, "stopped", "running")
    assert ensure(host, TYPICAL, "stopped").changed
    gone = ensure(host, TYPICAL, "absent")
    assert (gone.changed, gone.data.before.name, gone.data.after) == (True, "vm", None)


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"memory_mib": 2048}, "memory"), ({"vcpus": 8}, "vcpus"), ({"profiles": (("A100-5C", 1),)}, "profile")],
)
def test_any_other_difference_is_refused_with_before_and_after(host, changes, field):
    ensure(host, TYPICAL, "present")
    with unchanged(host), pytest.raises(SpecDiffers) as raised:
        ensure(host, replace(TYPICAL, **changes), "present")
    assert list(raised.value.facts["before"]) == list(raised.value.facts["after"]) == [field]


def test_a_default_that_changed_makes_no_difference(host):
    wanted = request("A100-4C", name="vm", sources={"profile": "given"})
    ensure(host, wanted, "present")
    assert not ensure(host, replace(wanted, memory_mib=9999), "present").changed


@pytest.mark.parametrize("state", ["present", "started", "stopped", "absent"])
def test_an_unmanaged_vm_is_never_changed(tmp_path, state):
    host = open_sim_host(tmp_path, "mixed")
    with unchanged(host), pytest.raises(Unmanaged):
        ensure(host, request("T4-4Q", name="old-desktop"), state)


def test_a_vm_without_a_name_cannot_be_ensured(tmp_path):
    with pytest.raises(InvalidInput):
        ensure(open_sim_host(tmp_path), replace(request("A100-4C"), name=None), "present")


@pytest.mark.parametrize(
    ("profile", "gpu"),
    [("GRID A100-4C", None), ("468", None), ("A100-4C", "A100"), ("A100-4C", "0000:3b:00.0")],
)
def test_what_is_typed_in_another_way_is_the_same_vm_the_second_time(host, profile, gpu):
    wanted = request(profile, name="vm", gpu=gpu, sources={**TYPED, "gpu": "given"} if gpu else TYPED)
    assert ensure(host, wanted, "present").changed
    assert not ensure(host, wanted, "present").changed


@pytest.mark.parametrize(("made", "again"), [*itertools.permutations(("A100-4C", "GRID A100-4C", "468"), 2)])
def test_a_profile_is_the_same_however_it_was_typed_before(host, made, again):
    ensure(host, request(made, name="vm", sources=TYPED), "present")
    assert not ensure(host, request(again, name="vm", sources=TYPED), "present").changed
    with pytest.raises(SpecDiffers):
        ensure(host, request("469", name="vm", sources=TYPED), "present")
    stop(host.ports, "vm")
    kept = set_vm(host.ports, request(again, name="vm"))
    assert not kept.changed


def test_a_model_is_the_same_as_the_gpu_that_was_chosen(tmp_path):
    host = open_sim_host(tmp_path, "mixed")
    ensure(host, request("A100-4C", name="vm", sources=TYPED), "present")
    typed = {**TYPED, "gpu": "given"}
    assert not ensure(host, request("A100-4C", name="vm", gpu="A100", sources=typed), "present").changed
    for other in ("T4", "RTX9999"):
        with pytest.raises(SpecDiffers) as raised:
            ensure(host, request("A100-4C", name="vm", gpu=other, sources=typed), "present")
        assert raised.value.facts["before"] == {"gpu": "0000:3b:00.0"}


def test_a_vm_that_is_absent_already_has_the_fields_of_one_that_was_removed(host):
    nothing = ensure(host, request(name="vm"), "absent").data
    ensure(host, request("A100-4C", name="vm", sources=TYPED), "present")
    gone = ensure(host, request(name="vm"), "absent").data
    assert nothing == replace(gone, uuid=None, before=None)


def test_a_dry_run_shows_the_state_that_would_be(host):
    wanted, before = request("A100-4C", name="vm", sources=TYPED), picture(host)
    for state, would in (("started", "running"), ("present", "running"), ("stopped", "stopped")):
        planned = ensure(host, wanted, state, dry_run=True)
        assert (planned.dry_run, planned.data.after.state) == (True, would)
        assert planned.data.after.vgpus[0].present
    assert picture(host) == before
    ensure(host, wanted, "started")
    planned = ensure(host, wanted, "stopped", dry_run=True)
    assert (planned.data.before.state, planned.data.after.state) == ("running", "stopped")
    host.sim.reboot()
    planned = ensure(host, wanted, "started", dry_run=True)
    assert (planned.data.before.state, planned.data.after.state) == ("stopped", "running")
    sides = [side.vgpus[0].present for side in (planned.data.before, planned.data.after)]
    assert sides == [False, True]
    real = ensure(host, wanted, "started")
    assert real.data.after == planned.data.after
    assert ensure(host, wanted, "present", dry_run=True).data.after.state == "running"


def test_a_misspelt_profile_is_named_as_such_although_the_vm_runs(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    ensure(host, request("T4-2Q", name="vm", sources=TYPED), "started")
    with pytest.raises(NotFound, match="no GPU on this host offers the profile 'T4-2X'") as raised:
        ensure(host, request("T4-2X", name="vm", sources=TYPED), "present")
    assert "did you mean T4-2Q" in str(raised.value.hint)


def test_a_name_is_enough_for_a_vm_that_is_there(host):
    named = request(name="vm", sources={"name": "given"})
    ensure(host, request("A100-4C", name="vm", sources=TYPED), "present")
    assert not ensure(host, named, "present").changed
    assert ensure(host, named, "stopped").data.state == "stopped"
    assert ensure(host, named, "started").data.state == "running"


@pytest.mark.parametrize("state", ["present", "started", "stopped"])
@pytest.mark.parametrize(("mode", "field"), [("vgpu", "profile"), ("sriov", "gpu"), ("passthrough", "gpu")])
def test_a_name_is_too_little_for_a_vm_that_must_be_made(host, state, mode, field):
    with unchanged(host), pytest.raises(InvalidInput) as raised:
        ensure(host, request(name="vm", mode=mode), state)
    assert f"has no {field}" in raised.value.message
    assert f"add {field}:" in raised.value.hint
    assert raised.value.facts["problems"][0]["path"] == field
