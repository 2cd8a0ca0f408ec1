# SPDX-License-Identifier: Apache-2.0
"""VMs of other hypervisors become specs for this host: its profiles, commands for disks, lines for host.yaml."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Sequence

import pytest

from tests import foreign_vms as texts
from tests.hosts import open_sim_host
from vgpuctl.config.foreign_vms.imported import VmFile
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file
from vgpuctl.config.host_spec import parse_host_spec
from vgpuctl.config.vm_spec import parse_vm_spec
from vgpuctl.errors import InvalidInput
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.host import ImportedVmResult, ImportedVmsResult
from vgpuctl.operations.import_vm import import_vms

IMAGES = "/var/lib/libvirt/images"


@pytest.fixture
def ports(tmp_path):
    return open_sim_host(tmp_path / "state").ports


def outcome(ports, *files: tuple[str, str]) -> QueryResult[ImportedVmsResult]:
    """Import files, each a path and its text."""
    given = [VmFile(path, parse_foreign_file(text, path), path.endswith(".ova")) for path, text in files]
    return import_vms(ports, given)


def the_vm(ports, text: str, path: str = "vms/x.vmx") -> ImportedVmResult:
    (vm,) = outcome(ports, (path, text)).data.vms
    assert vm.text.startswith(f"# {path} (")
    assert parse_vm_spec(vm.text, "spec")["name"] == vm.name
    return vm


def commands(vm: ImportedVmResult) -> tuple[str, ...]:
    """Return the commands without the checks that come first: nothing may be overwritten, no disk lead elsewhere."""
    assert all(command.startswith((f"test ! -e {IMAGES}/{vm.name}", "mkdir ")) for command in vm.commands)
    without = (command.partition("; false; } && ")[2] or command for command in vm.commands)
    return tuple(command.rpartition(" >&2) && ")[2] for command in without)


def test_a_vmx_becomes_a_spec(ports):
    vm = the_vm(ports, texts.VMX)
    assert vm.spec == {
        "name": "desk-1",
        "profile": ["A100-4C"],
        "memory": "8GiB",
        "vcpus": 4,
        "os": "linux",
        "disk": [f"{IMAGES}/desk-1.qcow2", f"{IMAGES}/desk-1.disk2.qcow2"],
        "networks": [{"network": "default", "mac": "00:0c:29:aa:bb:01"}],
    }
    assert commands(vm) == (
        f"qemu-img convert -f vmdk -O qcow2 ./vms/desk-1.vmdk {IMAGES}/desk-1.qcow2",
        f"qemu-img convert -f vmdk -O qcow2 './vms/data disk.vmdk' {IMAGES}/desk-1.disk2.qcow2",
    )
    assert any("'VM Network'" in note for note in vm.notes)


@pytest.mark.parametrize(
    ("path", "source"),
    [("x.vmx", "./a.vmdk"), ("/srv/x.vmx", "/srv/a.vmdk"), ("../x.vmx", "../a.vmdk"), ("./x.vmx", "./a.vmdk"),
     ("-", "./a.vmdk"), ("-f/x.vmx", "./-f/a.vmdk"), ("a:b/x.vmx", "./a:b/a.vmdk")],
)  # fmt: skip
def test_a_command_names_a_file_that_no_program_takes_for_something_else(ports, path, source):
    text = 'displayName = "x"\nscsi0:0.present = "TRUE"\nscsi0:0.fileName = "a.vmdk"\n'
    (command,) = commands(the_vm(ports, text, path))
    assert shlex.split(command) == ["qemu-img", "convert", "-f", "vmdk", "-O", "qcow2", source, f"{IMAGES}/x.qcow2"]


@pytest.mark.parametrize(
    "name", ["$(id).vmdk", "a'b.vmdk", "-O.vmdk", "a;b.vmdk", 'a"b.vmdk', "a\\nb.vmdk", "`x`.vmdk"]
)
def test_a_command_is_quoted_for_the_shell(ports, name):
    text = f'displayName = "x"\nscsi0:0.present = "TRUE"\nscsi0:0.fileName = "{name.replace(chr(34), "|22")}"\n'
    vm = the_vm(ports, text, "x.vmx")
    if "\\" in name:
        assert vm.commands == ()
    else:
        assert shlex.split(commands(vm)[0])[6] == f"./{name}"


def test_windows_of_vmware_is_converted_by_virt_v2v(ports):
    text = texts.VMX.replace("ubuntu-64", "windows11-64")
    vm = the_vm(ports, text, "my vms/x.vmx")
    assert commands(vm) == (f"virt-v2v -i vmx './my vms/x.vmx' -o local -os {IMAGES} -of qcow2 -on desk-1",)
    assert vm.spec["disk"] == [f"{IMAGES}/desk-1-sda", f"{IMAGES}/desk-1-sdb"]
    assert vm.spec["os"] == "windows11"
    unsafe = the_vm(ports, text.replace('"data disk.vmdk"', '"../data.vmdk"'))
    assert commands(unsafe) == (
        f"virt-v2v -i disk -if vmdk ./vms/desk-1.vmdk -o local -os {IMAGES} -of qcow2 -on desk-1",
    )
    bios = the_vm(ports, text.replace('"efi"', '"bios"'))
    assert bios.spec["os"] == "generic"
    assert any("INACCESSIBLE_BOOT_DEVICE" in note and "VIRTIO_WIN" in note for note in bios.notes)
    assert not any("INACCESSIBLE" in note for note in vm.notes), "windows11 is on SATA"


WINDOWS_7 = """bios: seabios
boot: order={0};net0
cores: 4
ide2: none,media=cdrom
memory: 8192
name: win7
net0: e1000=BC:24:11:AA:BB:01,bridge=vmbr0
ostype: win7
scsi0: local-lvm:vm-8-disk-1,size=500G
{0}: local:8/vm-8-disk-0.qcow2,size=64G
"""
WINDOWS_DOMAIN = """<domain type='kvm'><name>win10</name><memory unit='GiB'>8</memory><vcpu>4</vcpu>
<metadata><i:libosinfo xmlns:i="http://libosinfo.org/xmlns/libvirt/domain/1.0"><i:os id="http://microsoft.com/win/10"/>
</i:libosinfo></metadata><os{0}><type machine='pc-i440fx-6.2'>hvm</type></os><devices>
<disk type='file' device='disk'><driver type='raw'/><source file='/a/data.img'/><target dev='sdb' bus='sata'/></disk>
<disk type='file' device='disk'><driver type='qcow2'/><source file='/a/win10.qcow2'/><target dev='sda' bus='{1}'/>
<boot order='1'/></disk></devices></domain>
"""


@pytest.mark.parametrize(
    ("path", "text", "program", "disks"),
    [
        ("8.conf", WINDOWS_7.format("ide0"), "virt-v2v -i disk -if qcow2 ./vm-8-disk-0.qcow2",
         ["win7-sda", "win7.disk2.qcow2"]),
        ("8.conf", WINDOWS_7.format("sata0"), "virt-v2v", ["win7-sda", "win7.disk2.qcow2"]),
        ("8.conf", WINDOWS_7.format("ide0").replace("boot: order=ide0;net0", "boot: c\nbootdisk: ide0"),
         "virt-v2v -i disk -if qcow2 ./vm-8-disk-0.qcow2", ["win7-sda", "win7.disk2.qcow2"]),
        ("8.conf", WINDOWS_7.format("virtio0"), "qemu-img", ["win7.qcow2", "win7.disk2.qcow2"]),
        ("8.conf", WINDOWS_7.format("ide0").replace("seabios", "ovmf"), "qemu-img", ["win7.qcow2", "win7.disk2.qcow2"]),
        ("8.conf", WINDOWS_7.format("ide0").replace("win7\nscsi", "l26\nscsi"), "qemu-img",
         ["win7.qcow2", "win7.disk2.qcow2"]),
        ("x.xml", WINDOWS_DOMAIN.format("", "ide"), "virt-v2v -i disk -if qcow2 ./win10.qcow2",
         ["win10-sda", "win10.disk2.qcow2"]),
        ("x.xml", WINDOWS_DOMAIN.format("", "virtio"), "qemu-img", ["win10.qcow2", "win10.disk2.qcow2"]),
        ("x.xml", WINDOWS_DOMAIN.format(" firmware='efi'", "sata"), "qemu-img", ["win10.qcow2", "win10.disk2.qcow2"]),
        ("x.txt", texts.XE_VM.replace("firmware: uefi", "firmware: bios"), "virt-v2v -i disk -if vpc ./desk-3.vhd",
         ["desk-3-sda"]),
        ("-", texts.VMX.replace("ubuntu-64", "windows7-64").replace("efi", "bios"),
         "virt-v2v -i disk -if vmdk ./desk-1.vmdk", ["desk-1-sda", "desk-1.disk2.qcow2"]),
    ],
)  # fmt: skip
def test_windows_on_a_disk_that_is_no_virtio_disk_gets_its_driver(ports, path, text, program, disks):
    """The disk that it boots from is the first one, and the one that virt-v2v converts; the others have only data."""
    vm = the_vm(ports, text, path)
    first, *others = commands(vm)
    assert first.startswith(f"{program} ")
    assert all(command.startswith("qemu-img convert ") for command in others)
    assert vm.spec["disk"] == [f"{IMAGES}/{disk}" for disk in disks]
    assert any("INACCESSIBLE_BOOT_DEVICE" in note for note in vm.notes) == first.startswith("virt-v2v")


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        (texts.PROXMOX, ["x.conf:22: tpmstate0: the TPM's state is not copied, and the VM gets a new one. ",
                         "have BitLocker's recovery key ready"]),
        (texts.PROXMOX.replace("win11", "l26"), ["tpmstate0: the TPM's state is not copied, and os: linux has no TPM",
                                                 "have its passphrase (LUKS with"]),
        (texts.PROXMOX.replace("ovmf", "seabios"), ["and os: generic has no TPM", "have BitLocker's recovery key"]),
        (texts.DOMAIN.replace("<filesystem", "<tpm model='tpm-crb'><backend type='emulator'/></tpm><filesystem"),
         [": <tpm>: the TPM's state is not copied, and os: linux has no TPM"]),
    ],
)  # fmt: skip
def test_the_state_of_a_tpm_is_not_copied_and_what_that_means_is_stated(ports, text, sentences):
    (line,) = (line for line in the_vm(ports, text, "x.conf").left_out if "TPM" in line)
    assert [part for part in sentences if part not in line] == []


def a_domain(clock: str, *, is_windows: bool = True, is_uefi: bool = False) -> str:
    firmware, features = " firmware='efi'" if is_uefi else "", "<hyperv/>" if is_windows else ""
    shown = f"<clock offset='{clock}' timezone='Asia/Tokyo'/>"
    return f"<domain><os{firmware}/><features>{features}</features>\n{shown}</domain>"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (a_domain("localtime", is_windows=False), [
            "x:2: <clock offset='localtime'>: the VM's clock shows local time there, and UTC here: if timedatectl in",
            "says 'RTC in local TZ: yes', run timedatectl set-local-rtc 0 there"]),
        (a_domain("localtime"), ["local time there, and UTC here: Windows takes it for local time, so it is wrong",
                                 r": reg add HKLM\SYSTEM\CurrentControlSet\Control\TimeZoneInformation /v"]),
        (a_domain("timezone", is_uefi=True), ["the time of Asia/Tokyo there, and this host's local time here: Windows",
                                              "set the same time zone on both"]),
        (a_domain("utc", is_uefi=True), ["UTC there, and this host's local time here: "]),
        (a_domain("localtime", is_uefi=True), []),
        (a_domain("utc", is_windows=False), []),
        (a_domain("utc"), []),
        (texts.XE_VM.replace("uefi", "bios"), ["x:1: Windows: the VM's clock shows local time there, and UTC here: "]),
        (texts.XE_VM, []),
    ],
)  # fmt: skip
def test_a_clock_that_is_another_one_here_is_stated_with_what_to_do(ports, text, parts):
    lines = [line for line in the_vm(ports, text, "x").left_out if "clock" in line]
    assert len(lines) == bool(parts)
    assert [part for part in parts if part not in lines[0]] == []


def test_each_windows_vm_of_an_appliance_gets_its_drivers(ports):
    """virt-v2v opens no appliance with several VMs, so it gets the disk of each."""
    second = texts.OVF[texts.OVF.index("  <VirtualSystem ") : texts.OVF.index("</Envelope>")]
    for vm in outcome(ports, ("x.ova", texts.OVF.replace("</Envelope>", f"{second}</Envelope>"))).data.vms:
        assert vm.commands[0].startswith("mkdir ")
        assert commands(vm)[1] == (
            f"virt-v2v -i disk -if vmdk ./{vm.name}/desk-2-disk1.vmdk -o local -os {IMAGES} -of qcow2 -on {vm.name}"
        )
        assert vm.spec["disk"] == [f"{IMAGES}/{vm.name}-sda"]


def test_windows_11_gets_as_much_as_create_vm_requires(ports):
    small = texts.OVF.replace("byte * 2^30</rasd", "byte * 2^20</rasd").replace("Quantity>16<", "Quantity>512<")
    vm = the_vm(ports, small.replace("Quantity>4<", "Quantity>1<"), "x.ovf")
    assert (vm.spec["memory"], vm.spec["vcpus"], vm.spec["os"]) == ("4GiB", 2, "windows11")
    assert [note for note in vm.notes if "instead of" in note] == [
        "x.ovf:16: memory: 4GiB instead of 512MiB there",
        "x.ovf:16: vcpus: 2 instead of 1 there",
    ]
    enough = the_vm(ports, texts.OVF, "x.ovf")
    assert (enough.spec["memory"], enough.spec["vcpus"]) == ("16GiB", 4)
    linux = the_vm(ports, small.replace("windows11_64Guest", "debian12_64Guest"), "x.ovf")
    assert linux.spec["memory"] == "512MiB"


def test_nothing_resembles_a_name_that_is_no_profile(ports):
    given = [VmFile("x.ovf", parse_foreign_file(texts.OVF.replace("nvidia_a100-8c", "mockup-vmiop"), "x.ovf"), False)]
    (warning,) = (text for text in import_vms(ports, given).warnings if "mockup-vmiop" in text)
    assert warning.endswith("no profile here resembles it: vgpuctl list-profiles")


def test_an_ova_and_an_ovf(ports):
    vm = the_vm(ports, texts.OVF, "desk-2.ova")
    assert commands(vm) == (f"virt-v2v -i ova ./desk-2.ova -o local -os {IMAGES} -of qcow2 -on desk-2",)
    assert (vm.spec["profile"], vm.spec["memory"], vm.spec["os"]) == (["A100-8C"], "16GiB", "windows11")
    assert commands(the_vm(ports, texts.OVF, "a/desk-2.ovf"))[0].startswith("virt-v2v -i ova ./a -o local")
    assert commands(the_vm(ports, texts.OVF, "desk-2.ovf"))[0].startswith("virt-v2v -i ova . -o local")
    linux = texts.OVF.replace("windows11_64Guest", "debian12_64Guest")
    assert commands(the_vm(ports, linux, "desk-2.ovf")) == (
        f"qemu-img convert -f vmdk -O qcow2 ./desk-2-disk1.vmdk {IMAGES}/desk-2.qcow2",
    )
    second = linux[linux.index("  <VirtualSystem ") : linux.index("</Envelope>")]
    both = outcome(ports, ("x.ova", linux.replace("</Envelope>", f"{second}</Envelope>"))).data.vms
    assert [vm.name for vm in both] == ["desk-2", "desk-2-2"]
    for vm in both:
        assert vm.commands[0] == f"mkdir ./{vm.name} && tar -xf ./x.ova -C ./{vm.name} -- desk-2-disk1.vmdk"
        assert sources(vm)[1:] == [f"./{vm.name}/desk-2-disk1.vmdk"]


def test_the_disks_of_an_ova_with_several_vms_are_extracted_into_a_new_folder(ports, tmp_path):
    linux = texts.OVF.replace("windows11_64Guest", "debian12_64Guest")
    second = linux[linux.index("  <VirtualSystem ") : linux.index("</Envelope>")]
    texts.write_ova(tmp_path / "x.ova", ("d.ovf", b"x"), ("desk-2-disk1.vmdk", b"KDMV"))
    vms = outcome(ports, ("x.ova", linux.replace("</Envelope>", f"{second}</Envelope>"))).data.vms
    for vm in (*vms, vms[0]):
        done = subprocess.run(["sh", "-c", vm.commands[0]], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (tmp_path / sources(vm)[1]).read_bytes() == b"KDMV"
    assert "desk-2" in done.stderr
    assert done.returncode != 0
    assert sorted(path.name for path in tmp_path.rglob("*.vmdk")) == ["desk-2-disk1.vmdk"] * 2


def test_a_vm_of_xenserver_from_two_files(ports):
    (vm,) = outcome(ports, ("vm.txt", texts.XE_VM), ("vgpus.txt", texts.XE_VGPUS)).data.vms
    assert (vm.spec["profile"], vm.spec["os"]) == (["A100-4C"], "windows11")
    assert "networks" not in vm.spec
    assert commands(vm) == (f"virt-v2v -i disk -if vpc ./desk-3.vhd -o local -os {IMAGES} -of qcow2 -on desk-3",)
    linux = the_vm(ports, texts.XE_VM.replace("Microsoft Windows 10 Pro; distro: windows", "Debian; distro: debian"))
    assert commands(linux) == (f"qemu-img convert -f vpc -O qcow2 ./desk-3.vhd {IMAGES}/desk-3.qcow2",)
    assert any("xe vdi-export" in note for note in linux.notes)
    with pytest.raises(InvalidInput, match="none of the files describes a VM") as raised:
        outcome(ports, ("vgpus.txt", texts.XE_VGPUS))
    assert "xe vm-param-list" in str(raised.value.hint)


def test_a_vm_of_proxmox(ports):
    vm = the_vm(ports, texts.PROXMOX, "/etc/pve/qemu-server/101.conf")
    assert vm.spec["profile"] == ["A100-4C"]
    assert vm.spec["networks"] == [{"bridge": "vmbr0", "vlan": 30, "model": "virtio", "mac": "bc:24:11:aa:bb:01"}]
    assert commands(vm)[0] == f"qemu-img convert -f raw -O qcow2 ./vm-101-disk-1 {IMAGES}/desk-4.qcow2"
    unknown = the_vm(ports, texts.PROXMOX.replace("nvidia-468", "nvidia-9999"))
    assert "profile" not in unknown.spec
    assert any("nvidia-9999: no GPU here has it" in line for line in unknown.left_out)
    assert the_vm(ports, "memory: 1024\n", "/x/101.conf").name == "vm-101"


@pytest.mark.parametrize(
    ("os_type", "there"),
    [("win10", "; the guest there is Windows 10, 2016 or 2019"), ("win11", ""), ("w2k8", "; the guest there is w2k8")],
)
def test_a_note_says_that_another_windows_gets_a_tpm_and_secure_boot(ports, os_type, there):
    vm = the_vm(ports, texts.PROXMOX.replace("win11", os_type), "101.conf")
    assert vm.spec["os"] == "windows11"
    assert f"101.conf:14: os: windows11 has secure boot, a new TPM, at least 4 GiB and 2 CPUs{there}" in vm.notes


def test_what_a_file_does_not_say_is_a_note(ports):
    vm = the_vm(ports, "memory: 1024\n", "7.conf")
    assert vm.spec["vcpus"] == 1
    assert any("there is no cores" in note for note in vm.notes)


def test_a_vm_without_memory_or_cpus_gets_the_hosts_default_with_a_note(ports):
    text = "<domain type='kvm'><name>small</name>{}<devices/></domain>"
    assert (
        "x.xml:1: memory and vcpus: the host's default, as the file does not say"
        in the_vm(ports, text.format(""), "x.xml").notes
    )
    notes = the_vm(ports, text.format("<memory unit='GiB'>4</memory><vcpu>2</vcpu>"), "x.xml").notes
    assert not [note for note in notes if "default, as" in note]


def test_functions_of_one_slot_that_xe_passes_through_are_one_gpu(ports):
    text = "uuid ( RO): 4efcfa1e-11db-becb-0d33-ff4b3faeee1c\n name-label ( RW): vm\n VCPUs-max ( RW): 2\n"
    vm = the_vm(ports, f"{text} other-config (MRW): pci: 0/0000:0b:00.0,0/0000:0b:00.1\n", "x.txt")
    assert (vm.spec["mode"], vm.spec["gpus"]) == ("passthrough", 1)
    assert any("0000:0b:00.0 with 0000:0b:00.1 counts as a GPU" in note for note in vm.notes)


def sources(vm: ImportedVmResult) -> list[str]:
    return [shlex.split(command)[-2] for command in commands(vm)]


def test_disks_with_the_same_name_on_several_storages_get_local_names_of_their_own(ports):
    volumes = ("s1:vm-8-disk-0", "s2:vm-8-disk-0", "local:108/../x", "local:/etc/x", "local:/etc/./x", "local:/etc//x")
    text = "memory: 1024\n" + "".join(f"scsi{n}: {volume},size=1G\n" for n, volume in enumerate(volumes))
    vm = the_vm(ports, text, "8.conf")
    names = ["./vm-8-disk-0", "./s2-vm-8-disk-0", "./x", "./local-etc-x", "./2-local-etc-x", "./3-local-etc-x"]
    assert sources(vm) == names
    for name, volume in zip(names, volumes, strict=True):
        assert any(f": {name}: copy it here first" in note and f"path {volume} " in note for note in vm.notes)


def test_local_names_differ_over_all_files_of_a_call(ports):
    """Two clusters have the same numbers, and a file that is here already is not overwritten."""
    conf = "memory: 1024\nscsi0: a:d.vmdk\nscsi1: a:x.vmx\nscsi2: a:d.vmdk\n"
    vmx = 'displayName = "x"\nscsi0:0.present = "TRUE"\nscsi0:0.fileName = "d.vmdk"\n'
    first, second, third = outcome(ports, ("p/8.conf", conf), ("q/8.conf", conf), ("x.vmx", vmx)).data.vms
    assert sources(first) == ["./a-d.vmdk", "./a-x.vmx", "./a-d.vmdk"]
    assert sources(second) == ["./2-a-d.vmdk", "./2-a-x.vmx", "./2-a-d.vmdk"]
    assert sources(third) == ["./d.vmdk"]
    domain = "<disk type='file'><source file='/{}/x.img'/><target dev='vda'/></disk>"
    text = f"<domain><name>y</name><devices>{domain.format('a')}{domain.format('b c')}</devices></domain>"
    assert sources(the_vm(ports, text, "y.xml")) == ["./x.img", "./b-c-x.img"]


def test_no_command_writes_to_a_disk_of_another_vm(ports):
    text = "memory: 1024\nname: {}\n" + "".join(f"scsi{n}: a:disk-{n}\n" for n in range(3))
    names = ("web", "web-2", "web.disk2", "web.disk2.disk2", "web.disk3")
    vms = outcome(ports, *((f"{n}.conf", text.format(name)) for n, name in enumerate(names))).data.vms
    paths = [path for vm in vms for path in vm.spec["disk"]]
    assert len(set(paths)) == len(paths) == 15
    assert vms[0].spec["disk"] == [f"{IMAGES}/web.qcow2", f"{IMAGES}/web.disk4.qcow2", f"{IMAGES}/web.disk5.qcow2"]
    assert vms[1].spec["disk"][1] == f"{IMAGES}/web-2.disk2.qcow2"
    for vm in vms:
        assert [shlex.split(command)[-1] for command in vm.commands] == vm.spec["disk"]


def test_a_command_says_that_its_disk_exists(ports, tmp_path):
    """It runs as pasted: qemu-img and virt-v2v are programs here that write their name."""
    for program in ("qemu-img", "virt-v2v"):
        (tmp_path / program).write_text(f"#!/bin/sh\necho {program}\n")
        (tmp_path / program).chmod(0o755)
    (tmp_path / "vms").mkdir()

    def ran(command: str) -> tuple[int, str, str]:
        pasted = command.replace(IMAGES, str(tmp_path))
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
        words = ["sh", "-c", pasted]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    first, second = the_vm(ports, texts.VMX).commands
    (whole,) = the_vm(ports, texts.VMX.replace("ubuntu-64", "windows11-64")).commands
    assert [ran(command) for command in (first, second, whole)] == [
        (0, "qemu-img\n", ""), (0, "qemu-img\n", ""), (0, "virt-v2v\n", "")
    ]  # fmt: skip
    for name in ("desk-1.qcow2", "desk-1-sdb"):
        (tmp_path / name).touch()
    assert ran(first) == (1, "", f"{tmp_path}/desk-1.qcow2 exists\n")
    assert ran(second) == (0, "qemu-img\n", "")
    assert ran(whole) == (1, "", f"{tmp_path}/desk-1-sda or {tmp_path}/desk-1-sdb exists\n")


def test_a_domain_of_libvirt(ports):
    vm = the_vm(ports, texts.DOMAIN, "desk-5.xml")
    assert (vm.spec["mode"], vm.spec["gpus"]) == ("passthrough", 1)
    assert vm.spec["networks"] == [{"bridge": "br0", "vlan": 30, "model": "virtio", "mac": "52:54:00:aa:bb:05"}]
    assert commands(vm)[0] == f"qemu-img convert -f qcow2 -O qcow2 ./desk-5.qcow2 {IMAGES}/desk-5.qcow2"
    assert any("/var/lib/libvirt/images/desk-5.qcow2 on the other host" in note for note in vm.notes)
    assert any("counts as a GPU" in note for note in vm.notes)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("grid_a100-4c", "A100-4C"),
        ("nvidia_a100-4c", "A100-4C"),
        ("GRID A100-4C", "A100-4C"),
        ("NVIDIA A100-4C", "A100-4C"),
        ("a100-40c", "A100-40C"),
        ("grid_a100-1-5c", "A100-1-5C"),
    ],
)
def test_profiles_have_the_names_of_this_host(ports, there, here):
    vm = the_vm(ports, texts.VMX.replace("grid_a100-4c", there))
    assert vm.spec["profile"] == [here]


def test_a_type_whose_name_has_spaces(tmp_path):
    ports = open_sim_host(tmp_path / "pro", "rtx-pro-6000").ports
    there = "nvidia_rtx_pro_6000_blackwell_dc-24q"
    result = outcome(ports, ("x.vmx", texts.VMX.replace("grid_a100-4c", there)))
    assert result.data.vms[0].spec["profile"] == ["DC-24Q"]
    assert not any("offers" in warning for warning in result.warnings)


def test_a_profile_that_is_not_offered_is_kept_with_the_nearest(ports):
    result = outcome(ports, ("x.vmx", texts.VMX.replace("grid_a100-4c", "grid_a40-6c")))
    assert result.data.vms[0].spec["profile"] == ["A40-6C"]
    warning = next(w for w in result.warnings if "A40-6C" in w)
    assert warning == (
        "desk-1: x.vmx:30: no GPU of this host offers A40-6C; the nearest here: A100-5C, A100-8C, A100-4C"
    )


def test_several_vgpus_are_counted_and_no_whole_gpu_is_added(ports):
    more = 'pciPassthru2.present = "TRUE"\npciPassthru2.vgpu = "grid_a100-4c"\npciPassthru3.present = "TRUE"\n'
    vm = the_vm(ports, texts.VMX + more)
    assert vm.spec["profile"] == ["A100-4C:2"]
    assert (
        "vms/x.vmx:39: pciPassthru3: left out, because a VM here has vGPUs or whole GPUs, not both: A100-4C is in the "
        "spec. For 1 whole GPU instead, write mode: passthrough and gpus: 1 in place of profile:"
    ) in vm.left_out


def whole_gpu_notes(vm: ImportedVmResult) -> list[str]:
    return [note for note in vm.notes if "GPU" in note]


def test_of_a_vgpu_and_whole_gpus_one_kind_is_in_the_spec_and_the_other_named(ports):
    """A VM of Proxmox with a vGPU, a GPU in two lines, and a second GPU."""
    conf = (
        "memory: 8192\ncores: 4\nhostpci0: 0000:01:00.0,mdev={}\nhostpci1: 0000:05:00.0,pcie=1,x-vga=1\n"
        "hostpci2: 0000:05:00.1\nhostpci3: 06:00\nhostpci4: 0000:05:00.2\n"
    )
    vgpu = the_vm(ports, conf.format("nvidia-468"), "9.conf")
    assert (vgpu.spec["profile"], "gpus" in vgpu.spec) == (["A100-4C"], False)
    assert vgpu.left_out == (
        "9.conf:4: 0000:05:00.0 with 0000:05:00.1, 0000:05:00.2, 06:00: left out, because a VM here has vGPUs or whole "
        "GPUs, not both: A100-4C is in the spec. For 2 whole GPUs instead, write mode: passthrough and gpus: 2 in "
        "place of profile:",
    )
    whole = the_vm(ports, conf.format("nvidia-9999"), "9.conf")
    assert (whole.spec["mode"], whole.spec["gpus"], "profile" in whole.spec) == ("passthrough", 2, False)
    assert whole.left_out[-1] == (
        "9.conf:3: nvidia-9999: left out, because a VM here has vGPUs or whole GPUs, not both: gpus: 2 is in the spec. "
        "For vGPUs instead, write profile: in place of mode: and gpus: (vgpuctl list-profiles shows this host's)"
    )
    assert whole_gpu_notes(whole) == [
        "9.conf:4: 0000:05:00.0 with 0000:05:00.1, 0000:05:00.2 counts as a GPU",
        "9.conf:6: 06:00 counts as a GPU",
        "9.conf:1: gpus: 2: vgpuctl takes free GPUs of this host, with all functions of their slots; gpu: in the spec "
        "names others (vgpuctl list-gpus). If one of the devices there is no GPU, write gpus: 1",
    ]


def test_a_device_that_is_the_only_one_can_be_no_gpu(ports):
    """gpus: 0 is no spec, so the note says what to write instead."""
    vm = the_vm(ports, "memory: 8192\ncores: 4\nhostpci0: mapping=x\n", "9.conf")
    assert (vm.spec["mode"], vm.spec["gpus"]) == ("passthrough", 1)
    assert whole_gpu_notes(vm)[-1].endswith("is no GPU, write profile: in place of mode: and gpus:")


def test_a_type_of_intels_gvt_g_keeps_its_name(ports, tmp_path):
    conf = "memory: 8192\ncores: 4\nhostpci0: 0000:00:02.0,mdev=i915-GVTg_V5_4\n"
    result = outcome(ports, ("9.conf", conf))
    assert result.data.vms[0].spec["profile"] == ["i915-GVTg_V5_4"]
    (warning,) = (text for text in result.warnings if "GVT" in text)
    assert warning.startswith("vm-9: 9.conf:3: i915-GVTg_V5_4 is a type of Intel GVT-g, and no GPU of this host has it")
    assert warning.endswith("cat /sys/bus/pci/devices/*/mdev_supported_types/i915-GVTg_V5_4/description")
    assert "nvidia-smi" not in str((result.warnings, result.notes))
    there = open_sim_host(tmp_path / "gvt", text="version: 1\ngpus: [{model: GVT-g}]\n").ports
    assert not any("GVT" in text for text in outcome(there, ("9.conf", conf)).warnings)


@pytest.mark.parametrize(
    ("type_id", "command"),
    [
        ("nvidia-9999", "cat /sys/bus/pci/devices/*/mdev_supported_types/nvidia-9999/name, or nvidia-smi vgpu -s -v"),
        ("other type", "cat /sys/bus/pci/devices/*/mdev_supported_types/'other type'/name"),
        ("../x", "cat /sys/bus/pci/devices/*/mdev_supported_types/*/name"),
    ],
)
def test_the_command_that_shows_a_types_name_has_no_placeholder(ports, type_id, command):
    vm = the_vm(ports, f"memory: 8192\ncores: 4\nhostpci0: 01:00.0,mdev={type_id}\n", "9.conf")
    assert any(line.endswith(f"shows: {command}") for line in vm.left_out)
    assert "profile" not in vm.spec


def test_a_vgpu_of_a_domain_is_named_with_the_command_that_shows_its_profile(ports):
    vm = the_vm(ports, texts.DOMAIN, "desk-5.xml")
    assert f"cat /sys/bus/mdev/devices/{texts.VGPU_UUID}/mdev_type/name" in vm.left_out[-2]
    assert f"the vGPU {texts.VGPU_UUID}: left out, because a VM here has vGPUs or whole GPUs" in vm.left_out[-1]
    other = the_vm(ports, texts.DOMAIN.replace(texts.VGPU_UUID, "../$(id)"), "desk-5.xml")
    assert any("cat /sys/bus/mdev/devices/*/mdev_type/name" in line for line in other.left_out)


def test_names_are_made_valid_and_unique(ports):
    lines = 'displayName = "{}"\nmemSize = "1024"\n'
    result = outcome(
        ports,
        ("a/büro.vmx", lines.format("Büro 1 / CAD")),
        ("b/x.vmx", lines.format("Büro 1 / CAD")),
        ("c/desk 9.vmx", lines.format("---")),
        ("-", lines.format("x" * 100)),
    )
    assert [vm.name for vm in result.data.vms] == ["B-ro-1-CAD", "B-ro-1-CAD-2", "desk-9", "x" * 58]
    assert all(any("the VM's name here" in note for note in vm.notes) for vm in result.data.vms)
    assert result.data.text.count("---\n") == 4
    assert any("csplit" in note for note in result.notes)


def test_bad_network_cards_get_other_addresses(ports):
    lines = "".join(
        f'ethernet{n}.present = "TRUE"\nethernet{n}.address = "{mac}"\n'
        for n, mac in enumerate(("00:50:56:00:00:01", "00:50:56:00:00:01", "01:00:00:00:00:01", "x,model=y"))
    )
    vm = the_vm(ports, f'displayName = "x"\n{lines}')
    assert vm.spec["networks"] == [{"network": "default", "mac": "00:50:56:00:00:01"}, *["default"] * 3]
    assert len(vm.left_out) == 3
    assert the_vm(ports, 'displayName = "x"\n').spec["networks"] == ["none"]


def test_a_vm_that_cannot_be_one_of_vgpuctls_is_refused(ports):
    for lines, problem in (
        ('numvcpus = "9999"\n', "vcpus: 9999 is not between 1 and 4096"),
        ('memSize = "1"\n', "memory: 1MiB of memory"),
        (f'memSize = "{"9" * 18}"\n', "memory: '"),
        ("".join(f'pciPassthru{n}.vgpu = "grid_a100-4c"\n' for n in range(17)), "profile: 17 vGPUs requested"),
    ):
        with pytest.raises(InvalidInput) as raised:
            outcome(ports, ("x.vmx", f'displayName = "x"\n{lines}'))
        assert raised.value.message.startswith("x.vmx: the VM x: ")
        assert problem in raised.value.message


def test_a_list_of_what_is_left_out_has_an_end(ports):
    vm = the_vm(ports, "memory: 1024\n" + "".join(f"x{n}: 1\n" for n in range(5000)), "x.conf")
    assert len(vm.left_out) == 201
    assert vm.left_out[-1] == "and 4800 more"


def host_lines(ports, *given: str) -> tuple[Sequence[str], Sequence[str]]:
    data = outcome(ports, *((f"f{n}", text) for n, text in enumerate(given))).data
    text = "\n".join(("version: 1", *data.host_lines))
    assert parse_host_spec(text, "host.yaml") is not None
    return data.host_lines, data.left_out


def test_settings_of_the_other_host_become_lines_of_host_yaml(ports):
    lines, left_out = host_lines(ports, texts.ESXCLI)
    assert lines == (
        "placement: {policy: depth}",
        "gpus: {all: {mode: vgpu, mixed_size: true, scheduler: {policy: equal_share, time_slice_ms: 2}}}",
    )
    assert left_out == ()
    assert host_lines(ports, texts.XE_GROUP)[0] == ("placement: {policy: breadth}",)


@pytest.mark.parametrize(
    ("dword", "scheduler"),
    [
        ("0x00", "policy: best_effort"),
        ("0x01", "policy: equal_share"),
        ("0x11", "policy: fixed_share"),
        ("0x00100011", "policy: fixed_share, time_slice_ms: 16"),
    ],
)
def test_rm_pvmrl_is_a_scheduler(ports, dword, scheduler):
    assert host_lines(ports, f"NVreg_RegistryDwords string RmPVMRL={dword}\n") == (
        (f"gpus: {{all: {{scheduler: {{{scheduler}}}}}}}",),
        (),
    )


def test_what_host_yaml_cannot_express_is_named(ports):
    lines, left_out = host_lines(ports, "NVreg_RegistryDwords RmPVMRL=0x00020003\n")
    assert lines == ("gpus: {all: {scheduler: {policy: equal_share}}}",)
    assert "only its policy is certain" in left_out[0]
    lines, left_out = host_lines(ports, texts.ESXCLI, texts.XE_GROUP, "NVreg_RegistryDwords RmPVMRL=0x21\n")
    assert not any("placement" in line for line in lines)
    assert any("the files say depth (f0:2), breadth (f1:3)" in line for line in left_out)
    _, left_out = host_lines(ports, texts.XE_GROUP, "NVreg_RegistryDwords RmPVMRL=0x21\n")
    assert "selects policy 2" in left_out[0]


def test_what_a_new_vm_lacks_of_its_hardware_and_network_is_said(ports):
    conf = (
        "name: a\nbios: ovmf\nostype: {}\ncores: 2\nmemory: 2048\nsmbios1: uuid=0d9b3c5e-1111-4222-8333-444455556666\n"
        "net0: virtio=BC:24:11:00:00:01,bridge=vm br0,tag=50\nnet1: virtio=BC:24:11:00:00:02\n"
    )
    windows, other = (the_vm(ports, conf.format(kind), "101.conf") for kind in ("win10", "other"))
    assert [text for text in windows.left_out if text.startswith("101.conf:6: smbios1: the VM gets a new UUID")]
    assert not [text for text in other.left_out if "UUID" in text]
    assert "101.conf:3: ostype: other names no system: check os: in the spec" in other.notes
    assert "101.conf:7: the network 'vm br0' with VLAN 50 there is network default here: change it" in other.notes
    assert "101.conf:8: no network is named there: it is network default here" in other.notes
    with pytest.raises(InvalidInput, match="memory is '-5', not a whole number of at most 18 digits"):
        the_vm(ports, conf.replace("2048", "-5").format("l26"), "101.conf")


@pytest.mark.parametrize("arch", ["", "arch=''", "arch=' '", "arch='x86_64'"])
def test_a_domain_that_names_no_other_architecture_is_not_called_foreign(ports, arch):
    texts_of = (DRAWN_DOMAIN.replace("arch='x86_64'", text) for text in (arch, "arch='aarch64'"))
    own, other = (" ".join(outcome(ports, ("d.xml", text)).warnings) for text in texts_of)
    assert "it is for" not in own
    assert "it is for aarch64, and VMs of this host have x86_64" in other


DRAWN_DOMAIN = """<domain type='kvm'><name>desk-9</name><memory unit='GiB'>4</memory><vcpu>2</vcpu>
<os><type arch='x86_64'>hvm</type></os><devices>
<graphics type='egl-headless'><gl rendernode='/dev/dri/renderD128'/></graphics>
<video><model type='virtio' heads='1' primary='yes'><acceleration accel3d='yes'/></model></video>
</devices></domain>"""


@pytest.mark.parametrize(
    ("path", "text"),
    [("d.xml", DRAWN_DOMAIN), ("9.conf", "name: desk-9\nmemory: 4096\nvga: virtio-gl\n"),
     ("9.conf", "name: desk-9\nmemory: 4096\nvga: type=virtio-gl,memory=256\n")],
)  # fmt: skip
def test_a_vm_for_which_qemu_draws_there_is_drawn_here(ports, path, text):
    vm = the_vm(ports, text, path)
    assert vm.spec["mode"] == "virtio-gpu"
    assert "profile" not in vm.spec
    assert not [line for line in vm.left_out if "vga" in line or "video" in line or "graphics" in line]
    assert any("QEMU draws for it on a GPU of this host" in note for note in vm.notes)


def test_drawing_beside_a_gpu_or_for_windows_is_left_out(ports):
    with_gpu = the_vm(ports, f"vga: virtio-gl\n{texts.PROXMOX}", "101.conf")
    assert with_gpu.spec["profile"] == ["A100-4C"]
    assert any("Windows has no driver that draws" in line for line in with_gpu.left_out)
    linux = the_vm(ports, "memory: 4096\nostype: l26\nhostpci0: 0000:3b:00.0\nvga: virtio-gl\n", "101.conf")
    assert any("a VM with a GPU of its own does not draw" in line for line in linux.left_out)
