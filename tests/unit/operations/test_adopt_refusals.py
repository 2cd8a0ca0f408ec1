# SPDX-License-Identifier: Apache-2.0
"""adopt refuses what it could not keep as it is, in a dry run too, and then has written nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.adopting import (
    DOMAIN,
    KINDS,
    MDEV,
    MDEVS,
    OTHER_UUID,
    UUID,
    carrier_of,
    define,
    drop,
    function_xml,
    host_with,
    let_go,
    refused,
    take,
    with_etc,
)
from tests.hosts import (
    SimulatedHost,
    context,
    create,
    open_sim_host,
    operation,
    picture,
    request,
)
from tests.meanwhile import rebooted, unchanged
from tests.reserving_vms import vm_of
from tests.vgpus import make
from vgpuctl.domain.record import record_to_xml
from vgpuctl.errors import (
    HostCannot,
    InUse,
    InvalidInput,
    NotFound,
    Refused,
    Unmanaged,
    VgpuctlError,
)
from vgpuctl.operations.attach import attach
from vgpuctl.operations.queries import list_vms, show_vm


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
    refused(host, Unmanaged, "is a copy: its record" if change == "copy" else "a newer one may have written it")
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
