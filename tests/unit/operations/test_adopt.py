# SPDX-License-Identifier: Apache-2.0
"""adopt: VMs of other programs with a vGPU, a VF or a whole GPU become managed as they are, and are let go again."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.callers import ADA, FLEET, OPERATOR, ROOT, VIEWER, host_of
from tests.hosts import (
    SimulatedHost,
    context,
    create,
    delete,
    living_operation,
    open_sim_host,
    operation,
    picture,
    request,
    run_reconcile,
    start,
    stop,
)
from tests.meanwhile import on_call, rebooted, unchanged, with_calls
from tests.reserving_vms import vm_of
from tests.vgpus import make
from vgpuctl.config.host_spec import HostSpec
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import (
    Busy,
    HostCannot,
    InUse,
    InvalidInput,
    NotAllowed,
    NotFound,
    NotYours,
    Refused,
    Unmanaged,
    VgpuctlError,
)
from vgpuctl.hook import run as hook
from vgpuctl.host.files import HostFiles
from vgpuctl.model.outcome import Outcome
from vgpuctl.operations.adopt import adopt, release
from vgpuctl.operations.attach import attach, detach
from vgpuctl.operations.queries import list_vms, show_vm
from vgpuctl.operations.restore import restore_host
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

KINDS = {
    "vendor-vf": ("{model: A100, vfs: {total: 4, enabled: 4}, vgpus: [{profile: A100-4C, vm: desk%s}]}", "A100-4C"),
    "mdev-pf": ("{model: T4, vgpus: [{profile: T4-4Q, vm: desk%s}]}", "T4-4Q"),
    "mdev-vf": ("{model: A16, vfs: {total: 4, enabled: 4}, vgpus: [{profile: A16-4Q, vm: desk%s}]}", "A16-4Q"),
    "sriov-vf": ("{model: Flex 170, vfs: {enabled: 4}, vgpus: [{vm: desk%s}]}", None),
    "passthrough": ("{model: L40S, vfs: {enabled: 0}, backend: passthrough, vgpus: [{vm: desk%s}]}", None),
}
"""For each backend a GPU on which the VM `desk` of another program has something, and its profile."""
MDEVS = ("mdev-pf", "mdev-vf")
CREATES = ("vendor-vf", *MDEVS)
UUID = "11111111-2222-4333-8444-555555555555"
OTHER_UUID = "11111111-2222-4333-8444-666666666666"
MDEV = "<hostdev mode='subsystem' type='mdev' model='vfio-pci'><source><address uuid='%s'/></source></hostdev>"
FUNCTION = (
    "<hostdev mode='subsystem' type='pci' managed='%s'><source>"
    "<address domain='0x%s' bus='0x%s' slot='0x%s' function='0x%s'/></source></hostdev>"
)
DOMAIN = """<domain type='kvm'><name>%s</name><uuid>%s</uuid><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type></os><devices>%s
<controller type='pci' index='0' model='pcie-root'/><controller type='pci' index='1' model='pcie-root-port'/>
<controller type='usb' model='none'/><memballoon model='none'/></devices></domain>"""


def text_of(kind: str, *, running: bool = True) -> str:
    """Return the scenario of a host with such a VM."""
    kernel = 'kernel: "5.14.0"\n' if kind == "mdev-vf" else ""
    return f"version: 1\n{kernel}gpus:\n  - {KINDS[kind][0] % ('' if running else ', running: false')}\n"


def host_with(directory: Path, kind: str, *, running: bool = True) -> SimulatedHost:
    """Return a host with such a VM, running or off."""
    return open_sim_host(directory, text=text_of(kind, running=running))


def take(host: SimulatedHost, name: str = "desk", *, dry_run: bool = False, ports: Host | None = None) -> Outcome:
    """Run adopt."""
    with operation(ports or host.ports):
        return adopt(ports or host.ports, context(dry_run=dry_run), name)


def let_go(host: SimulatedHost, name: str = "desk", *, dry_run: bool = False) -> Outcome:
    """Run adopt --release."""
    with operation(host.ports):
        return release(host.ports, context(dry_run=dry_run), name)


def drop(host: SimulatedHost, *carriers: str) -> Outcome:
    """Run detach-vgpu."""
    with operation(host.ports):
        return detach(host.ports, context(wait_seconds=5), "desk", carriers)


def carrier_of(host: SimulatedHost, name: str = "desk") -> str:
    """Return what the VM's only device of the host is."""
    (hostdev,) = vm_of(host, name).hostdevs
    return hostdev.carrier


def function_xml(address: str, managed: str = "no") -> str:
    """Return the element that gives a PCI function to a domain."""
    domain, bus, rest = address.split(":")
    return FUNCTION % (managed, domain, bus, *rest.split("."))


def define(host: SimulatedHost, *devices: str, name: str = "desk", uuid: str = UUID) -> None:
    """Define a VM as another program does."""
    host.ports.hypervisor.define(DOMAIN % (name, uuid, "".join(devices)))


def refused(host: SimulatedHost, kind: type[VgpuctlError], match: str, name: str = "desk") -> VgpuctlError:
    """Check that adopting is refused, in a dry run too, and that nothing is written; return the error."""
    for dry_run in (True, False):
        with unchanged(host), pytest.raises(kind, match=match) as caught:
            take(host, name, dry_run=dry_run)
    return caught.value


def with_etc(host: SimulatedHost, root: Path, files: dict[str, str]) -> SimulatedHost:
    """Return the host with these files of mdevctl, which a real reader reads below `root`."""
    for name, text in files.items():
        path = root / f"etc/mdevctl.d/{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    real, own = HostFiles(str(root), lock_held=lambda: False), host.ports.sysfs

    def files_of(path: str) -> Any:
        return real if path.startswith("/etc/mdevctl.d") else own

    ports = with_calls(
        host.ports, "sysfs", read=lambda p: files_of(p).read(p), listdir=lambda p: files_of(p).listdir(p)
    )
    return SimulatedHost(ports, host.sim, host.directory, host.scenario)


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


def test_a_vm_without_a_device_or_with_others_is_refused(tmp_path: Path) -> None:
    host = host_with(tmp_path, "sriov-vf")
    define(host, name="plain")
    error = refused(host, Refused, "has no vGPU, VF of a GPU or whole GPU", "plain")
    assert "vgpuctl attach-vgpu plain --profile PROFILE" in str(error.hint)
    refused(host, NotFound, "there is no VM desc", "desc")


@pytest.mark.parametrize("created", [True, False])
def test_a_managed_vm_stays_as_it_is(tmp_path: Path, created: bool) -> None:
    host = host_with(tmp_path, "mdev-pf")
    if created:
        create(host.ports, request("T4-4Q", name="vm"))
    else:
        define(host, name="vm")
        attach(host.ports, context(), request("T4-4Q", name="vm"))
    host = host.again()
    with unchanged(host):
        assert not take(host, "vm").changed
    error = refused_release(host, "vm")
    assert error.hint == (
        "vgpuctl delete-vm vm, or with --keep-disks"
        if created
        else f"vgpuctl detach-vgpu vm --vgpu {carrier_of(host, 'vm')}"
    )


def refused_release(host: SimulatedHost, name: str) -> VgpuctlError:
    """Check that letting go is refused, and return the error."""
    for dry_run in (True, False):
        with unchanged(host), pytest.raises(Refused) as caught:
            let_go(host, name, dry_run=dry_run)
    return caught.value


def test_an_adopted_vm_that_also_got_one_is_let_go_only_without_it(tmp_path: Path) -> None:
    text = "version: 1\ngpus:\n  - {model: T4, vgpus: [{profile: T4-4Q, vm: desk, running: false}]}\n"
    host = open_sim_host(tmp_path, text=text)
    old = carrier_of(host)
    take(host)
    with operation(host.ports):
        attach(host.ports, context(), request("T4-4Q", name="desk"))
    (new,) = {v.carrier for v in vm_of(host, "desk").record.vgpus} - {old}
    error = refused_release(host.again(), "desk")
    assert error.hint == f"vgpuctl detach-vgpu desk --vgpu {new}"
    drop(host.again(), new)
    assert let_go(host.again()).changed
    assert set(picture(host).mdevs) == {old}


@pytest.mark.parametrize("change", ["copy", "unreadable"])
def test_a_copied_or_unreadable_record_is_not_written_over(tmp_path: Path, change: str) -> None:
    host = host_with(tmp_path, "mdev-pf")
    uuid = next(iter(picture(host).domains))
    take(host)
    record = vm_of(host, "desk").record
    text = record_to_xml(record)
    text = text.replace(uuid, OTHER_UUID) if change == "copy" else text.replace('state="ready"', 'state="parked"')
    host.ports.hypervisor.set_record(uuid, text)
    host = host.again()
    refused(host, Unmanaged, "it is a copy" if change == "copy" else "a newer one may have written it")
    with unchanged(host), pytest.raises(Unmanaged):
        let_go(host)


@pytest.mark.parametrize("kind", KINDS)
def test_a_device_of_another_definition_is_refused(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, kind)
    carrier = carrier_of(host)
    element = function_xml(carrier) if ":" in carrier else MDEV % carrier
    define(host, element, name="clone")
    error = refused(host, InUse, "is also in the definition of VM clone, which is stopped")
    assert error.hint == f"virsh edit clone: remove the device with {carrier}"
    refused(host, InUse, "is also in the definition of VM desk, which is running", "clone")
    assert not any(vm.adoptable for vm in list_vms(host.ports, context()).data)


def test_a_device_with_a_claim_of_another_vm_is_refused(tmp_path: Path) -> None:
    host = host_with(tmp_path, "vendor-vf")
    create(host.ports, request("A100-4C", name="vm"), start=False)
    mine = carrier_of(host, "vm")
    define(host, function_xml(mine), name="thief")
    error = refused(host.again(), InUse, f"{mine} of thief is claimed for vm", "thief")
    assert "vgpuctl show-gpu" in str(error.hint)


def test_a_vgpu_of_host_yaml_is_refused(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "t4")
    make(host.ports, "T4-4Q", "lab")
    (carrier,) = picture(host).mdevs
    define(host, MDEV % carrier)
    refused(host.again(), InUse, f"{carrier} of desk is the vGPU lab of host.yaml")


@pytest.mark.parametrize("kind", MDEVS)
def test_an_mdev_that_is_gone_is_refused_with_what_makes_it(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path / "host", kind)
    carrier = carrier_of(host)
    host = rebooted(host)
    error = refused(host, HostCannot, f"the mdev {carrier} of desk, which is stopped, does not exist now")
    assert error.hint == "make it as before, with this UUID; then vgpuctl adopt desk"
    definition = {"mdev_type": "nvidia-231", "start": "auto", "attrs": []}
    defined = with_etc(host, tmp_path / "root", {f"0000:3b:00.0/{carrier}": json.dumps(definition)})
    error = refused(defined, HostCannot, "does not exist now")
    assert error.hint == f"mdevctl start --uuid {carrier}; then vgpuctl adopt desk"
    assert not list_vms(host.ports, context()).data[0].adoptable


def test_a_vf_without_its_type_or_that_is_off_is_refused(tmp_path: Path) -> None:
    host = rebooted(host_with(tmp_path / "a", "vendor-vf"))
    error = refused(host, HostCannot, "has no vGPU type now")
    assert f"/sys/bus/pci/devices/{carrier_of(host)}/nvidia/current_vgpu_type" in str(error.hint)
    text = "version: 1\ngpus:\n  - {model: Flex 170, vfs: {enabled: 0}}\n"
    host = open_sim_host(tmp_path / "b", text=text)
    define(host, function_xml("0000:3b:00.4", "yes"))
    error = refused(host, HostCannot, r"0000:3b:00\.4 of desk, which is stopped, does not exist now")
    assert "vgpuctl list-gpus --all" in str(error.hint)


@pytest.mark.parametrize(
    "text",
    [
        '{"mdev_type": "nvidia-231", "start": "auto"}',
        '{"start": "AUTO"}',
        '{"start": ["manual"]}',
        "not JSON",
        "[" * 100_000,
        "\0",
        "[]",
        '"manual"',
        "",
    ],
)
def test_an_mdev_that_mdevctl_makes_at_boot_is_refused_with_the_command_that_removes_it(
    tmp_path: Path, text: str
) -> None:
    host = host_with(tmp_path / "host", "mdev-pf")
    carrier = carrier_of(host)
    defined = with_etc(host, tmp_path / "root", {f"0000:3b:00.0/{carrier.upper()}": text, "scripts.d/x/y": ""})
    error = refused(defined, Refused, f"mdevctl makes the mdev {carrier} of desk when the host boots")
    assert error.hint == f"mdevctl undefine --uuid {carrier}"


@pytest.mark.parametrize("text", ['{"mdev_type": "nvidia-231", "start": "manual"}', '{"mdev_type": "x"}\r\n'])
def test_other_definitions_of_mdevctl_do_no_harm(tmp_path: Path, text: str) -> None:
    host = host_with(tmp_path / "host", "mdev-pf")
    carrier = carrier_of(host)
    files = {
        f"0000:3b:00.0/{carrier}": text,
        f"0000:3b:00.0/{OTHER_UUID}": '{"start": "auto"}',
        "README": "not a directory",
    }
    defined = with_etc(host, tmp_path / "root", files)
    assert take(defined).changed


@pytest.mark.parametrize("kind", ["directory", "fifo", "large", "loop"])
def test_a_definition_that_cannot_be_read_is_no_permission(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path / "host", "mdev-pf")
    carrier = carrier_of(host)
    defined = with_etc(host, tmp_path / "root", {"0000:3b:00.0/x": ""})
    path = tmp_path / f"root/etc/mdevctl.d/0000:3b:00.0/{carrier}"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "large":
        with path.open("wb") as file:
            file.truncate(1 << 30)
    else:
        path.symlink_to(carrier)
    error = refused(defined, VgpuctlError, f"/etc/mdevctl.d/0000:3b:00.0/{carrier} cannot be read")
    assert "ls -ld" in str(error.hint)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_that_host_yaml_excludes_is_refused(tmp_path: Path, kind: str) -> None:
    host = host_with(tmp_path, kind)
    (gpu,) = {v.gpu for v in show_vm(host.ports, context(), "desk").data.vgpus}
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text(f'version: 1\ngpus:\n  "{gpu}": {{mode: unmanaged}}\n')
    error = refused(host.again(), Refused, rf"host.yaml excludes GPU {gpu}, which has \S+ of desk")
    mode = {"sriov-vf": "sriov", "passthrough": "passthrough"}.get(kind, "vgpu")
    assert error.hint == f"vgpuctl set-mode {gpu} {mode} changes that"
    assert not list_vms(host.ports, context()).data[0].adoptable


def test_an_invalid_host_yaml_may_exclude_the_gpu(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    host.sim.host_file.parent.mkdir(parents=True, exist_ok=True)
    host.sim.host_file.write_text("version: 1\ngpus: 7\n")
    refused(host.again(), InvalidInput, "host.yaml")


def test_a_vm_that_has_several_kinds_is_refused(tmp_path: Path) -> None:
    text = (
        "version: 1\ngpus:\n  - {model: T4, vgpus: [{profile: T4-4Q}]}\n"
        "  - {model: Flex 170, address: '0000:86:00.0', vfs: {enabled: 2}}\n"
    )
    host = open_sim_host(tmp_path, text=text)
    (mdev,) = picture(host).mdevs
    define(host, MDEV % mdev, function_xml("0000:86:00.4", "yes"))
    refused(host, Refused, "has devices of the modes sriov and vgpu")


def test_a_device_in_qemus_arguments_alone_is_refused(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, text="version: 1\ngpus:\n  - {model: T4, vgpus: [{profile: T4-4Q}]}\n")
    (mdev,) = picture(host).mdevs
    arguments = (
        "<qemu:commandline xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'><qemu:arg value='-device'/>"
        f"<qemu:arg value='vfio-pci,sysfsdev=/sys/bus/mdev/devices/{mdev}'/></qemu:commandline>"
    )
    host.ports.hypervisor.define((DOMAIN % ("desk", UUID, "")).replace("</domain>", f"{arguments}</domain>"))
    refused(host, Refused, "only in a text of its definition")


def test_a_device_that_only_the_running_vm_has_is_refused(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    uuid = next(iter(picture(host).domains))
    carrier = carrier_of(host)
    host.ports.hypervisor.redefine(uuid, DOMAIN % ("desk", uuid, ""))
    refused(host, Refused, f"{carrier} is only in the running VM desk")


def test_a_vf_that_libvirt_would_unbind_is_refused(tmp_path: Path) -> None:
    text = "version: 1\ngpus:\n  - {model: A100, vfs: {total: 4, enabled: 4}, vgpus: [{profile: A100-4C}]}\n"
    host = open_sim_host(tmp_path, text=text)
    (vf,) = picture(host).types
    define(host, function_xml(vf, "yes"))
    refused(host, Refused, "with managed='yes'")


def test_a_transient_vm_is_refused(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    host.sim.hypervisor.make_transient(next(iter(picture(host).domains)))
    refused(host, Refused, "running without a definition")
    assert not list_vms(host.ports, context()).data[0].adoptable


def test_a_whole_gpu_on_which_others_have_vgpus_is_refused(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "t4")
    create(host.ports, request("T4-4Q", name="vm", gpu="0000:3b:00.0"), start=False)
    define(host, function_xml("0000:3b:00.0", "yes"))
    refused(host.again(), InUse, r"0000:3b:00\.0 of desk is the function below \S+, which vm has")


def test_a_type_that_nobody_can_name_is_refused(tmp_path: Path) -> None:
    text = (
        "version: 1\nnvidia: {nvml: absent}\ngpus:\n"
        "  - {model: A100, vfs: {total: 1, enabled: 1}, vgpus: [{profile: A100-40C, vm: desk}]}\n"
    )
    host = open_sim_host(tmp_path, text=text)
    error = refused(host, HostCannot, "has the vGPU type")
    assert error.facts["check"] == "adopt-type"


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


def test_a_claim_that_cannot_be_read_keeps_its_device(tmp_path: Path) -> None:
    host = host_with(tmp_path, "mdev-pf")
    carrier = carrier_of(host)
    claims: Any = host.ports.claims
    path = claims._run_dir / "claims" / carrier
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\0")
    with pytest.raises(InUse, match="owner cannot be read"):
        take(host)
    assert vm_of(host, "desk").record is None
    assert path.read_bytes() == b"\0"


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
