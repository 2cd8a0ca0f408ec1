# SPDX-License-Identifier: Apache-2.0
"""apply creates the vGPUs of host.yaml, all or none, whatever fails; it reports all blockers before a write."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests import EVERYTHING
from tests.faults import CHANGING, Trial
from tests.hosts import SimulatedHost, create, open_sim_host, picture, request, run_reconcile
from tests.meanwhile import on_call, rebooted, unchanged
from tests.unit.operations.test_apply import diff, run
from tests.unit.operations.test_faults import HOSTS
from tests.vgpus import drop, finding_kinds, make, spec_of
from vgpuctl.errors import Busy, HostCannot, InUse, NoCapacity, PartlyApplied, Refused
from vgpuctl.observe import ReadScope, observe

CARD = "0000:3b:00.0"
UUIDS = ("83b8f4f2-509f-382f-3c1e-e6bfe0fa1001", "83b8f4f2-509f-382f-3c1e-e6bfe0fa1002")
VFS = ("0000:3b:00.4", "0000:3b:00.5")
SMALL = "version: 1\ngpus: [{model: A100, vfs: {total: 4, enabled: 4}}]\n"


def listing(vgpus, gpus="", card=CARD):
    """Return a host.yaml that lists the vGPUs v0, v1, … of one card: their profiles and carriers."""
    lines = [f'  v{n}: {{profile: {p}, gpu: "{card}", carrier: "{c}"}}\n' for n, (p, c) in enumerate(vgpus)]
    return f"version: 1\n{gpus}vgpus:\n{''.join(lines)}"


def keeping(profile, *carriers, card=CARD):
    return listing([(profile, carrier) for carrier in carriers], card=card)


def devices(host):
    seen = picture(host)
    return {*seen.mdevs, *seen.types}


def everything(host):
    return picture(host), host.ports.host_file.read()


@pytest.mark.parametrize(
    ("scenario", "profile", "carriers"), [("t4", "T4-2Q", UUIDS), ("a16", "A16-2Q", UUIDS), ("a100-40", "A100-4C", VFS)]
)
def test_new_entries_are_made_and_then_the_file_is_host_yaml(host, profile, carriers):
    text, before = keeping(profile, *carriers), picture(host)
    shown = diff(host.ports, file=text)
    assert shown.changed
    assert shown.steps == (
        f"create vGPU v0 ({profile} on GPU {CARD})",
        f"create vGPU v1 ({profile} on GPU {CARD})",
        "replace /etc/vgpuctl/host.yaml with FILE",
    )
    assert run(host.ports, file=text, dry_run=True).steps == shown.steps
    assert (picture(host), host.ports.host_file.read()) == (before, None)
    assert run(host.ports, file=text).steps == shown.steps
    assert devices(host) == set(carriers) == set(picture(host).claims)
    assert host.ports.host_file.read() == text
    assert (run(host.ports).changed, diff(host.ports).changed, finding_kinds(host.again())) == (False, False, [])
    for name in ("v0", "v1"):
        drop(host.ports, name)
    assert picture(host) == before


def test_a_missing_device_of_host_yaml_is_a_difference_and_is_made(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    run(host.ports, file=keeping("T4-2Q", *UUIDS))
    before = picture(host)
    host = rebooted(host)
    shown = diff(host.ports)
    assert [(d.key, d.is_) for d in shown.data.settings] == [("vgpus.v0", None), ("vgpus.v1", None)]
    assert (shown.changed, len(shown.steps)) == (True, 2)
    run(host.ports)
    assert picture(host) == before
    assert not diff(host.ports).changed


def test_no_room_for_all_of_them_is_refused_before_anything_is_written(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-8Q", name="vm", gpu=CARD))
    text = keeping("T4-8Q", *UUIDS)
    with unchanged(host, everything), pytest.raises(NoCapacity, match="v1") as raised:
        run(host.ports, "gpus[all].cordoned=true", file=text)
    assert "vm" in raised.value.message
    assert "v0" in raised.value.message
    assert [w for w in diff(host.ports, file=text).warnings if "no room for vGPU v1" in w]
    run(host.ports, file=keeping("T4-8Q", UUIDS[0]))


def test_the_place_of_a_vm_that_is_off_is_not_taken(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-16Q", name="vm", gpu=CARD))
    host = rebooted(host)
    with pytest.raises(NoCapacity, match="vm"):
        run(host.ports, file=keeping("T4-16Q", UUIDS[0]))


@pytest.mark.parametrize(("scenario", "profile"), [("t4", "T4-2Q"), ("a100-40", "A100-4C")])
def test_a_carrier_of_a_vm_is_refused_whether_its_device_is_there_or_not(host, profile):
    create(host.ports, request(profile, name="vm", gpu=CARD))
    (carrier,) = picture(host).claims
    for _ in range(2):
        with unchanged(host, everything), pytest.raises((InUse, Busy), match=r"taken by .*vm"):
            run(host.ports, file=keeping(profile, carrier))
        host = rebooted(host)


def test_an_mdev_of_mdevctl_is_taken_over_and_one_of_another_profile_is_refused(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{CARD}/mdev_supported_types/nvidia-231/create", UUIDS[0])
    before = picture(host)
    with pytest.raises(InUse, match="T4-2Q"):
        run(host.ports, file=keeping("T4-4Q", UUIDS[0]))
    assert picture(host) == before
    done = run(host.ports, file=keeping("T4-2Q", *UUIDS))
    assert done.steps[0].startswith(f"take over the mdev {UUIDS[0]} as vGPU v0")
    assert picture(host).mdevs[UUIDS[0]] == before.mdevs[UUIDS[0]]
    assert (set(picture(host).claims), finding_kinds(host.again())) == (set(UUIDS), [])


def test_what_no_gpu_can_have_is_refused_before_anything_is_written(tmp_path):
    host = open_sim_host(tmp_path, text=SMALL)
    for text, kind, output in [
        (with_gpu("mode: passthrough", "A100-4C"), Refused, "mode passthrough"),
        (keeping("A100-4C", "0000:3b:01.7"), HostCannot, "the VF 0000:3b:01.7 does not exist"),
        (keeping("A100-4C", VFS[0], card="0000:99:00.0"), HostCannot, "the GPU 0000:99:00.0 does not exist"),
        (keeping("A40-4C", VFS[0]), NoCapacity, "does not offer A40-4C"),
    ]:
        with unchanged(host, everything), pytest.raises(kind, match=output):
            run(host.ports, file=text)


def test_a_gpu_that_is_set_up_by_the_same_apply_has_its_vgpus_made_then(tmp_path):
    host = open_sim_host(tmp_path, text=SMALL.replace("enabled: 4", "enabled: 0"))
    text = with_gpu("mode: vgpu", "A100-4C", "A100-4C")
    shown = diff(host.ports, file=text)
    assert [n for n in shown.notes if "is checked when that is set up: vGPU v0, v1" in n]
    done = run(host.ports, file=text)
    assert (done.steps, devices(host)) == (shown.steps, set(VFS))
    assert host.ports.host_file.read() == text
    assert not run(host.ports).changed


def test_a_vgpu_that_fits_not_after_its_gpu_was_set_up_leaves_that_gpu_so_and_host_yaml_as_it_was(tmp_path):
    host = open_sim_host(tmp_path, text=SMALL.replace("enabled: 4", "enabled: 0"))
    text = with_gpu("mode: vgpu", "A100-40C", "A100-40C")
    with pytest.raises(PartlyApplied, match="no room for vGPU v1") as raised:
        run(host.ports, file=text)
    assert [line for line in raised.value.left if CARD in line]
    assert "host.yaml does not have this yet" in str(raised.value.hint)
    assert (devices(host), picture(host).claims, host.ports.host_file.read()) == (set(), {}, None)
    run(host.ports, file=text.replace(f'  v1: {{profile: A100-40C, gpu: "{CARD}", carrier: "{VFS[1]}"}}\n', ""))


def with_gpu(output, *profiles):
    """Return a host.yaml that sets the card up so and lists one vGPU of each profile on its first VFs."""
    vgpus = [(profile, f"0000:3b:00.{n}") for n, profile in enumerate(profiles, 4)]
    return listing(vgpus, f'gpus: {{"{CARD}": {{{output}}}}}\n')


@pytest.mark.parametrize(
    ("scenario", "output", "profiles"),
    [
        ("h100-mig", "mode: vgpu", ("H100-1-10C", "H100-1-10C", "H100-3-40C")),
        ("h100-mig", "mode: vgpu, mig: {H100-2-20C: 2}", ("H100-2-20C", "H100-2-20C")),
        ("rtx-pro-6000", "mode: vgpu, mixed_size: true", ("DC-2B", "DC-3Q")),
    ],
)
def test_gpu_instances_and_mixed_sizes_have_room_for_what_was_counted(host, output, profiles):
    run(host.ports, file=with_gpu(output, *profiles))
    assert sorted(c.profile for c in host.ports.claims.all()) == sorted(profiles)
    assert (len(devices(host)), finding_kinds(host.again()), run(host.ports).changed) == (len(profiles), [], False)


def test_one_gpu_instance_too_few_is_refused_and_several_refusals_after_a_gpu_was_set_up_say_so(tmp_path):
    host = open_sim_host(tmp_path, "h100-mig")
    with pytest.raises(NoCapacity, match=r"no room for vGPU v2 .*: vGPU v0, vGPU v1"):
        run(host.ports, file=with_gpu("mode: vgpu", *["H100-1-10C"] * 3))
    with pytest.raises(
        PartlyApplied, match=r"2 vGPUs cannot be created, so none was created:\nno room for vGPU v1"
    ) as raised:
        run(host.ports, file=with_gpu("mode: vgpu, mig: off", "H100-4C", "H100-5C", "H100-8C"))
    assert raised.value.facts["cause"] == "no-capacity"
    assert (devices(host), picture(host).claims, host.ports.host_file.read()) == (set(), {}, None)


def test_what_is_taken_while_the_claims_are_written_is_seen(tmp_path):
    host = open_sim_host(tmp_path, text=SMALL)
    ports = on_call(host.ports, "claims.lock", lambda: create(host.ports, request("A100-40C", name="vm")), nth=1)
    with pytest.raises((InUse, Busy), match="vm"):
        run(ports, file=keeping("A100-40C", VFS[0]))
    assert (len(picture(host).claims), host.ports.host_file.read()) == (1, None)


def test_an_entry_may_have_the_place_that_delete_vgpu_gave_back(tmp_path):
    host = open_sim_host(tmp_path, text=SMALL)
    carrier = make(host.ports, name="v0").data.carrier
    drop(host.ports, "v0")
    run(host.ports, file=keeping("A100-4C", "0000:3b:00.6", carrier))
    assert devices(host) == {carrier, "0000:3b:00.6"}


CASES = [*HOSTS, "taken-over"] if EVERYTHING else ["vendor-vf", "taken-over"]


def prepared(directory: Path, kind: str, by_hand: str | None) -> SimulatedHost:
    """Return a host without vGPUs, or with a handmade mdev where the argument says."""
    host = open_sim_host(directory, text=HOSTS[kind][0])
    if by_hand is not None:
        host.ports.sysfs.write(by_hand, UUIDS[0])
    return host.again()


def whole(host: SimulatedHost, where: str, text: str, by_hand: str | None) -> None:
    """Check that everything has an owner, that no mdev was lost, and that a second run of the command completes it.

    host.yaml may name a missing vGPU only where undoing the change of host.yaml failed too.
    """
    findings = {f.kind for f in run_reconcile(host.ports, dry_run=True).data.findings}
    now = picture(host)
    kept = {v.carrier for v in spec_of(host).vgpus.values()}
    others = {UUIDS[0]} - kept if by_hand is not None else set()
    devices = {*now.mdevs, *now.types}
    assert others <= devices, where
    if "host_file" in where and "for good=True" in where:
        assert findings <= {"vgpu-missing"}, where
        assert {*devices - others, *now.claims} <= kept, where
    else:
        assert not findings, where
        assert devices - others == kept == set(now.claims), where
    run(host.ports, file=text)
    now = picture(host)
    assert len({*now.mdevs, *now.types}) == 2 == len(now.claims), where
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where


def trial_of(directory: Path, case: str) -> Trial:
    kind = "mdev-pf" if case == "taken-over" else case
    (gpu,) = observe(open_sim_host(directory / "look", text=HOSTS[kind][0]).ports, ReadScope(types=True)).gpus
    carriers = tuple(f.address for f in gpu.functions) if kind == "vendor-vf" else UUIDS
    text = keeping(HOSTS[kind][1], *carriers, card=gpu.address)
    type_id = next(t.type_id for t in gpu.types if t.profile == HOSTS[kind][1])
    by_hand = f"{gpu.path}/mdev_supported_types/{type_id}/create" if case == "taken-over" else None
    return Trial(
        directory,
        partial(prepared, kind=kind, by_hand=by_hand),
        partial(run, file=text),
        partial(whole, text=text, by_hand=by_hand),
    )


@pytest.mark.parametrize("case", CASES)
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, case: str) -> None:
    trial = trial_of(tmp_path, case)
    calls = trial.calls()
    assert len([c for c in calls if c in CHANGING]) >= 4
    assert trial.failures(calls) >= 1


@pytest.mark.parametrize("case", CASES)
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, case: str, spawn) -> None:
    trial = trial_of(tmp_path, case)
    assert trial.deaths(trial.calls(), spawn) >= 1
