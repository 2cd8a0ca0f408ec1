# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl import-vm` from the command line: specs on stdout that ensure-vm takes, everything else on stderr."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import foreign_vms as texts
from tests.unit.cli.conftest import Run


def test_stdout_is_a_spec_that_ensure_vm_takes(sim: Run, tmp_path: Path) -> None:
    path = tmp_path / "desk-1.vmx"
    path.write_text(texts.VMX)
    ran = sim(f"import-vm {path}")
    assert ran.status == 0
    assert ran.out.startswith(f"# {path} (VMware VMX)\nname: desk-1\nprofile: [A100-4C]\n")
    assert "desk-1: run: test ! -e /var/lib/libvirt/images/desk-1.qcow2 || { echo " in ran.err
    assert f" && qemu-img convert -f vmdk -O qcow2 {tmp_path}/desk-1.vmdk " in ran.err
    assert f"warning: desk-1: ignored: {path}:35: floppy0" in ran.err
    spec = tmp_path / "desk-1.yaml"
    spec.write_text(ran.out.replace("disk: [", "disk: [20GiB] #"))
    assert sim(f"ensure-vm -f {spec} --json").document["changed"]
    shown = sim("show-vm desk-1 --json").document["data"]
    assert (shown["memory_mib"], shown["vcpus"]) == (8192, 4)


def test_the_pool_of_the_disks(sim: Run, tmp_path: Path) -> None:
    path = tmp_path / "desk-1.vmx"
    path.write_text(texts.VMX)
    sim("create-vm --profile A100-4C")  # it makes the pool default
    assert "desk-1.vmdk /var/lib/libvirt/images/desk-1.qcow2\n" in sim(f"import-vm --pool default {path}").err
    ran = sim(f"import-vm --pool other {path}")
    assert (ran.status, ran.out) == (2, "")
    assert "libvirt has no storage pool 'other'" in ran.err


def test_json_has_every_field(sim: Run, tmp_path: Path) -> None:
    (tmp_path / "vm.txt").write_text(texts.XE_VM)
    (tmp_path / "more.txt").write_text(texts.XE_VGPUS + texts.XE_VIFS + texts.XE_GROUP)
    data = sim(f"import-vm {tmp_path}/vm.txt {tmp_path}/more.txt --json").document["data"]
    assert data["host_lines"] == ["placement: {policy: breadth}"]
    (vm,) = data["vms"]
    assert vm["source"] == "XenServer xe"
    assert vm["spec"]["profile"] == ["A100-4C"]
    assert vm["spec"]["networks"] == [{"network": "default", "mac": "5a:11:22:33:44:55"}]
    assert vm["text"] == data["text"]
    assert vm["commands"]
    assert vm["left_out"]
    assert vm["notes"]


def test_standard_input_and_an_ova(sim: Run, tmp_path: Path) -> None:
    ran = sim("import-vm -", text=texts.PROXMOX)
    assert (ran.status, "name: desk-4\n" in ran.out) == (0, True)
    assert "standard input:3: args: QEMU's own command line is not taken over" in ran.err
    path = texts.write_ova(tmp_path / "d.ova", ("d.ovf", texts.OVF.encode()), ("desk-2-disk1.vmdk", b"KDMV"))
    ran = sim(f"import-vm {path}")
    assert f"&& virt-v2v -i ova {path} -o local" in ran.err


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("x.vmx", b'displayName = "a\0"\n', "x.vmx:1: it has a NUL byte"),
        ("x.vmx", b'displayName = "a|0D|0Ab"\n', "x.vmx:1: displayName has the character"),
        ("x.vmx", b'displayName = "x"\n' * 600_000, "larger than 1024 KiB"),
        ("x.vmx", b'displayName = "\xff"\n', "not UTF-8"),
        ("x.ovf", b"<!DOCTYPE a [<!ENTITY b 'c'>]>\n<Envelope>&b;</Envelope>", "x.ovf:1: a document type"),
        ("x.conf", b"memory: 1024\n[x\n->\n", None),
        ("x.conf", b"memory: 1024\n->\n", "x.conf:2: '->' is not KEY: VALUE"),
        ("x.ova", b"\0" * 257 + b"ustar" + b"\0" * 250, "this OVA is damaged"),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(
    sim: Run, tmp_path: Path, name: str, content: bytes, problem: str | None
) -> None:
    folder = tmp_path / "vm"
    folder.mkdir()
    (folder / name).write_bytes(content)
    ran = sim(f"import-vm {folder}/{name} --json")
    if problem is None:
        assert ran.status == 0
    else:
        assert (ran.status, ran.document["error"]["code"]) == (2, "invalid-input")
        assert problem in ran.document["error"]["message"]
    assert [path.name for path in folder.iterdir()] == [name]
    assert sim("list-vms --json").document["data"] == []


def test_a_file_is_needed_and_other_hosts_are_refused(sim: Run, vgpuctl: Run) -> None:
    assert "FILE... is missing" in sim("import-vm").err
    ran = vgpuctl("--host", "ssh://127.0.0.1:9", "import-vm", "x.vmx")
    assert ran.status == 2
    assert "import-vm does not work on other hosts" in ran.err
