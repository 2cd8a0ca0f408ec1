# SPDX-License-Identifier: Apache-2.0
"""adopt: VMs of other programs with a vGPU, a VF or a whole GPU become managed as they are, and are let go again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.adopting import (
    CREATES,
    DOMAIN,
    KINDS,
    MDEV,
    UUID,
    carrier_of,
    define,
    drop,
    function_xml,
    host_with,
    let_go,
    refused,
    take,
    text_of,
)
from tests.callers import ADA, FLEET, OPERATOR, ROOT, VIEWER, host_of
from tests.hosts import (
    context,
    delete,
    living_operation,
    open_sim_host,
    operation,
    picture,
    run_reconcile,
    start,
    stop,
)
from tests.meanwhile import on_call, rebooted, unchanged, with_calls
from tests.reserving_vms import vm_of
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.errors import (
    Busy,
    InUse,
    NotAllowed,
    NotYours,
    Unmanaged,
    VgpuctlError,
)
from vgpuctl.hook import run as hook
from vgpuctl.operations.queries import list_vms, show_vm
from vgpuctl.operations.restore import restore_host
from vgpuctl.value import replace


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("running", [True, False])
def test_a_vm_becomes_managed_as_it_is_and_is_let_go_as_it_is(tmp_path: Path, kind: str, running: bool) -> None:
    host = host_with(tmp_path, kind, running=running)
    before, carrier = picture(host), carrier_of(host)
    preview = take(host, dry_run=True)
    assert preview.changed
    assert preview.data.ownership == "unmanaged"
    assert picture(host) == before
    outcome = take(host)
    assert outcome.changed
    assert outcome.steps == preview.steps
    data = outcome.data
    assert (data.ownership, data.record, data.reserve, str(data.state)) == (
        "managed", "ready", "always", "running" if running else "stopped",
    )  # fmt: skip
    (vgpu,) = data.vgpus
    assert (vgpu.carrier, vgpu.profile, str(vgpu.backend), vgpu.ownership) == (carrier, KINDS[kind][1], kind, "managed")
    after = picture(host)
    assert after.claims == {carrier: data.uuid}
    assert (after.mdevs, after.types, after.running, after.drivers) == (
        before.mdevs, before.types, before.running, before.drivers,
    )  # fmt: skip
    host.ports.hypervisor.set_record(data.uuid, None)
    undressed = picture(host).domains[data.uuid][1].replace("<metadata/>", "")
    assert undressed == before.domains[data.uuid][1].replace('"', "'"), "nothing else of its definition changed"
    assert [f.kind for f in run_reconcile(host.again().ports).data.findings] == ["record-lost"]
    host = host.again()
    with unchanged(host):
        assert not take(host).changed, "the record is there again"
    assert [f.kind for f in run_reconcile(host.ports, dry_run=True).data.findings] == []
    assert let_go(host, dry_run=True).changed
    assert let_go(host).changed
    now = picture(host)
    assert now.claims == {}
    assert (now.mdevs, now.types, now.running) == (before.mdevs, before.types, before.running)
    assert vm_of(host, "desk").record is None
    with unchanged(host):
        assert not let_go(host).changed
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    assert take(host.again()).changed


@pytest.mark.parametrize("kind", CREATES)
def test_the_record_says_what_the_host_shows_and_survives_a_boot(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, kind)
    carrier, before = carrier_of(host), picture(host)
    take(host)
    record = vm_of(host, "desk").record
    assert record is not None
    (vgpu,) = record.vgpus
    assert (vgpu.index, vgpu.carrier, vgpu.adopted, record.created_vm) == (0, carrier, True, False)
    assert vgpu.framebuffer_mib == 4096
    assert record.request_fields == {"profile": [KINDS[kind][1]]}
    host = rebooted(host)
    assert (picture(host).mdevs, picture(host).types) == ({}, {})
    start(host.ports, "desk")
    after = picture(host)
    assert (after.mdevs, after.types, after.running) == (before.mdevs, before.types, before.running)
    assert set(after.claims) == {carrier}
    stop(host.again().ports, "desk")
    assert (picture(host).mdevs, picture(host).types) == (before.mdevs, before.types)
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


@pytest.mark.parametrize("kind", CREATES)
def test_libvirts_hook_makes_the_device_again(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, kind)
    before = picture(host)
    take(host)
    host = rebooted(host)
    hook.prepare(host.ports, host.ports.hypervisor.find_domain("desk").xml)
    assert (picture(host).mdevs, picture(host).types) == (before.mdevs, before.types)


@pytest.mark.parametrize("kind", CREATES)
def test_restore_host_makes_the_device_again_before_libvirt_runs(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, kind)
    before = picture(host)
    take(host)
    host = rebooted(host)
    with operation(host.ports):
        restore_host(host.ports, context(wait_seconds=5), HostSpec(1))
    assert (picture(host).mdevs, picture(host).types) == (before.mdevs, before.types)
    assert set(picture(host).claims) == {carrier_of(host)}


def test_only_root_adopts_and_lets_go(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    for caller in (ADA, OPERATOR, FLEET):
        with unchanged(host), pytest.raises(NotYours, match="was not created by vgpuctl: it is root's"):
            host_of(host, caller).adopt("desk")
    with unchanged(host), pytest.raises(NotAllowed):
        host_of(host, VIEWER).adopt("desk")
    assert host_of(host, ROOT).adopt("desk").changed
    assert vm_of(host, "desk").record.account is None
    host = host.again()
    for caller in (ADA, OPERATOR, FLEET):
        with unchanged(host), pytest.raises(NotYours):
            host_of(host, caller).adopt("desk", release=True)
    assert host_of(host, ROOT).adopt("desk", release=True).changed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("running", [True, False])
def test_detach_takes_the_device_out_and_the_vm_is_unmanaged_again(tmp_path: Path, kind: str, running: bool) -> None:
    host = host_with(tmp_path, kind, running=running)
    take(host)
    outcome = drop(host.again())
    assert (outcome.data.ownership, outcome.data.vgpus) == ("unmanaged", ())
    now = picture(host)
    assert (now.mdevs, now.types, now.claims) == ({}, {}, {})
    assert vm_of(host, "desk").hostdevs == ()
    assert set(now.running.values()) == ({()} if running else set())
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings


def test_a_guest_that_does_not_let_go_keeps_an_adopted_vgpu_in_its_definition(tmp_path: Path) -> None:
    text = text_of("mdev-pf") + "faults:\n  - {on: unplug, kind: lost, nth: 1}\n"
    host = open_sim_host(tmp_path, text=text)
    take(host)
    before = picture(host)
    with unchanged(host), pytest.raises(Busy, match="within 5 s"):
        drop(host.again())
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    drop(host.again())
    assert (picture(host).mdevs, picture(host).claims) == ({}, {})
    assert before.mdevs


def test_delete_says_who_made_the_vm_and_how_it_is_let_go(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    take(host)
    with unchanged(host), pytest.raises(Unmanaged, match="only adopted it") as caught:
        delete(host.ports, "desk")
    assert caught.value.hint == "vgpuctl adopt desk --release lets it go; then virsh undefine desk"


def test_a_whole_gpu_is_adopted_with_the_functions_of_its_slot_that_the_vm_has(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text="version: 1\ngpus:\n  - {model: RTX 4090, address: '0000:d8:00.0'}\n")
    define(host, function_xml("0000:d8:00.0", "yes"), function_xml("0000:d8:00.1", "yes"))
    host.ports.hypervisor.start(UUID)
    take(host)
    record = vm_of(host, "desk").record
    assert record is not None
    assert [(v.gpu, v.carrier, v.index) for v in record.vgpus] == [
        ("0000:d8:00.0", "0000:d8:00.0", 0), ("0000:d8:00.0", "0000:d8:00.1", 1),
    ]  # fmt: skip
    assert record.request_fields["mode"] == "passthrough"
    assert set(picture(host).claims) == {"0000:d8:00.0", "0000:d8:00.1"}
    host = rebooted(host)
    start(host.ports, "desk")
    assert not run_reconcile(host.again().ports, dry_run=True).data.findings
    assert let_go(host.again()).changed


def test_a_plain_vf_says_its_mode_in_the_record(tmp_path: Path) -> None:
    host = host_with(tmp_path, "sriov-vf")
    take(host)
    record = vm_of(host, "desk").record
    assert record is not None
    assert (record.request_fields, record.vgpus[0].profile) == ({"mode": "sriov", "profile": []}, None)


def test_several_vgpus_and_one_that_comes_later(tmp_path: Path) -> None:
    text = (
        "version: 1\ngpus:\n  - {model: T4, vgpus: [{profile: T4-4Q, count: 2, vm: desk, running: false},"
        " {profile: T4-4Q}]}\n"
    )
    host = open_sim_host(tmp_path, text=text)
    first = [h.carrier for h in vm_of(host, "desk").hostdevs]
    take(host)
    assert [v.carrier for v in vm_of(host, "desk").record.vgpus] == first
    (free,) = set(picture(host).mdevs) - set(first)
    uuid = next(iter(picture(host).domains))
    host.ports.hypervisor.attach_device(uuid, MDEV % free, False)
    assert take(host.again()).changed
    record = vm_of(host, "desk").record
    assert [(v.index, v.carrier, v.adopted) for v in record.vgpus] == [
        (n, c, True) for n, c in enumerate([*first, free])
    ]
    assert record.generation == 1
    assert set(picture(host).claims) == {*first, free}
    drop(host.again(), first[0])
    assert [v.carrier for v in vm_of(host, "desk").record.vgpus] == [first[1], free]
    host.ports.hypervisor.set_record(uuid, None)
    run_reconcile(host.again().ports)
    record = vm_of(host, "desk").record
    assert (len({v.index for v in record.vgpus}), record.created_vm) == (2, False)


def test_plugin_parameters_are_kept_and_set_again(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    carrier = carrier_of(host)
    host.ports.hypervisor.destroy(next(iter(picture(host).domains)))
    path = f"/sys/bus/mdev/devices/{carrier}/nvidia/vgpu_params"
    host.ports.sysfs.write(path, "frame_rate_limiter=0,disable_vnc=1\n")
    assert take(host).notes == ()
    host = rebooted(host)
    start(host.ports, "desk")
    assert host.ports.sysfs.read(path).strip() == "disable_vnc=1,frame_rate_limiter=0"


def test_parameters_that_are_none_are_named_and_not_kept(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    own = host.ports.sysfs
    ports = with_calls(host.ports, "sysfs", read=lambda p: "<none>\n" if p.endswith("vgpu_params") else own.read(p))
    (note,) = take(host, ports=ports).notes
    assert "not kept" in note
    assert vm_of(host, "desk").record.vgpus[0].params == ""


def test_a_placement_on_a_gpu_with_mixed_sizes_is_kept(tmp_path: Path) -> None:
    text = (
        "version: 1\nkernel: 6.8.0\nnvidia: {driver: '595.45.04'}\ngpus:\n"
        "  - {model: RTX PRO 6000, mixed_size: true, vgpus: [{profile: DC-12Q}, {profile: DC-24Q, vm: desk}]}\n"
    )
    host = open_sim_host(tmp_path, text=text)
    shown = show_vm(host.ports, context(), "desk").data.vgpus[0].placement_id
    take(host)
    assert shown is not None
    assert vm_of(host, "desk").record.vgpus[0].placement_id == shown


@pytest.mark.parametrize("kind", KINDS)
def test_another_vgpuctl_that_works_on_the_vm_is_waited_for(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, kind)
    take(host)
    claim = host.ports.claims.all()[0]
    other = living_operation(host.ports)
    host.ports.claims.replace(replace(claim, operation=other.id))
    with unchanged(host), pytest.raises(Busy):
        let_go(host)
    host.ports.hypervisor.set_record(claim.vm_uuid, None)
    with unchanged(host), pytest.raises(Busy):
        take(host)
    assert not run_reconcile(host.ports, dry_run=True).data.findings, "the other one still works on it"


MEANWHILE = {
    "undefine": lambda host, uuid: host.ports.hypervisor.undefine(uuid),
    "destroy": lambda host, uuid: host.ports.hypervisor.destroy(uuid),
    "start": lambda host, uuid: host.ports.hypervisor.start(uuid),
    "define": lambda host, uuid: host.ports.hypervisor.redefine(uuid, DOMAIN % ("desk", uuid, "")),
}


@pytest.mark.parametrize("act", MEANWHILE)
@pytest.mark.parametrize("call", ["claims.lock", "hypervisor.set_record"])
def test_virsh_behind_our_back_leaves_nothing_or_a_whole_vm(tmp_path: Path, act: str, call: str) -> None:
    host = host_with(tmp_path, "mdev-pf", running=act != "start")
    uuid, mdevs = next(iter(picture(host).domains)), picture(host).mdevs
    ports = on_call(host.ports, call, partial(MEANWHILE[act], host, uuid), nth=1)
    try:
        changed = take(host, ports=ports).changed
    except VgpuctlError:
        changed = False
    later = host.again()
    domain = later.ports.hypervisor.find_domain("desk")
    if not changed:
        assert picture(later).claims == {}
        assert domain is None or vm_of(later, "desk").record is None
    assert picture(later).mdevs == mdevs
    if call == "claims.lock":
        assert not changed
    run_reconcile(later.ports)
    assert not run_reconcile(later.again().ports, dry_run=True).data.findings or act == "define"


def test_an_adopted_vm_that_virsh_undefined_leaves_nothing_after_reconcile(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf", running=False)
    take(host)
    host.ports.hypervisor.undefine(next(iter(picture(host).domains)))
    assert [f.kind for f in run_reconcile(host.again().ports).data.findings] == ["leaked"]
    assert (picture(host).mdevs, picture(host).claims) == ({}, {})


def test_a_new_definition_without_the_record_gets_it_again(tmp_path: Path) -> None:
    host = host_with(tmp_path, "vendor-vf")
    uuid, xml = next((u, x) for u, (_, x) in picture(host).domains.items())
    take(host)
    host.ports.hypervisor.redefine(uuid, xml)
    error = refused(host.again(), Busy, "has no record of it")
    assert "vgpuctl reconcile-host" in str(error.hint)
    with unchanged(host), pytest.raises(Busy):
        let_go(host)
    assert [f.kind for f in run_reconcile(host.again().ports).data.findings] == ["record-lost"]
    record = vm_of(host, "desk").record
    assert (record.created_vm, record.vgpus[0].adopted) == (False, True)
    with pytest.raises(Unmanaged, match="only adopted"):
        delete(host.again().ports, "desk")


def test_two_vms_cannot_adopt_one_device(tmp_path: Path) -> None:
    """Another program defines a clone while the first is adopted: the second look sees it."""
    host = host_with(tmp_path, "mdev-pf")
    carrier = carrier_of(host)
    ports = on_call(host.ports, "claims.lock", lambda: define(host, MDEV % carrier, name="clone"), nth=1)
    before = picture(host)
    with pytest.raises(InUse, match="also in the definition of VM clone"):
        take(host, ports=ports)
    now = picture(host)
    assert (now.claims, vm_of(host, "desk").record) == ({}, None)
    assert now.mdevs == before.mdevs


def test_a_device_that_vanishes_meanwhile_is_not_adopted(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf", running=False)
    carrier = carrier_of(host)
    path = f"/sys/bus/mdev/devices/{carrier}/remove"

    def remove() -> None:
        host.sim.sysfs.write_uninterruptible(path, "1\n", gpu="0000:3b:00.0", deadline_seconds=5)

    with pytest.raises(Busy, match="removed or changed in the meantime"):
        take(host, ports=on_call(host.ports, "claims.lock", remove, nth=1))
    assert (picture(host).claims, vm_of(host, "desk").record) == ({}, None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_list_says_which_could_be_adopted(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, kind)
    define(host, name="plain")

    def adoptable() -> dict[str, bool | None]:
        return {vm.name: vm.adoptable for vm in list_vms(host.ports, context()).data}

    assert adoptable() == {"desk": True, "plain": False}
    take(host)
    assert adoptable() == {"desk": False, "plain": False}
    let_go(host.again())
    assert adoptable() == {"desk": True, "plain": False}
