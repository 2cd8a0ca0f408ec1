# SPDX-License-Identifier: Apache-2.0
"""VMs of other hypervisors as their files describe them, in the shapes that VMware, xe, Proxmox and libvirt write."""

from __future__ import annotations

import io
import struct
import tarfile
from pathlib import Path

UUID = "0f3c9a52-6f0b-4a1c-9a57-6a1c4d8e2b01"
VGPU_UUID = "5a0d2d1e-7e43-4f2e-8d3c-1b6f1f0a9c02"
VMX = """#!/usr/bin/vmware
.encoding = "UTF-8"
config.version = "8"
virtualHW.version = "20"
displayName = "desk-1"
guestOS = "ubuntu-64"
firmware = "efi"
uefi.secureBoot.enabled = "TRUE"
memSize = "8192"
numvcpus = "4"
scsi0.present = "TRUE"
scsi0.virtualDev = "pvscsi"
scsi0:0.present = "TRUE"
scsi0:0.deviceType = "scsi-hardDisk"
scsi0:0.fileName = "desk-1.vmdk"
nvme0:0.present = "TRUE"
nvme0:0.fileName = "data disk.vmdk"
sata0:0.present = "TRUE"
sata0:0.deviceType = "cdrom-image"
sata0:0.fileName = "/vmfs/volumes/iso/tools.iso"
ide0:0.present = "FALSE"
ide0:0.fileName = "gone.vmdk"
ethernet0.present = "TRUE"
ethernet0.virtualDev = "vmxnet3"
ethernet0.networkName = "VM Network"
ethernet0.addressType = "generated"
ethernet0.generatedAddress = "00:0c:29:aa:bb:01"
ethernet1.present = "FALSE"
pciPassthru0.present = "TRUE"
pciPassthru0.vgpu = "grid_a100-4c"
pciPassthru1.present = "TRUE"
pciPassthru1.id = "00000:059:00.0"
pciPassthru1.vendorId = "0x15b3"
pciPassthru1.deviceId = "0x1017"
floppy0.present = "TRUE"
sched.mem.min = "8192"
"""
OVF = """<?xml version="1.0" encoding="UTF-8"?>
<Envelope xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1"
    xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData"
    xmlns:vmw="http://www.vmware.com/schema/ovf">
  <References>
    <File ovf:href="desk-2-disk1.vmdk" ovf:id="file1" ovf:size="4096"/>
  </References>
  <DiskSection>
    <Info>Disks</Info>
    <Disk ovf:capacity="40" ovf:capacityAllocationUnits="byte * 2^30" ovf:diskId="vmdisk1" ovf:fileRef="file1"
        ovf:format="http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized"/>
    <Disk ovf:capacity="10" ovf:diskId="vmdisk2"/>
  </DiskSection>
  <VirtualSystem ovf:id="desk-2">
    <Info>A desktop</Info>
    <Name>desk-2</Name>
    <OperatingSystemSection ovf:id="1" vmw:osType="windows11_64Guest">
      <Info>OS</Info>
    </OperatingSystemSection>
    <VirtualHardwareSection>
      <Info>Hardware</Info>
      <Item>
        <rasd:ElementName>4 virtual CPU(s)</rasd:ElementName>
        <rasd:InstanceID>1</rasd:InstanceID>
        <rasd:ResourceType>3</rasd:ResourceType>
        <rasd:VirtualQuantity>4</rasd:VirtualQuantity>
      </Item>
      <Item>
        <rasd:AllocationUnits>byte * 2^30</rasd:AllocationUnits>
        <rasd:ElementName>16GB of memory</rasd:ElementName>
        <rasd:InstanceID>2</rasd:InstanceID>
        <rasd:ResourceType>4</rasd:ResourceType>
        <rasd:VirtualQuantity>16</rasd:VirtualQuantity>
      </Item>
      <Item>
        <rasd:ElementName>Hard disk 1</rasd:ElementName>
        <rasd:HostResource>ovf:/disk/vmdisk1</rasd:HostResource>
        <rasd:InstanceID>3</rasd:InstanceID>
        <rasd:ResourceType>17</rasd:ResourceType>
      </Item>
      <Item>
        <rasd:ElementName>Hard disk 2</rasd:ElementName>
        <rasd:HostResource>ovf:/disk/vmdisk2</rasd:HostResource>
        <rasd:InstanceID>4</rasd:InstanceID>
        <rasd:ResourceType>17</rasd:ResourceType>
      </Item>
      <Item>
        <rasd:Connection>office</rasd:Connection>
        <rasd:ElementName>Network adapter 1</rasd:ElementName>
        <rasd:InstanceID>5</rasd:InstanceID>
        <rasd:ResourceSubType>VmxNet3</rasd:ResourceSubType>
        <rasd:ResourceType>10</rasd:ResourceType>
      </Item>
      <Item>
        <rasd:ElementName>SATA controller</rasd:ElementName>
        <rasd:InstanceID>6</rasd:InstanceID>
        <rasd:ResourceType>20</rasd:ResourceType>
      </Item>
      <Item>
        <rasd:ElementName>CD drive</rasd:ElementName>
        <rasd:InstanceID>7</rasd:InstanceID>
        <rasd:ResourceType>15</rasd:ResourceType>
      </Item>
      <vmw:Config ovf:required="false" vmw:key="firmware" vmw:value="efi"/>
      <vmw:ExtraConfig ovf:required="false" vmw:key="pciPassthru0.vgpu" vmw:value="nvidia_a100-8c"/>
    </VirtualHardwareSection>
  </VirtualSystem>
</Envelope>
"""
XE_VM = f"""uuid ( RO)                          : {UUID}
                    name-label ( RW): desk-3
              name-description ( RW): a desktop
                  is-a-template ( RW): false
                  is-a-snapshot ( RO): false
             is-control-domain ( RO): false
                   power-state ( RO): halted
             memory-static-max ( RW): 8589934592
            memory-dynamic-max ( RW): 8589934592
                     VCPUs-max ( RW): 4
               HVM-boot-params (MRW): firmware: uefi; order: cdn
                      platform (MRW): timeoffset: 0; vga: std; nx: true; acpi: 1; viridian: true;
                                       secureboot: false
            allowed-operations (SRO): changing_dynamic_range; migrate_send; \\
                                       start
                    os-version (MRO): name: Microsoft Windows 10 Pro; distro: windows; major: 10


"""
XE_VGPUS = f"""uuid ( RO)                     : {VGPU_UUID}
                  vm-uuid ( RO): {UUID}
            vm-name-label ( RO): desk-3
                   device ( RO): 0
           gpu-group-uuid ( RO): 6c1b7a3e-0d0f-4e56-8d5a-2a1b3c4d5e03
     gpu-group-name-label ( RO): Group of NVIDIA Corporation GA100 GPUs
       currently-attached ( RO): false
                type-uuid ( RO): 7d2c8b4f-1e10-4f67-9e6b-3b2c4d5e6f04
          type-model-name ( RO): GRID A100-4C
              resident-on ( RO): <not in database>


"""
XE_VIFS = f"""uuid ( RO)                     : 8e3d9c50-2f21-4078-8f7c-4c3d5e6f7a05
                  vm-uuid ( RO): {UUID}
                   device ( RO): 0
                      MAC ( RO): 5a:11:22:33:44:55
       network-name-label ( RO): Pool-wide network
"""
XE_GROUP = """uuid ( RO)                    : 6c1b7a3e-0d0f-4e56-8d5a-2a1b3c4d5e03
              name-label ( RW): Group of NVIDIA Corporation GA100 GPUs
    allocation-algorithm ( RW): breadth-first
"""
PROXMOX = """# desktop of the CAD team
agent: 1
args: -cpu host,hidden=1 -device vfio-pci,host=01:00.0
balloon: 0
bios: ovmf
boot: order=scsi0;ide2
cores: 4
cpu: host
efidisk0: local-lvm:vm-101-disk-0,efitype=4m,pre-enrolled-keys=1,size=4M
hostpci0: 0000:01:00.4,mdev=nvidia-468,pcie=1
ide2: local:iso/debian-13.iso,media=cdrom,size=700M
memory: 8192
meta: creation-qemu=9.0.2,ctime=1730000000
name: desk-4
net0: virtio=BC:24:11:AA:BB:01,bridge=vmbr0,firewall=1,tag=30
onboot: 1
ostype: win11
scsi0: local-lvm:vm-101-disk-1,discard=on,size=64G
scsi1: local:101/vm-101-disk-2.qcow2,size=10G
scsihw: virtio-scsi-single
sockets: 2
tpmstate0: local-lvm:vm-101-disk-3,size=4M,version=v2.0
unused0: local-lvm:vm-101-disk-9

[before-upgrade]
cores: 1
memory: 512
name: old
hostpci0: 0000:01:00.0
"""
PROXMOX_MAPPING = """a40
\tdescription two nodes
\tmap id=10de:2235,iommugroup=12,node=pve1,path=0000:01:00.0,subsystem-id=10de:145a
\tmap id=10de:2235,iommugroup=40,node=pve2,path=0000:81:00.0;0000:81:00.1,subsystem-id=10de:145a
\tmdev 1

# a network card
nic
\tmap id=15b3:1017,iommugroup=7,node=pve1,path=0000:3b:00.0,subsystem-id=15b3:0007
"""
DOMAIN = f"""<domain type='kvm' xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>
  <name>desk-5</name>
  <uuid>{UUID}</uuid>
  <metadata>
    <libosinfo:libosinfo xmlns:libosinfo="http://libosinfo.org/xmlns/libvirt/domain/1.0">
      <libosinfo:os id="http://debian.org/debian/12"/>
    </libosinfo:libosinfo>
  </metadata>
  <memory unit='KiB'>8388608</memory>
  <vcpu placement='static'>4</vcpu>
  <os>
    <type arch='x86_64' machine='pc-q35-8.2'>hvm</type>
    <loader readonly='yes' type='pflash'>/usr/share/OVMF/OVMF_CODE.fd</loader>
    <nvram>/var/lib/libvirt/qemu/nvram/desk-5_VARS.fd</nvram>
  </os>
  <cputune>
    <vcpupin vcpu='0' cpuset='4'/>
  </cputune>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <disk type='file' device='disk'>
      <driver name='qemu' type='qcow2'/>
      <source file='/var/lib/libvirt/images/desk-5.qcow2'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <disk type='block' device='disk'>
      <source dev='/dev/vg0/desk-5-data'/>
      <target dev='vdb' bus='virtio'/>
    </disk>
    <disk type='network' device='disk'>
      <source protocol='rbd' name='pool/desk-5'/>
      <target dev='vdc' bus='virtio'/>
    </disk>
    <disk type='file' device='cdrom'>
      <source file='/srv/iso/debian.iso'/>
      <target dev='sda' bus='sata'/>
    </disk>
    <interface type='bridge'>
      <mac address='52:54:00:aa:bb:05'/>
      <source bridge='br0'/>
      <vlan><tag id='30'/></vlan>
      <model type='virtio'/>
    </interface>
    <filesystem type='mount'>
      <source dir='/home/share'/>
      <target dir='share'/>
    </filesystem>
    <hostdev mode='subsystem' type='mdev' model='vfio-pci'>
      <source><address uuid='{VGPU_UUID}'/></source>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0x0000' bus='0x65' slot='0x00' function='0x0'/></source>
    </hostdev>
    <hostdev mode='subsystem' type='pci' managed='yes'>
      <source><address domain='0x0000' bus='0x65' slot='0x00' function='0x1'/></source>
    </hostdev>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-snapshot'/>
  </qemu:commandline>
</domain>
"""
ESXCLI = """   Default Graphics Type: SharedPassthru
   Shared Passthru Assignment Policy: Consolidation

0000:af:00.0
   Vendor Name: NVIDIA Corporation
   Device Name: GA100 [A100 PCIe 40GB]
   Module Name: nvidia
   Graphics Type: SharedPassthru
   VGPU Mode: MixedSize
   Memory Size in KB: 41943040

Name                   Type    Value                      Description
---------------------  ------  -------------------------  -----------
NVreg_RegistryDwords   string  RmPVMRL=0x00020001         Registry dwords
"""
FORMATS = {
    "vmx": VMX, "ovf": OVF, "xe": XE_VM + XE_VGPUS, "proxmox": PROXMOX, "libvirt": DOMAIN, "esxcli": ESXCLI,
    "mapping": PROXMOX_MAPPING,
}  # fmt: skip
"""A file of each format."""
DESCRIPTOR = """# Disk DescriptorFile
version=1
CID=fffffffe
parentCID=ffffffff
createType="monolithicFlat"

# Extent description
RW 83886080 FLAT "{extent}" 0

# The Disk Data Base
ddb.adapterType = "lsilogic"
"""


def sparse_vmdk(descriptor: str = "") -> bytes:
    """Return the beginning of a sparse VMDK with a descriptor in it."""
    header = struct.pack("<4sIIQQQQ", b"KDMV", 1, 3, 0, 128, 1 if descriptor else 0, 20)
    return header.ljust(512, b"\0") + descriptor.encode().ljust(512 * 20, b"\0")


def qcow2(backing: bytes = b"", version: int = 3, features: int = 0) -> bytes:
    """Return the beginning of a qcow2, with a backing file if it has a name."""
    offset = 512 if backing else 0
    header = struct.pack(">4sIQI52xQ", b"QFI\xfb", version, offset, len(backing), features)
    return header.ljust(512, b"\0") + backing.ljust(512, b"\0")


def write_ova(
    path: Path, *members: tuple[str | tarfile.TarInfo, bytes] | tarfile.TarInfo, form: int = tarfile.USTAR_FORMAT
) -> Path:
    """Write an OVA with these members: names and contents, or headers."""
    with tarfile.open(path, "w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = member[0] if isinstance(member[0], tarfile.TarInfo) else tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def header(kind: bytes, *records: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return an extended header of a tar with these records, `KEY=VALUE`: a member for `write_ova`."""
    content = "".join(map(_record, records)).encode()
    info = tarfile.TarInfo("././@PaxHeader")
    info.type, info.size = kind, len(content)
    return info, content


def _record(text: str) -> str:
    length = next(size for size in range(len(text), len(text) + 9) if len(f"{size} {text}\n") == size)
    return f"{length} {text}\n"


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    """Return the header of a link, or of another member that is no file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info
