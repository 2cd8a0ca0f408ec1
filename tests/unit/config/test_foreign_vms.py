# SPDX-License-Identifier: Apache-2.0
"""Files of other hypervisors: what each says about its VM, with lines."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tests import foreign_vms as texts
from vgpuctl.config.arguments import PLACEMENT_POLICIES, PLACEMENT_WORDS, placement_policy_of
from vgpuctl.config.foreign_vms.imported import (
    ImportedClock,
    ImportedDisk,
    ImportedGpu,
    ImportedHostSettings,
    ImportedNic,
    ImportedVm,
    VmFile,
    merge_files,
)
from vgpuctl.config.foreign_vms.recognize import parse_foreign_file
from vgpuctl.errors import InvalidInput


def the_vm(text: str, name: str = "f") -> ImportedVm:
    (vm,) = parse_foreign_file(text, name).vms
    return vm


def merged(*named: str) -> tuple[list[ImportedVm], tuple[str, ...]]:
    files = tuple(VmFile("f", parse_foreign_file(text, "f")) for text in named)
    pairs, left_out = merge_files(files)
    return [vm for _, vm in pairs], left_out


def test_a_vmx():
    vm = the_vm(texts.VMX)
    assert (vm.name, vm.position, vm.memory_mib, vm.vcpus) == ("desk-1", "f:5", 8192, 4)
    assert (vm.firmware, vm.is_windows, vm.opener) == ("uefi", False, "vmx")
    assert vm.disks == (ImportedDisk("desk-1.vmdk", "vmdk", "f:15"), ImportedDisk("data disk.vmdk", "vmdk", "f:17"))
    assert vm.nics == (ImportedNic("f:23", mac="00:0c:29:aa:bb:01", network="VM Network", model="virtio"),)
    assert vm.gpus == (ImportedGpu("f:30", profile="grid_a100-4c"),)
    for line, word in ((20, "CD drive"), (32, "0x15b3"), (35, "floppy0"), (36, "sched.*")):
        assert any(text.startswith(f"f:{line}: ") and word in text for text in vm.left_out), (line, vm.left_out)
    assert len(vm.left_out) == 4


def test_a_vmx_with_a_whole_gpu_by_its_vendor():
    lines = 'displayName = "x"\npciPassthru0.present = "TRUE"\npciPassthru0.id = "00000:059:00.0"\n'
    for more in ("", 'pciPassthru0.vendorId = "0x10de"\n', 'pciPassthru0.allowedDevices = "0x10de:0x20b5"\n'):
        assert the_vm(lines + more).gpus == (ImportedGpu("f:3", device="00000:059:00.0"),)
    assert the_vm(lines.replace("TRUE", "FALSE")).gpus == ()
    other = the_vm(f'{lines}pciPassthru0.allowedDevices = "0x15b3:0x1017"\n')
    assert other.gpus == ()
    assert "no GPU" in other.left_out[0]


def test_a_vf_of_a_network_card_is_a_network_card_and_no_gpu():
    lines = (
        'displayName = "x"\npciPassthru28.deviceId = "0"\npciPassthru28.vendorId = "0"\n'
        'pciPassthru28.id = "00000:026:00.1"\npciPassthru28.present = "TRUE"\npciPassthru28.systemId = "BYPASS"\n'
    )
    for more, network, mac in (
        ('pciPassthru28.dvs.portgroupId = "dvportgroup-75"\n', "dvportgroup-75", None),
        ('pciPassthru28.pfId = "00000:026:00.1"\n', None, None),
        ('pciPassthru28.networkName = "a"\npciPassthru28.MACAddress = "00:50:56:00:00:01"\n', "a", "00:50:56:00:00:01"),
    ):
        vm = the_vm(lines + more)
        assert (vm.gpus, vm.nics) == ((), (ImportedNic("f:2", mac=mac, network=network),))
        assert "pciPassthru28 is a VF of a network card" in vm.left_out[0]
        assert network is None or repr(network) in vm.left_out[0]
        assert the_vm((lines + more).replace("TRUE", "FALSE")).nics == ()
    assert the_vm(lines).gpus == (), "vendor 0 is none"
    dvs = 'displayName = "x"\nethernet0.present = "TRUE"\nethernet0.dvs.portgroupId = "dvportgroup-7"\n'
    assert the_vm(dvs).nics[0].network == "dvportgroup-7"


def test_a_value_of_a_vmx_may_have_a_comment_after_it():
    vm = the_vm('displayName = "a # b"  # "c"\nmemSize = 4096 # 4 GB\nnumvcpus = "8"#x\nfirmware = "efi" # UEFI\n')
    assert (vm.name, vm.memory_mib, vm.vcpus, vm.firmware) == ("a # b", 4096, 8, "uefi")
    for line in ('a = "b" c', 'a = "b" "c" # d', "a = b c # d", 'a = "b # c', 'a = b"c'):
        with pytest.raises(InvalidInput, match=r'f:2: .* is not KEY = "VALUE"'):
            the_vm(f'displayName = "x"\n{line}\n')


def test_a_disk_of_a_snapshot_is_to_be_consolidated_first():
    text = 'displayName = "x"\nscsi0:0.present = "TRUE"\nscsi0:0.fileName = "{}"\n'
    (note,) = the_vm(text.format("test flo_0-000004.vmdk")).notes
    assert note.startswith("f:3: test flo_0-000004.vmdk has only what changed since a snapshot")
    for name in ("x-00004.vmdk", "000004.vmdk", "x-000004-flat.vmdk"):
        assert the_vm(text.format(name)).notes == ()


def test_keys_of_a_vmx_have_any_case_and_values_may_be_escaped():
    vm = the_vm('DISPLAYNAME = "a|22b|7Cc"\nMemSize = 4096\nGUESTOS = "windows11-64"\n')
    assert (vm.name, vm.memory_mib, vm.is_windows, vm.firmware) == ('a"b|c', 4096, True, "bios")


def test_an_ovf():
    vm = the_vm(texts.OVF)
    assert (vm.name, vm.memory_mib, vm.vcpus, vm.firmware) == ("desk-2", 16384, 4, "uefi")
    assert vm.is_windows
    assert vm.disks == (ImportedDisk("desk-2-disk1.vmdk", "vmdk", "f:6"),)
    assert [(nic.network, nic.model, nic.mac) for nic in vm.nics] == [("office", "virtio", None)]
    assert [gpu.profile for gpu in vm.gpus] == ["nvidia_a100-8c"]
    assert len(vm.left_out) == 2
    assert "ovf:/disk/vmdisk2" in vm.left_out[0]
    assert "CD drive" in vm.left_out[1]


@pytest.mark.parametrize(
    ("unit", "number", "mib"),
    [("byte * 2^20", 512, 512), ("MegaBytes", 512, 512), ("byte*2^30", 2, 2048), ("bytes", 1 << 30, 1024)],
)
def test_memory_of_an_ovf_has_a_unit(unit, number, mib):
    text = texts.OVF.replace("byte * 2^30</rasd", f"{unit}</rasd").replace("Quantity>16<", f"Quantity>{number}<")
    assert the_vm(text).memory_mib == mib


def test_items_of_a_deployment_option_count_only_for_the_default_one():
    options = (
        "<DeploymentOptionSection><Info/><Configuration ovf:id='small'/>"
        "<Configuration ovf:default='true' ovf:id='large'/></DeploymentOptionSection>"
    )
    item = (
        "<Item ovf:configuration='{}'><rasd:ResourceType>3</rasd:ResourceType>"
        "<rasd:VirtualQuantity>{}</rasd:VirtualQuantity></Item>"
    )
    text = texts.OVF.replace("<VirtualSystem ", f"{options}<VirtualSystem ").replace(
        "<vmw:Config", f"{item.format('small', 1)}{item.format('large', 4)}<vmw:Config", 1
    )
    assert the_vm(text).vcpus == 8


def test_an_item_of_another_deployment_option_is_left_out_with_its_name():
    options = (
        "<DeploymentOptionSection><Info/><Configuration ovf:id='default' ovf:default='true'/>"
        "<Configuration ovf:id='frontend'/></DeploymentOptionSection>"
    )
    item = (
        "<Item ovf:configuration='frontend'><rasd:ElementName>Frontend</rasd:ElementName>"
        "<rasd:ResourceType>10</rasd:ResourceType></Item>"
    )
    text = texts.OVF.replace("<VirtualSystem ", f"{options}<VirtualSystem ").replace(
        "<vmw:Config", f"{item}<vmw:Config", 1
    )
    vm = the_vm(text)
    assert len(vm.nics) == 1
    assert "f:64: Frontend: only the deployment option frontend has it, and default is taken" in vm.left_out


@pytest.mark.parametrize(
    ("capacity", "size"),
    [
        ('ovf:capacity="10"', "1MiB"),
        ('ovf:capacity="10" ovf:capacityAllocationUnits="byte * 2^30"', "10GiB"),
        ('ovf:capacity="10240" ovf:capacityAllocationUnits="byte*1024*1024"', "10GiB"),
        ('ovf:capacity="10737418240"', "10GiB"),
        ('ovf:capacity="${size}" ovf:capacityAllocationUnits="byte * 2^30"', "SIZE"),
        ('ovf:capacity="99999999999999999" ovf:capacityAllocationUnits="byte * 2^30"', "SIZE"),
        ('ovf:capacity="10" ovf:capacityAllocationUnits="byte * 2^99"', "SIZE"),
    ],
)
def test_a_disk_without_a_file_is_named_with_its_size(capacity, size):
    text = texts.OVF.replace('ovf:capacity="10"', capacity)
    expected = f"Hard disk 2 ('ovf:/disk/vmdisk2') has no file: an empty one is made with disk: {size}"
    assert the_vm(text).left_out[0].endswith(expected)


def test_a_disk_without_a_reference_is_named_with_the_size_of_its_item():
    item = (
        "<Item><rasd:ElementName>Hard Disk 3</rasd:ElementName><rasd:ResourceType>17</rasd:ResourceType>"
        "<rasd:AllocationUnits>byte*1024*1024</rasd:AllocationUnits><rasd:VirtualQuantity>10240</rasd:VirtualQuantity>"
        "</Item>"
    )
    left_out = the_vm(texts.OVF.replace("<vmw:Config", f"{item}<vmw:Config", 1)).left_out
    assert "f:64: Hard Disk 3 has no file: an empty one is made with disk: 10GiB" in left_out


def passed(number: int, kind: str, **settings: str) -> str:
    """Return an item of an OVF as vSphere writes a PCI device."""
    configs = "".join(
        f'<vmw:Config ovf:required="false" vmw:key="{key.replace("_", ".")}" vmw:value="{value}"/>\n'
        for key, value in settings.items()
    )
    return (
        f'<Item ovf:required="false"><rasd:ElementName>PCI device {number}</rasd:ElementName>'
        f"<rasd:ResourceSubType>vmware.pci.passthrough{kind}</rasd:ResourceSubType>"
        f"<rasd:ResourceType>1</rasd:ResourceType>{configs}</Item>\n"
    )


def ovf_with(*items: str) -> ImportedVm:
    head, tail = texts.OVF.split('      <vmw:ExtraConfig ovf:required="false" vmw:key="pciPassthru0.vgpu"')
    return the_vm(f"{head}{''.join(items)}{tail.partition('/>')[2]}")


def test_each_pci_device_of_an_ovf_counts():
    vm = ovf_with(*(passed(n, "-vmiop", backing_vgpu="grid_a100-8c", backing_migrateSupported="false") for n in (0, 1)))
    assert [gpu.profile for gpu in vm.gpus] == ["grid_a100-8c", "grid_a100-8c"]
    assert len({gpu.position for gpu in vm.gpus}) == 2
    assert not any("PCI device" in text for text in vm.left_out)
    gpus = the_vm(texts.OVF.replace("<vmw:Config", f"{passed(0, '-vmiop', backing_vgpu='a100-4c')}<vmw:Config", 1)).gpus
    assert [gpu.profile for gpu in gpus] == ["a100-4c"], "the items count, and the settings say the same"


@pytest.mark.parametrize(
    ("kind", "settings", "device"),
    [
        ("", {"backing_vendorId": "4318", "backing_id": "0000:04:00.0"}, "0000:04:00.0"),
        ("", {"backing_vendorId": "4098"}, "PCI device 0"),
        ("-ah", {"backing_allowedDevice": "0x10de:0x20b5:s=0x15ad:t=0x7d0:r=0x0"}, "PCI device 0"),
        ("", {}, "PCI device 0"),
    ],
)
def test_a_whole_gpu_of_an_ovf(kind, settings, device):
    vm = ovf_with(passed(0, kind, **settings), passed(1, kind, **settings))
    assert [gpu.device for gpu in vm.gpus] == [device, device.replace("device 0", "device 1")]
    assert all(gpu.is_whole for gpu in vm.gpus)


@pytest.mark.parametrize(
    ("kind", "settings", "reason"),
    [
        ("", {"backing_vendorId": "-32634"}, "vendor 0x8086 through, which may be a network card"),
        ("-ah", {"backing_allowedDevice": "0x8086:0x10d3:s=0x15ad"}, "vendor 0x8086 through, which may be"),
        ("", {"backing_vendorId": "5555"}, "vendor 0x15b3 through, which is no GPU"),
        ("", {"backing_vendorId": "0"}, "vendor 0x0000 through, which is no GPU"),
        ("-dvx", {"dvx_deviceClass": "com.example.x"}, "a device of the class com.example.x, which is no GPU"),
    ],
)
def test_a_pci_device_of_an_ovf_that_is_no_gpu_is_left_out_with_the_reason(kind, settings, reason):
    vm = ovf_with(passed(0, kind, **settings))
    assert vm.gpus == ()
    assert [reason in text and "PCI device 0" in text for text in vm.left_out].count(True) == 1


def test_several_systems_of_an_ovf_are_several_vms():
    begin, end = texts.OVF.index("  <VirtualSystem "), texts.OVF.index("</Envelope>")
    second = texts.OVF[begin:end].replace("desk-2<", "desk-2b<")
    text = texts.OVF[:end] + second + texts.OVF[end:]
    assert [vm.name for vm in parse_foreign_file(text, "f").vms] == ["desk-2", "desk-2b"]


def test_what_xe_prints_about_a_vm_and_its_devices():
    (vm,), left_out = merged(texts.XE_VM, texts.XE_VGPUS, texts.XE_VIFS)
    assert (vm.name, vm.uuid, vm.memory_mib, vm.vcpus, vm.firmware) == ("desk-3", texts.UUID, 8192, 4, "uefi")
    assert vm.is_windows
    assert vm.gpus == (ImportedGpu("f:1", profile="GRID A100-4C"),)
    assert [(nic.mac, nic.network) for nic in vm.nics] == [("5a:11:22:33:44:55", "Pool-wide network")]
    assert left_out == ()
    assert f"xe vm-disk-list uuid={texts.UUID}" in str(vm.disks[0].fetch)


def test_a_passthrough_vgpu_of_xe_is_a_whole_gpu():
    (vm,), _ = merged(texts.XE_VM + texts.XE_VGPUS.replace("GRID A100-4C", "passthrough"))
    assert [gpu.is_whole for gpu in vm.gpus] == [True]


def test_vgpus_of_other_vms_and_records_of_other_kinds_are_named():
    assert "which none of the files describes" in merged(texts.XE_VGPUS)[1][0]
    other = "uuid ( RO)    : 1\n    host-uuid ( RO): 2\n"
    assert parse_foreign_file(other, "f").left_out == ("f:1: a record that is no VM, vGPU, VIF or GPU group",)
    template = texts.XE_VM.replace("is-a-template ( RW): false", "is-a-template ( RW): true")
    assert parse_foreign_file(template, "f").vms == ()
    assert "is a template" in parse_foreign_file(template, "f").left_out[0]


def test_wrapped_values_of_xe_are_joined():
    text = texts.XE_VM.replace("name-label ( RW): desk-3", "name-label ( RW): desk\n                     -3")
    assert the_vm(text).name == "desk -3"


def test_a_vm_of_proxmox_without_its_snapshots():
    vm = the_vm(texts.PROXMOX)
    assert (vm.name, vm.memory_mib, vm.vcpus, vm.firmware, vm.is_windows) == ("desk-4", 8192, 8, "uefi", True)
    assert [(disk.file, disk.format) for disk in vm.disks] == [
        ("vm-101-disk-1", "raw"),
        ("vm-101-disk-2.qcow2", "qcow2"),
    ]
    assert "pvesm path local-lvm:vm-101-disk-1" in str(vm.disks[0].fetch)
    assert vm.nics == (ImportedNic("f:15", mac="BC:24:11:AA:BB:01", bridge="vmbr0", vlan=30, model="virtio"),)
    assert vm.gpus == (ImportedGpu("f:10", type_id="nvidia-468"),)
    left_out = [text.split(": ")[1] for text in vm.left_out]
    assert left_out == [
        "ide2 is a CD drive; cdrom",
        "net0",
        "args",
        "cpu",
        "efidisk0",
        "onboot",
        "unused0",
        "[before-upgrade]",
    ]


@pytest.mark.parametrize(
    ("value", "gpus"),
    [
        ("0000:01:00.0,pcie=1", (ImportedGpu("f:2", device="0000:01:00.0"),)),
        ("01:00,x-vga=1", (ImportedGpu("f:2", device="01:00"),)),
        ("host=01:00.0;01:00.1", (ImportedGpu("f:2", device="01:00.0 with 01:00.1"),)),
        ("01:00.0;02:00.0", (ImportedGpu("f:2", device="01:00.0"), ImportedGpu("f:2", device="02:00.0"))),
        ("mapping=a100", (ImportedGpu("f:2", device="the mapping a100", mapping="a100"),)),
        ("mapping=a100,mdev=nvidia-63", (ImportedGpu("f:2", type_id="nvidia-63", mapping="a100"),)),
    ],
)
def test_devices_of_proxmox(value, gpus):
    assert the_vm(f"memory: current=2048\nhostpci0: {value}\n").gpus == gpus


def test_lines_for_the_functions_of_one_device_of_proxmox_are_one_gpu():
    text = "memory: 1\nhostpci0: {}\nhostpci1: {}\nhostpci2: {}\n"
    for lines, devices in (
        (("0000:03:00", "0000:03:00.1", "03:00.2"), [("f:2", "0000:03:00 with 0000:03:00.1, 03:00.2")]),
        (("0000:AF:00.0", "af:00.1", "0001:af:00.1"), [("f:2", "0000:AF:00.0 with af:00.1")]),
        (("25:00.0;25:00.1", "mapping=a", "25:00.2"), [("f:2", "25:00.0 with 25:00.1, 25:00.2"),
                                                       ("f:3", "the mapping a")]),
        (("mapping=a", "mapping=a", "25:00.0;25:00.1"), [("f:2", "the mapping a"), ("f:3", "the mapping a"),
                                                         ("f:4", "25:00.0 with 25:00.1")]),
        (("01:00.4,mdev=nvidia-1", "01:00.5,mdev=nvidia-1", "01:00.6"), [("f:2", None), ("f:3", None)]),
    ):  # fmt: skip
        assert [(gpu.position, gpu.device) for gpu in the_vm(text.format(*lines)).gpus] == devices


@pytest.mark.parametrize("volume", ["/dev/sdb", "/dev/disk/by-id/x", "local", "local:", "local:..", "none"])
def test_a_disk_of_proxmox_that_is_no_volume_is_left_out(volume):
    assert the_vm(f"scsi0: {volume},size=1G\nmemory: 1024\n").disks == ()


def test_the_first_disk_is_the_one_that_a_vm_boots_from():
    conf = "memory: 1\nboot: order=sata1;ide0;net0\nscsi0: a:s,size=1G\nide0: a:i,size=1G\nsata1: a:t,size=1G\n"
    assert [disk.file for disk in the_vm(conf).disks] == ["t", "i", "s"]
    assert [disk.file for disk in the_vm(conf.replace("order=sata1;ide0;net0", "cdn")).disks] == ["s", "t", "i"]
    disk = "<disk type='file'><source file='/{0}'/><target dev='{0}' bus='virtio'/>{1}</disk>"
    devices = disk.format("a", "") + disk.format("b", "<boot order='2'/>") + disk.format("c", "<boot order='1'/>")
    vm = the_vm(f"<domain><name>x</name><devices>{devices}{disk.format('d', '')}</devices></domain>")
    assert [(one.file, one.is_on_virtio) for one in vm.disks] == [(name, True) for name in "cbad"]


def test_a_domain_of_libvirt():
    vm = the_vm(texts.DOMAIN)
    assert (vm.name, vm.memory_mib, vm.vcpus, vm.firmware, vm.is_windows) == ("desk-5", 8192, 4, "uefi", False)
    assert [(disk.file, disk.format) for disk in vm.disks] == [("desk-5.qcow2", "qcow2"), ("desk-5-data", "raw")]
    assert [(nic.bridge, nic.vlan, nic.mac, nic.model) for nic in vm.nics] == [
        ("br0", 30, "52:54:00:aa:bb:05", "virtio")
    ]
    assert [gpu.vgpu_uuid or gpu.device for gpu in vm.gpus] == [texts.VGPU_UUID, "0000:65:00.0 with 0000:65:00.1"]
    text = "\n".join(vm.left_out)
    for dropped in (
        "<qemu:commandline>",
        "<emulator>",
        "<filesystem>",
        "<cputune>",
        "<loader>",
        "<nvram>",
        "vdc",
        "sda",
    ):
        assert dropped in text
    assert "f:12: machine pc-q35-8.2: " in text
    assert len(vm.left_out) == 9
    assert all(line.startswith("f:") for line in vm.left_out)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("vcpus: 3", "vcpus: the VM starts with 3 of its 4 CPUs there, and with all here"),
        ("balloon: 512", "balloon: a VM of vgpuctl always has its whole memory"),
        ("cpu: host,hidden=1", "cpu: vgpuctl chooses the CPU"),
        ("machine: pc-i440fx-5.2", "machine: vgpuctl chooses the machine type"),
        ("protection: 1", "protection: "),
        ("parent: before", "parent: "),
        ("numa: 1", "numa: "),
        ("agent: 1,fstrim_cloned_disks=1", "agent: "),
        ("smbios1: uuid=1,base64=1,serial=QQ==", "smbios1: "),
        ("startup: order=1", "startup: a VM spec has start_order:"),
        ("vga: none", "vga: a VM here has a VGA card for its console"),
        ("scsi0: /dev/sda,size=9G", "scsi0 is '/dev/sda', a device or file of the other host: name it in disk:"),
        ("never-seen: 1", "never-seen: a VM spec has no such field"),
        ("net0: virtio=BC:24:11:AA:BB:01,bridge=vmbr0,link_down=1,mtu=9000,trunks=5;6",
         "net0: link_down=1, mtu=9000, trunks=5;6: "),
        ("scsi0: a:b,size=1G,cache=none,serial=x", "scsi0: serial=x: "),
        ("hostpci0: 01:00,pcie=1,romfile=x.rom", "hostpci0: romfile=x.rom: "),
        ("[snap]\nmemory: 1\n# words: in any form", "[snap]: a snapshot or other section"),
        ("[PENDING]\nmemory: 8192", None),
    ],
)  # fmt: skip
def test_what_a_conf_says_and_no_spec_can_is_named(line, sentence):
    vm = the_vm(f"memory: 1024\ncores: 2\nsockets: 2\n{line}\n")
    if sentence is None:
        assert vm.left_out == ("f:5: [PENDING]: 'memory: 8192' waits there for the VM's next start",)
    else:
        (left_out,) = vm.left_out
        assert left_out.startswith(f"f:4: {sentence}")
    assert (vm.memory_mib, vm.vcpus, vm.notes) == (1024, 4, ())


def test_what_means_nothing_elsewhere_is_not_named():
    lines = (
        "memory: 1024\ncores: 4\nvcpus: 4\nballoon: 0\ndescription: x\ndigest: x\nvmgenid: x\nsmbios1: uuid=1\n"
        "agent: 1\nnuma: 0\nprotection: 0\nnet0: e1000=BC:24:11:AA:BB:01,bridge=vmbr0,firewall=0,link_down=0\n"
        "scsi0: a:b,size=1G,iothread=1\nhostpci0: 01:00,pcie=1,rombar=1\n"
    )
    assert the_vm(lines).left_out == ()


def test_a_conf_without_cores_has_one_cpu_for_each_socket():
    vm = the_vm("memory: 1024\nname: x\n")
    assert vm.vcpus == 1
    assert vm.notes == ("f:2: there is no cores: Proxmox' default is 1 for each socket, so vcpus is 1",)
    assert the_vm("memory: 1024\nsockets: 2\n").vcpus == 2


def test_what_a_domain_says_and_no_spec_can_is_named():
    text = (
        "<domain><name>x</name>\n<memory unit='GiB'>8</memory>\n<currentMemory unit='MiB'>4096</currentMemory>\n"
        "<vcpu current='2'>8</vcpu>\n<os><type machine='pc-i440fx-6.2'>hvm</type></os><devices>\n"
        "<interface type='network'><source network='a'/><link state='down'/><mtu size='9000'/></interface>\n"
        "<disk type='file'><source file='/a/b.raw'/><target dev='vda'/><readonly/></disk></devices></domain>"
    )
    assert the_vm(text).left_out == (
        "f:7: disk vda: <readonly>: a VM spec has no such field",
        "f:6: a network card: <link state='down'>, <mtu size='9000'>: a VM spec has no such field",
        "f:4: <vcpu current>: the VM starts with 2 of its 8 CPUs there, and with all here",
        "f:3: <currentMemory>: the VM has 4096 of its 8192 MiB there, and all here",
        "f:5: machine pc-i440fx-6.2: vgpuctl chooses the machine type",
    )
    same = text.replace("4096", "8192").replace("current='2'", "current='8'")
    assert len(the_vm(same).left_out) == 3


def test_devices_of_a_domain_that_no_spec_has_are_named():
    names = ("sound", "watchdog", "redirdev", "panic", "iommu")
    devices = "".join(f"<{name}/>" for name in names)
    left_out = the_vm(
        f"<domain><name>x</name><cpu mode='custom'/><maxMemory/><devices>{devices}</devices></domain>"
    ).left_out
    assert [line.split(": ")[1] for line in left_out] == [f"<{name}>" for name in ("cpu", "maxMemory", *names)]


def test_a_card_that_is_not_connected_and_a_tpm_of_a_vmx_are_named():
    text = 'displayName = "x"\nethernet0.present = "TRUE"\nethernet0.startConnected = "{0}"\nvtpm.present = "{1}"\n'
    vm = the_vm(text.format("FALSE", "TRUE"))
    assert vm.left_out[0].startswith("f:3: ethernet0.startConnected: the card is not connected there")
    assert vm.tpm == "f:4: vtpm"
    assert (the_vm(text.format("TRUE", "FALSE")).left_out, the_vm(text.format("TRUE", "FALSE")).tpm) == ((), None)


def test_a_vmx_that_hides_its_hypervisor_is_named():
    (line,) = the_vm('displayName = "x"\nhypervisor.cpuid.v0 = "FALSE"\n').left_out
    assert line == "f:2: hypervisor.cpuid.*: the guest sees here that it runs on KVM"


def test_what_xe_says_and_no_spec_can_is_named():
    text = texts.XE_VM.replace("memory-dynamic-max ( RW): 8589934592", "memory-dynamic-max ( RW): 4294967296").replace(
        "VCPUs-max ( RW): 4\n", "VCPUs-max ( RW): 4\n    VCPUs-at-startup ( RW): 2\n"
    )
    left_out = the_vm(text).left_out[1:]
    assert [line.partition(": the VM")[0] for line in left_out] == [
        "f:11: VCPUs-at-startup 2 is below VCPUs-max",
        "f:9: memory-dynamic-max 4294967296 is below memory-static-max",
    ]


@pytest.mark.parametrize(("vifs", "given", "is_named"), [
    ("3", texts.XE_VGPUS, True), ("3", texts.XE_VIFS, False), ("3; 4", texts.XE_VIFS, True),
    ("", texts.XE_VGPUS, False), ("<not in database>", texts.XE_VGPUS, False),
])  # fmt: skip
def test_network_cards_that_no_file_of_xe_describes_are_named(vifs, given, is_named):
    text = texts.XE_VM.replace("VCPUs-max", f"VIFs (SRO): {vifs}\n                     VCPUs-max")
    (vm,), _ = merged(text, given)
    assert any("give xe vif-list params=all too" in line for line in vm.left_out) is is_named


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (texts.VMX.replace("ubuntu-64", "windows9-64"), "windows10-64"),
        (texts.VMX.replace("ubuntu-64", "windows9srv-64"), "windows10srv-64"),
        (texts.PROXMOX.replace("win11", "win10"), "Windows 10, 2016 or 2019"),
        (texts.PROXMOX, "Windows 11, 2022 or 2025"),
        (texts.XE_VM, "Microsoft Windows 10 Pro"),
        (texts.DOMAIN.replace("http://debian.org/debian/12", "http://microsoft.com/win/10"), "Windows 10"),
    ],
)
def test_the_system_of_a_guest_has_a_name(text, name):
    assert (the_vm(text).os_name, the_vm(text).is_windows) == (name, True)


@pytest.mark.parametrize("text", [
    'displayName = "a|0Ab"\n', 'memSize = "1"\npciPassthru0.vgpu = "a|0Ab"\n',
    texts.XE_VM.replace("Windows 10", "Windows\u202e 10"),
    "<domain><devices><disk><source file='/a&#10;b'/></disk></devices></domain>",
])  # fmt: skip
def test_an_invisible_character_is_refused_with_the_name_as_written_and_a_hint(text):
    with pytest.raises(
        InvalidInput, match=r"^f:\d+: (os-version|displayName|pciPassthru0\.vgpu|<source> of a <disk>) has"
    ) as raised:
        parse_foreign_file(text, "f")
    assert "visible characters in one line" in str(raised.value.hint)


def test_the_hint_for_a_control_character_keeps_the_lines_of_the_file():
    text = "memory: 1024\nname: a\x1bb\x01\x7f\x0b\n\tx: 1\n"
    with pytest.raises(InvalidInput, match="f:2: it has the control character") as raised:
        parse_foreign_file(text, "f")
    arguments = shlex.split(str(raised.value.hint).removeprefix("remove it: ").removesuffix(" <FILE"))
    done = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True)
    assert done.stdout == "memory: 1024\nname: ab\n\tx: 1\n"


def test_windows_in_a_domain_is_known_by_libosinfo_or_its_features():
    text = texts.DOMAIN.replace("http://debian.org/debian/12", "http://microsoft.com/win/11")
    assert the_vm(text).is_windows
    assert the_vm("<domain><name>x</name><features><hyperv/></features></domain>").is_windows


@pytest.mark.parametrize(("line", "shown", "time"), [
    ("<clock offset='localtime'/>", "<clock offset='localtime'>", "local time"),
    ("<clock/>", "<clock offset='utc'>", "UTC"),
    ("<clock offset='timezone' timezone='Europe/Oslo'/>", "<clock offset='timezone'>", "the time of Europe/Oslo"),
    ("<clock offset='variable' adjustment='-18001' basis='utc'/>", "<clock adjustment>", "UTC-05:00"),
    ("<clock offset='variable' adjustment='-157680000'/>", "<clock adjustment>", "a time of its own"),
    ("<clock offset='variable' adjustment='12' basis='localtime'/>", "<clock offset='variable'>", "local time"),
    ("<clock offset='variable' adjustment='reset'/>", "<clock offset='variable'>", "UTC"),
    ("<clock offset='absolute' start='0'/>", "<clock offset='absolute'>", "a time of its own"),
    ("", None, None),
])  # fmt: skip
def test_the_clock_of_a_domain(line, shown, time):
    clock = the_vm(f"<domain><name>x</name>\n{line}<devices/></domain>").clock
    assert clock == (None if shown is None else ImportedClock(f"f:2: {shown}", str(time)))


@pytest.mark.parametrize(("text", "clock"), [
    ('displayName = "x"\nrtc.diffFromUTC = "3600"\n', ("f:2: rtc.diffFromUTC", "UTC+01:00")),
    ('displayName = "x"\nrtc.diffFromUTC = "0"\n', ("f:2: rtc.diffFromUTC", "UTC")),
    ('displayName = "x"\n', None),
    (texts.OVF.replace("pciPassthru0.vgpu", "rtc.diffFromUTC").replace("nvidia_a100-8c", "-16200"),
     ("f:65: rtc.diffFromUTC", "UTC-04:30")),
    (texts.XE_VM.replace("timeoffset: 0", "timeoffset: 28800"), ("f:12: platform: timeoffset", "UTC+08:00")),
    (texts.XE_VM, None),
    ("memory: 1\nlocaltime: 1\n", ("f:2: localtime: 1", "local time")),
    ("memory: 1\nlocaltime: 0\nostype: win11\n", ("f:2: localtime: 0", "UTC")),
    ("memory: 1\nostype: win11\n", ("f:2: ostype: win11", "local time")),
    ("memory: 1\nostype: l26\n", None),
])  # fmt: skip
def test_the_clock_of_other_files(text, clock):
    assert the_vm(text).clock == (None if clock is None else ImportedClock(*clock))


def test_a_clock_that_is_no_number_of_seconds_is_refused():
    with pytest.raises(InvalidInput, match=r"f:2: rtc.diffFromUTC is 'noon', not a whole number"):
        the_vm('displayName = "x"\nrtc.diffFromUTC = "noon"\n')


def test_what_esxcli_prints_are_settings_of_the_host():
    settings = parse_foreign_file(texts.ESXCLI, "f").settings
    assert settings == (
        ImportedHostSettings("f:1", mode="vgpu"),
        ImportedHostSettings("f:2", placement="depth"),
        ImportedHostSettings("f:8", mode="vgpu"),
        ImportedHostSettings("f:9", mixed_size=True),
        ImportedHostSettings("f:14", scheduler_dword=0x20001),
    )
    shared = parse_foreign_file("   Default Graphics Type: Shared\n", "f")
    assert shared.settings == ()
    assert "vSGA" in shared.left_out[0]


def test_the_algorithm_of_a_gpu_group_is_a_placement():
    assert parse_foreign_file(texts.XE_GROUP, "f").settings == (ImportedHostSettings("f:3", placement="breadth"),)


def test_placement_words():
    for word in ("depth", "depth_first", "Depth-First", " consolidation", "binpack"):
        assert placement_policy_of(word) == "depth"
    for word in ("breadth", "breadth_first", "Performance", "spread"):
        assert placement_policy_of(word) == "breadth"
    assert placement_policy_of("first-fit") is None
    assert {*PLACEMENT_WORDS.values()} <= {*PLACEMENT_POLICIES}


DESKTOP = """<domain type='kvm'><name>win10</name><devices>
{}
</devices></domain>"""


def hostdev(bus: str, function: str, more: str = "") -> str:
    address = f"<address domain='0x0000' bus='0x{bus}' slot='0x00' function='0x{function}'/>"
    return f"<hostdev mode='subsystem' type='pci' managed='yes'><source>{address}</source>{more}</hostdev>"


def test_a_drive_and_a_usb_controller_passed_through_by_libvirt_are_no_gpus():
    parts = [hostdev("04", "0", "<boot order='1'/>"), *(hostdev("07", number) for number in "013")]
    vm = the_vm(DESKTOP.format("\n".join([*parts, *(hostdev("0d", number) for number in "0123")])))
    assert [(gpu.device, gpu.position) for gpu in vm.gpus] == [
        ("0000:0d:00.0 with 0000:0d:00.1, 0000:0d:00.2, 0000:0d:00.3", "f:6")
    ]
    assert "f:2: 0000:04:00.0, passed through: it counts as no GPU, because the VM boots from it" in vm.left_out
    (usb,) = [line for line in vm.left_out if line.startswith("f:3: 0000:07:00.0 with 0000:07:00.1, 0000:07:00.3, ")]
    assert usb.endswith("it counts as no GPU, because the functions of one have no gap")


def test_a_rom_file_of_a_gpu_of_libvirt_is_named():
    rom = "<rom bar='on' file='/usr/share/vgabios/1080ti.rom'/>"
    vm = the_vm(DESKTOP.format(hostdev("09", "0", f"<driver name='vfio'/>{rom}")))
    assert vm.left_out == (f"f:2: 0000:09:00, passed through: {rom.replace('/>', '>')}: a VM spec has no such field",)
    assert len(vm.gpus) == 1


VF = "it counts as no GPU, because the first function of one is 0; a VF of a GPU is mode: sriov and gpus: 1 here"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("memory: 1\nhostpci0: 0000:00:02.1,x-vga=0,rombar=1\n", "f:2: 0000:00:02.1"),
        ("memory: 1\nhostpci0: 0a:00.3\nhostpci1: 0a:00.4\n", "f:2: 0a:00.3 with 0a:00.4"),
        (DESKTOP.format(hostdev("0a", "3")), "f:2: 0000:0a:00.3"),
        ("uuid ( RO): 1\n VCPUs-max ( RW): 2\n other-config (MRW): pci: 0/0000:0a:00.3\n", "f:3: 0000:0a:00.3"),
    ],
)
def test_a_device_without_its_first_function_is_no_gpu(text, place):
    """The sound or USB of a board, or a VF: a VM of Proxmox has several such lines."""
    vm = the_vm(text)
    assert vm.gpus == ()
    assert f"{place}, passed through: {VF}" in vm.left_out


@pytest.mark.parametrize("functions", ["1", "3", "02", "x"])
def test_functions_without_those_before_them_are_no_gpu(functions):
    assert the_vm(DESKTOP.format("".join(hostdev("0d", number) for number in functions))).gpus == ()


XE_VM = """uuid ( RO)                : 4efcfa1e-11db-becb-0d33-ff4b3faeee1c
      name-label ( RW): vm
      memory-static-max ( RW): 4294967296
      {}
"""


def test_what_xe_passes_through_by_other_config_is_a_gpu_for_each_slot():
    vm = the_vm(XE_VM.format("other-config (MRW): auto: x; pci: 0/0000:0b:00.0,0/0000:0b:00.1,0/0000:0C:00.0"))
    assert [gpu.device for gpu in vm.gpus] == ["0000:0b:00.0 with 0000:0b:00.1", "0000:0c:00.0"]
    assert {gpu.position for gpu in vm.gpus} == {"f:4"}
    assert all(gpu.is_whole for gpu in vm.gpus)


def test_what_is_no_address_in_other_config_is_left_out():
    vm = the_vm(XE_VM.format("other-config (MRW): pci: 0/0000:0b:00.0,all,0/0000:0b:00.9"))
    assert len(vm.gpus) == 1
    assert [line for line in vm.left_out if "other-config:pci" in line] == [
        "f:4: other-config:pci: 'all' is no PCI address",
        "f:4: other-config:pci: '0/0000:0b:00.9' is no PCI address",
    ]


@pytest.mark.parametrize(("lines", "count"), [("VCPUs-number ( RO): 2", 2), ("VCPUs-max ( RW): 3", 3)])
def test_cpus_of_xe_by_either_name(lines, count):
    assert the_vm(XE_VM.format(lines)).vcpus == count
