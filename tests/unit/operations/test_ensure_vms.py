# SPDX-License-Identifier: Apache-2.0
"""Ensures N equal VMs: all missing ones are claimed or none, and each is created or undone by itself."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.faults import CHANGING, NEVER_RAISE, Trial, Watch, counted, error_of, failing, outcome, sampled
from tests.hosts import Silent, context, create, delete, open_sim_host, picture, request, run_reconcile, stop
from tests.meanwhile import on_call, unchanged
from vgpuctl.errors import Interrupted, InvalidInput, NoCapacity, NotFound, PartlyApplied, SomeVmsFailed, SpecDiffers
from vgpuctl.model.request import ExistingDisk
from vgpuctl.operations.ensure_vms import ensure_vms
from vgpuctl.value import replace

TEN_SLOTS = "version: 1\nnvidia: {nvml: %s}\ngpus:\n  - {model: A100}\n"
T4 = "version: 1\ngpus:\n  - {model: T4, profiles: [T4-4Q]}\n"


def names(count, stem="vm"):
    return tuple(f"{stem}-{n}" for n in range(1, count + 1))


def ensure(ports, wanted, these, *, parallel=4, dry_run=False, start=True, progress=None):
    return ensure_vms(ports, context(dry_run=dry_run, progress=progress), wanted, these, start=start, parallel=parallel)


def typed(profile, **changes):
    return replace(request(profile, **changes), sources={"profile": "given", **dict.fromkeys(changes, "given")})


def test_they_are_made_and_the_second_time_nothing_is(host):
    first = ensure(host.ports, request("A100-4C"), names(6))
    assert first.changed
    assert [(vm.name, vm.state, vm.changed) for vm in first.data.vms] == [(name, "running", True) for name in names(6)]
    assert len({v.carrier for vm in first.data.vms for v in vm.vgpus}) == 6
    with unchanged(host):
        again = ensure(host.ports, request("A100-4C"), names(6))
    assert not again.changed
    assert [vm.changed for vm in again.data.vms] == [False] * 6


def test_only_the_missing_ones_are_made_and_one_that_is_off_stays_off(ports):
    ensure(ports, request("A100-4C"), names(4))
    delete(ports, "vm-2")
    stop(ports, "vm-3")
    rows = ensure(ports, request("A100-4C"), names(5), start=False).data.vms
    assert [vm.changed for vm in rows] == [False, True, False, False, True]
    assert [vm.state for vm in rows] == ["running", "stopped", "stopped", "running", "stopped"]


def test_all_that_differ_are_named_before_anything_is_made(tmp_path):
    host = open_sim_host(tmp_path, text="version: 1\ngpus:\n  - {model: A100, count: 2}\n")
    for name in ("vm-1", "vm-3"):
        create(host.ports, typed("A100-8C", name=name))
    with unchanged(host), pytest.raises(SpecDiffers, match="2 of 4") as raised:
        ensure(host.ports, typed("A100-4C"), names(4))
    assert [entry["vm"] for entry in raised.value.facts["vms"]] == ["vm-1", "vm-3"]
    assert raised.value.message.endswith("nothing was changed: vm-1 (and 1 more): profile: A100-8C -> A100-4C")
    assert "details" not in raised.value.facts
    assert raised.value.hint == "vgpuctl stop-vm vm-1 vm-3, then: vgpuctl set-vm vm-1 vm-3 --profile A100-4C"


def test_a_misspelt_profile_is_named_as_such_although_the_vms_exist(tmp_path):
    ports = open_sim_host(tmp_path, "t4").ports
    ensure(ports, typed("T4-2Q"), names(3))
    with pytest.raises(NotFound, match="no GPU on this host offers the profile 'T4-2X'") as raised:
        ensure(ports, typed("T4-2X"), names(3))
    assert "did you mean T4-2Q" in str(raised.value.hint)


def test_a_profile_that_gpus_in_use_may_hide_is_doubted(tmp_path):
    ports = open_sim_host(tmp_path, text=TEN_SLOTS % "absent").ports
    ensure(ports, typed("A100-4C"), names(1))
    with pytest.raises(SpecDiffers) as raised:
        ensure(ports, typed("A100-7C"), names(1))
    assert str(raised.value.hint).startswith("check the name A100-7C: no GPU offers it now")


def test_vms_that_differ_in_several_ways_are_one_line_for_each_way(ports):
    ensure(ports, typed("A100-4C"), names(2))
    create(ports, typed("A100-4C", name="vm-3", memory_mib=8192))
    wanted = typed("A100-4C", memory_mib=2048, owner="cad", hotplug_slots=2)
    wanted = replace(wanted, sources={**wanted.sources, "memory": "given"})
    with pytest.raises(SpecDiffers) as raised:
        ensure(ports, wanted, names(3))
    assert raised.value.message.endswith(
        ": vm-1 (and 1 more): hotplug_slots: 4 -> 2, memory: 1 GiB -> 2 GiB, owner: none -> cad"
    )
    assert raised.value.facts["details"] == ["vm-3: hotplug_slots: 4 -> 2, memory: 8 GiB -> 2 GiB, owner: none -> cad"]
    every = "'vm-{1..3}'"
    assert str(raised.value.hint).split("; ") == [
        "hotplug_slots cannot be changed in place: use the current value"
        f" (vgpuctl show-vm {every} -o yaml), or another name for a new VM",
        f"vgpuctl stop-vm {every}, then: vgpuctl set-vm {every} --memory 2GiB",
        f"vgpuctl set-vm {every} --owner cad",
    ]


def test_too_many_make_none_and_the_error_says_how_many_fit(host):
    create(host.ports, request("A100-4C"))
    with unchanged(host), pytest.raises(NoCapacity, match="9 fit now") as raised:
        ensure(host.ports, request("A100-4C"), names(10))
    assert (raised.value.facts["fits"], raised.value.facts["wanted"]) == (9, 10)
    assert len(ensure(host.ports, request("A100-4C"), names(9)).data.vms) == 9
    with pytest.raises(NoCapacity, match="0 fit now; none was created") as raised:
        ensure(host.ports, request("A100-4C"), names(2, "more"))
    assert "10 of 10 in use" in str(raised.value.facts["details"])


def test_a_dry_run_shows_all_and_writes_nothing(host):
    create(host.ports, request("A100-4C", name="vm-2"))
    with unchanged(host):
        shown = ensure(host.ports, request("A100-4C"), names(3), dry_run=True)
    assert (shown.changed, shown.dry_run) == (True, True)
    assert [vm.state for vm in shown.data.vms] == ["absent", "running", "absent"]
    assert [line for line in shown.steps if "start VM" in line] == ["vm-1: start VM vm-1", "vm-3: start VM vm-3"]


def test_shared_steps_are_listed_once(host):
    pool = "create storage pool default at /var/lib/libvirt/images"
    for dry_run in (True, False):
        steps = ensure(host.ports, request("A100-4C"), names(3), dry_run=dry_run).steps
        assert steps[0] == pool
        assert [line for line in steps if "storage pool" in line] == [pool]
        assert len([line for line in steps if "create disk" in line]) == 3


def test_several_alike_on_one_pf_are_claimed_one_by_one(tmp_path):
    steps = ensure(open_sim_host(tmp_path, "t4").ports, request("T4-2Q"), names(2), dry_run=True).steps
    assert [line.partition(":")[0] for line in steps if ": claim" in line] == ["vm-1", "vm-2"]


def test_a_request_without_a_profile_works_only_if_all_vms_exist(ports):
    ensure(ports, request("A100-4C"), names(2))
    assert not ensure(ports, request(), names(2)).changed
    with pytest.raises(InvalidInput, match="has no profile"):
        ensure(ports, request(), names(3))


def test_one_disk_is_not_given_to_several(ports):
    with pytest.raises(InvalidInput, match="only one VM"):
        ensure(ports, request("A100-4C", disks=(ExistingDisk("/var/lib/libvirt/images/debian-12.qcow2"),)), names(2))


def test_one_that_fails_is_undone_alone_and_the_same_command_makes_it(host):
    def refuse(number, call, args):
        if call == "hypervisor.define" and "<name>vm-2</name>" in args[0]:
            raise error_of(call)

    with pytest.raises(SomeVmsFailed) as raised:
        ensure(Watch(before=refuse).watch(host.ports), request("A100-4C"), names(3))
    error = raised.value
    assert (error.status, error.left, error.changed) == (1, [], True)
    assert [entry.name for entry in error.facts["failed"]] == ["vm-2"]
    assert [vm.name for vm in error.facts["vms"]] == ["vm-1", "vm-3"]
    assert len(picture(host).claims) == len(picture(host).types) == 2
    assert [vm.changed for vm in ensure(host.ports, request("A100-4C"), names(3)).data.vms] == [False, True, False]


def test_what_a_full_card_refuses_is_made_on_the_next_one(tmp_path):
    """Without NVML a card's maximum is unknown: only its driver's EIO shows it."""
    text = "version: 1\nnvidia: {nvml: absent}\ngpus:\n  - {model: A100, count: 2}\n"
    host = open_sim_host(tmp_path, text=text)
    made = ensure(host.ports, request("A100-4C"), names(12))
    assert [vm.state for vm in made.data.vms] == ["running"] * 12
    assert sorted(Counter(v.gpu for vm in made.data.vms for v in vm.vgpus).values()) == [2, 10]
    with pytest.raises(SomeVmsFailed) as raised:
        ensure(host.ports, request("A100-4C"), names(22))
    assert [entry.code for entry in raised.value.facts["failed"]] == ["no-capacity"] * 2
    assert len(picture(host).claims) == 20


def test_a_signal_reports_existing_vms(host):
    class Stopping(Silent):
        def on_vm_finish(self, done, total, failed, text):
            raise Interrupted("stopped by SIGINT", signal_number=2)

    with pytest.raises(Interrupted) as raised:
        ensure(host.ports, request("A100-4C"), names(8), parallel=1, progress=Stopping())
    assert raised.value.signal_number == 2
    assert f"{len(raised.value.facts['vms'])} of 8 VMs exist" in raised.value.message
    assert len(picture(host).claims) == len(picture(host).running) == len(picture(host).domains)
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    assert len(ensure(host.ports, request("A100-4C"), names(8)).data.vms) == 8


@pytest.mark.parametrize(("count", "fits"), [(9, True), (10, False)])
def test_what_another_takes_between_the_look_and_the_lock_is_chosen_around(tmp_path, host, count, fits):
    other = open_sim_host(tmp_path).ports
    watched = on_call(host.ports, "claims.lock", lambda: create(other, request("A100-4C", name="other")), nth=1)
    if fits:
        assert len(ensure(watched, request("A100-4C"), names(count)).data.vms) == count
    else:
        with pytest.raises(NoCapacity, match="9 fit now"):
            ensure(watched, request("A100-4C"), names(count))
    assert len(picture(host).claims) == len(picture(host).types) == (10 if fits else 1)


def test_a_host_unreadable_afterwards_gives_a_warning(host):
    def fail(number, call, args):
        if call == "hypervisor.domains" and len(picture(host).running) == 2:
            raise error_of(call)

    made = ensure(Watch(before=fail).watch(host.ports), request("A100-4C"), names(2))
    assert [(vm.state, vm.changed) for vm in made.data.vms] == [("unknown", True), ("unknown", True)]
    assert "injected: hypervisor.domains failed" in made.warnings[-1]


def make_three(ports):
    return ensure(ports, request("T4-4Q"), names(3), parallel=1)


def test_whatever_fails_once_leaves_no_half_made_vm_and_the_same_command_completes(tmp_path):
    """Every change, and every read of libvirt and storage; one VM at a time, so that the calls keep their order."""
    calls = counted(open_sim_host(tmp_path / "dry", text=T4).ports, make_three)
    points = [n for n, c in enumerate(calls, 1) if c not in NEVER_RAISE and not c.startswith("sysfs.r")]
    assert sum(calls[n - 1] in CHANGING for n in points) >= 15
    for at in sampled(points):
        if calls[at - 1] == "sysfs.listdir":
            continue
        for done in (False, True):
            host = open_sim_host(tmp_path / f"{at}-{done}", text=T4)
            error = outcome(lambda host=host, at=at, done=done: make_three(failing(host.ports, at, done=done)))
            seen = picture(host)
            where = f"call {at} ({calls[at - 1]}), done: {done}: {error}"
            if not isinstance(error, PartlyApplied):
                assert len(seen.domains) == len(seen.mdevs) == len(seen.claims) == len(seen.running), where
            run_reconcile(host.again().ports)
            assert len(make_three(host.again().ports).data.vms) == 3, where


def whole(host, where):
    """Check that no VM is half made, and that the same command completes them."""
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings, where
    seen = picture(host)
    assert len(seen.domains) == len(seen.mdevs) == len(seen.claims) == len(seen.files), where
    rows = make_three(host.again().ports).data.vms
    assert [vm.name for vm in rows] == list(names(3)), where
    assert all(v.present for vm in rows for v in vm.vgpus), where


def make_two_at_once(ports):
    return ensure(ports, request("T4-4Q"), names(3), parallel=2)


def test_after_a_kill_in_the_middle_reconcile_leaves_nothing_half_made_and_the_command_completes(tmp_path, spawn):
    trial = Trial(tmp_path, partial(open_sim_host, text=T4), make_two_at_once, whole)
    assert trial.deaths(counted(trial.host("dry").ports, make_three), spawn)
