# SPDX-License-Identifier: Apache-2.0
"""Commands for imported disks: with the real qemu-img none reads a file elsewhere; the folder of a pool gets them."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests import foreign_vms as texts
from tests.hosts import open_sim_host
from vgpuctl.config.foreign_vms.imported import VmFile
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file
from vgpuctl.errors import HostCannot, NotFound
from vgpuctl.library.foreign_files import read_vm_file
from vgpuctl.operations.import_vm import import_vms
from vgpuctl.operations.plans.imported_disks import DISK_FOLDER

ODD = "it's $(id) a\"b"
"""A name that a shell, JSON and a pattern of grep could misread."""


@pytest.fixture
def ports(tmp_path):
    return open_sim_host(tmp_path / "state").ports


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the folder where an admin works, with a secret and a folder for disks above it."""
    (tmp_path / "secret.img").write_bytes(b"S" * 4096)
    (tmp_path / "pool").mkdir()
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def commands_for(ports, path: Path, text: str) -> list[str]:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    (vm,) = import_vms(ports, [read_vm_file(ports, str(path))]).data.vms
    return [command.replace(DISK_FOLDER, "../pool") for command in vm.commands]


def run(command: str) -> tuple[bool, str]:
    """Run a command and return whether it wrote a disk, and what is on stderr."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    written = [path for path in Path("../pool").iterdir()]
    assert bool(written) == (done.returncode == 0), done
    for path in written:
        path.unlink()
    return bool(written), done.stderr


def make(disk: str, kind: str, *options: str) -> Path:
    subprocess.run(["qemu-img", "create", "-q", "-f", kind, *options, disk, "1M"], check=True)
    return Path(disk)


def proxmox(volume: str) -> str:
    return f"memory: 1024\nname: a\nscsi0: local:{volume},size=1G\n"


def vmx(disk: str) -> str:
    name = disk.replace('"', "|22")
    return f'displayName = "a"\nscsi0:0.present = "TRUE"\nscsi0:0.fileName = "{name}"\n'


@pytest.mark.parametrize(("suffix", "kind"), [("qcow2", "qcow2"), ("vmdk", "vmdk"), ("raw", "raw"), ("qed", "qed")])
def test_a_disk_of_its_own_that_comes_later_is_converted(ports, folder, suffix, kind):
    (command,) = commands_for(ports, folder / "1.conf", proxmox(f"1/{ODD}.{suffix}"))
    make(f"./{ODD}.{suffix}", kind)
    assert run(command) == (True, "")
    assert ("qemu-img info" in command) == (kind != "raw")


@pytest.mark.parametrize("options", [
    ("-b", "../secret.img", "-F", "raw"), ("-b", "base.raw", "-F", "raw"), ("-o", "data_file=../data.raw"),
])  # fmt: skip
def test_a_qcow2_that_names_another_file_is_refused_and_the_name_printed(ports, folder, options):
    Path("base.raw").write_bytes(b"\0" * 4096)
    (command,) = commands_for(ports, folder / "1.conf", proxmox(f"1/{ODD}.qcow2"))
    make(f"./{ODD}.qcow2", "qcow2", *options)
    is_written, printed = run(command)
    assert not is_written
    assert (options[1].partition("=")[2] or options[1]) in printed


def test_a_qed_with_a_backing_file_is_refused(ports, folder):
    (command,) = commands_for(ports, folder / "1.conf", proxmox("1/a.qed"))
    make("a.qed", "qed", "-b", "../secret.img", "-F", "raw")
    is_written, printed = run(command)
    assert (is_written, "../secret.img" in printed) == (False, True)


@pytest.mark.parametrize("vms", [".", "vms", "my vms $(id)"])
@pytest.mark.parametrize("name", ["a", ODD.partition('"')[0]])
def test_a_vmdk_beside_its_extents_is_converted(ports, folder, vms, name):
    (command,) = commands_for(ports, folder / vms / "a.vmx", vmx(f"{name}.vmdk"))
    make(f"./{vms}/{name}.vmdk", "vmdk", "-o", "subformat=monolithicFlat")
    assert run(command) == (True, "")


@pytest.mark.parametrize("extent", ["{0}/secret.img", "../secret.img", "../../secret.img", "x/../../secret.img",
                                    "{0}/a/../secret.img", '../q"/../secret.img'])  # fmt: skip
@pytest.mark.parametrize("vms", [".", "vms"])
def test_a_vmdk_with_an_extent_elsewhere_is_refused(ports, folder, vms, extent):
    target = extent.format(folder.parent)
    (command,) = commands_for(ports, folder / vms / "a.vmx", vmx("a.vmdk"))
    for above in (folder, folder.parent, folder.parent.parent):
        (above / "secret.img").write_bytes(b"S" * 4096)
    (folder / vms / "x").mkdir()
    (folder.parent / "a").mkdir(exist_ok=True)
    Path(vms, "a.vmdk").write_text(texts.DESCRIPTOR.format(extent=target).replace("83886080", "8"))
    assert run(command)[0] is False


def test_a_vmdk_with_a_parent_is_refused(ports, folder):
    (command,) = commands_for(ports, folder / "1.conf", proxmox("1/a.vmdk"))
    make("../base.vmdk", "vmdk")
    make("a.vmdk", "vmdk", "-b", "../base.vmdk", "-F", "vmdk")
    is_written, printed = run(command)
    assert (is_written, '"backing-filename": "../base.vmdk"' in printed) == (False, True)


def test_a_disk_that_is_no_such_file_is_refused(ports, folder):
    (command,) = commands_for(ports, folder / "1.conf", proxmox("1/a.qcow2"))
    assert run(command)[0] is False
    Path("a.qcow2").write_bytes(b"x" * 4096)
    assert run(command)[0] is False


def test_a_disk_that_was_checked_needs_no_second_check(ports, folder):
    make("a.vmdk", "vmdk", "-o", "subformat=monolithicFlat")
    (command,) = commands_for(ports, folder / "a.vmx", vmx("a.vmdk"))
    assert "qemu-img info" not in command
    Path("a.vmdk").unlink()
    (command,) = commands_for(ports, folder / "a.vmx", vmx("a.vmdk"))
    assert "qemu-img info" in command
    ova = texts.write_ova(folder / "a.ova", ("a.ovf", texts.OVF.encode()), ("desk-2-disk1.vmdk", texts.sparse_vmdk()))
    (vm,) = import_vms(ports, [read_vm_file(ports, str(ova))]).data.vms
    assert "qemu-img info" not in str(vm.commands)


def test_virt_v2v_opens_no_vm_before_its_disks_are_checked(ports, folder):
    program = folder / "virt-v2v"
    program.write_text("#!/bin/sh\ntouch ../pool/a-sda\n")
    program.chmod(0o755)
    (command,) = commands_for(ports, folder / "a.vmx", f'{vmx("a.vmdk")}guestOS = "windows11-64"\n')
    pasted = f"PATH={folder}:$PATH; {command}"
    make("a.vmdk", "vmdk")
    assert run(pasted) == (True, "")
    make("../base.vmdk", "vmdk")
    make("a.vmdk", "vmdk", "-b", "../base.vmdk", "-F", "vmdk")
    assert run(pasted)[0] is False


POOLS = """
version: 1
gpus: [{model: A100 PCIe 40GB}]
storage:
  pools:
  - {name: default}
  - {name: fast, path: "/srv/my disks"}
  - {name: off, active: false}
  - {name: lvm, kind: logical, capacity_gib: 100}
  - {name: iscsi, kind: iscsi}
"""


def test_the_disks_go_into_the_folder_of_a_pool(tmp_path):
    ports = open_sim_host(tmp_path / "pools", text=POOLS).ports
    windows = texts.VMX.replace("ubuntu-64", "windows11-64").replace("desk-1", "desk-2")
    given = [VmFile(path, parse_foreign_file(text, path)) for path, text in (("x.vmx", texts.VMX), ("y.vmx", windows))]
    linux, whole = import_vms(ports, given, pool="fast").data.vms
    assert linux.spec["disk"] == ["/srv/my disks/desk-1.qcow2", "/srv/my disks/desk-1.disk2.qcow2"]
    assert [shlex.split(command)[-1] for command in linux.commands] == linux.spec["disk"]
    assert shlex.split(linux.commands[0])[:4] == ["test", "!", "-e", "/srv/my disks/desk-1.qcow2"]
    assert whole.spec["disk"] == ["/srv/my disks/desk-2-sda", "/srv/my disks/desk-2-sdb"]
    assert shlex.split(whole.commands[0])[-6:] == ["-os", "/srv/my disks", "-of", "qcow2", "-on", "desk-2"]
    assert DISK_FOLDER not in str((linux.commands, whole.commands))
    (vm,) = import_vms(ports, given[:1], pool="default").data.vms
    assert vm.spec["disk"][0] == f"{DISK_FOLDER}/desk-1.qcow2"


@pytest.mark.parametrize(
    ("pool", "kind", "problem", "hint"),
    [
        ("none", NotFound, "libvirt has no storage pool 'none'", "virsh pool-list --all"),
        ("off", HostCannot, "'off' is not started, so /var/lib/libvirt/images/off may be", "virsh pool-start off"),
        ("lvm", HostCannot, "'lvm' is of kind logical, and the commands for disks write files", "kind dir"),
        ("iscsi", HostCannot, "'iscsi' is of kind iscsi", "kind dir"),
    ],
)
def test_a_pool_that_is_no_folder_is_refused(tmp_path, pool, kind, problem, hint):
    ports = open_sim_host(tmp_path / "pools", text=POOLS).ports
    with pytest.raises(kind, match=re.escape(problem)) as raised:
        import_vms(ports, [VmFile("x.vmx", parse_foreign_file(texts.VMX, "x.vmx"))], pool=pool)
    assert hint in str(raised.value.hint)
