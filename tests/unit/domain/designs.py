# SPDX-License-Identifier: Apache-2.0
"""The three designs of the golden files, and a strategy for any other."""

from __future__ import annotations

from hypothesis import strategies as st

from vgpuctl.config.arguments import HUGEPAGES_KIB
from vgpuctl.model.desktop import MAX_COUNT, DesktopMark
from vgpuctl.model.gpu import Backend
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.request import DesignDisk, DesignHostdev, DomainDesign
from vgpuctl.model.vm import AssignedVgpu, DiskRole, ManagedDisk, Nic, RecordState, VmRecord
from vgpuctl.value import replace

MACHINE = "5f0d6b5ae3d94b7e8c2f4a1b9d7e6c30"
UUID = "4b20d080-1b54-4048-85b3-a6a62d165c01"
MDEV = "0d9a1a3e-52c4-5c8e-9b6f-0f3c5d7e9a11"
QEMU = "/usr/bin/qemu-system-x86_64"
SPEC = '{"profile":["A100-4C"]}'


def vendor_vf() -> DomainDesign:
    vgpu = AssignedVgpu(
        0, Backend.VENDOR_VF, "0000:3b:00.0", "0000:3b:00.4", "0000:3b:00.4", "A100-4C", 4096, "frame_rate_limiter=0"
    )
    disk = ManagedDisk("default", "vdi-1-4b20d080.qcow2", "/var/lib/libvirt/images/vdi-1-4b20d080.qcow2", 40 << 30)
    return DomainDesign(
        name="vdi-1",
        uuid=UUID,
        memory_mib=8192,
        vcpus=4,
        kvm=True,
        emulator=QEMU,
        firmware="uefi",
        disks=(DesignDisk("disk", disk.path, "qcow2"),),
        nics=(Nic(network="default", model="virtio"),),
        hostdevs=(DesignHostdev("pci", "0000:3b:00.4", False, "ua-vgpuctl-0"),),
        hotplug_slots=4,
        boot=("hd",),
        record=VmRecord(RecordState.CREATING, UUID, MACHINE, (vgpu,), (disk,), SPEC),
    )


def mdev() -> DomainDesign:
    vgpu = AssignedVgpu(0, Backend.MDEV_PF, "0000:41:00.0", "0000:41:00.0", MDEV, "T4-4Q", 4096)
    return DomainDesign(
        name="vdi-2",
        uuid=UUID,
        memory_mib=4096,
        vcpus=2,
        kvm=False,
        emulator=QEMU,
        firmware="bios",
        disks=(
            DesignDisk("disk", "/dev/vg0/vdi-2", "raw"),
            DesignDisk("cdrom", "/srv/iso/debian & more.iso", "raw"),
        ),
        nics=(Nic(network="desktops", model="virtio"),),
        hostdevs=(DesignHostdev("mdev", MDEV, False, "ua-vgpuctl-0"),),
        hotplug_slots=0,
        boot=("cdrom", "hd", "network"),
        record=VmRecord(RecordState.CREATING, UUID, MACHINE, (vgpu,), (), '{"profile":["T4-4Q"]}'),
    )


def passthrough() -> DomainDesign:
    gpu, audio = "0000:65:00.0", "0000:65:00.1"
    vgpu = AssignedVgpu(0, Backend.PASSTHROUGH, gpu, gpu, gpu, None)
    return DomainDesign(
        name="render.1",
        uuid=UUID,
        memory_mib=65536,
        vcpus=16,
        kvm=True,
        emulator=QEMU,
        firmware="uefi",
        disks=(
            DesignDisk("disk", "/var/lib/libvirt/images/a.qcow2", "qcow2"),
            DesignDisk("disk", "/var/lib/libvirt/images/b.qcow2", "qcow2"),
        ),
        nics=(Nic(network="default", model="virtio"),),
        hostdevs=(
            DesignHostdev("pci", gpu, True, "ua-vgpuctl-0"),
            DesignHostdev("pci", audio, True, "ua-vgpuctl-0-1"),
        ),
        hotplug_slots=2,
        boot=("hd", "network"),
        record=VmRecord(RecordState.READY, UUID, MACHINE, (vgpu,), (), '{"mode":"passthrough"}'),
        pci_window_mib=256 << 10,
        host_width=True,
    )


def windows11() -> DomainDesign:
    iso = DesignDisk("cdrom", "/srv/iso/windows-11.iso", "raw")
    made = vendor_vf()
    nics = (Nic(network="default", model="e1000e"),)
    return replace(made, name="win-1", os="windows11", nics=nics, disks=(*made.disks, iso), boot=("cdrom", "hd"))


def all_devices() -> DomainDesign:
    """Two network cards, pinned CPUs, huge pages, and the screens of the vGPU in the console."""
    made = mdev()
    shown = replace(made.hostdevs[0], display=True)
    second = DesignHostdev("mdev", MDEV[:-1] + "2", False, "ua-vgpuctl-1")
    return replace(
        made,
        nics=(
            Nic(network="lan", model="e1000e", mac="52:54:00:12:34:56"),
            Nic(bridge="br0", vlan=30, model="virtio"),
        ),
        hostdevs=(shown, second),
        pinned_cpus="8-15,24-31",
        memory_nodes="1",
        settings=(("hugepages", "2MiB"),),
        display_needs_gl=True,
    )


GOLDEN = {"vendor-vf": vendor_vf, "mdev": mdev, "passthrough": passthrough}

text = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"), max_size=20)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", fullmatch=True)
uuids = st.uuids().map(str)
addresses = st.builds(
    lambda d, b, s, f: f"{d:04x}:{b:02x}:{s:02x}.{f}",
    st.integers(0, 0xFFFF), st.integers(0, 255), st.integers(0, 31), st.integers(0, 7),
)  # fmt: skip
paths = text.map(lambda rest: "/" + rest.strip() + "x")

assigned = st.builds(
    AssignedVgpu,
    index=st.integers(0, 15),
    backend=st.sampled_from(Backend),
    gpu=text,
    function=text,
    carrier=text,
    profile=st.none() | text,
    framebuffer_mib=st.none() | st.integers(0, 10**6),
    params=text,
    placement_id=st.none() | st.integers(0, 95),
)
made = st.builds(
    ManagedDisk,
    pool=text,
    volume=text,
    path=text,
    capacity_bytes=st.integers(0, 2**55),
    base=st.none() | text,
    base_format=st.none() | text,
    role=st.sampled_from(DiskRole),
)
names_of_people = st.text(
    st.characters(exclude_categories=("C", "Z"), exclude_characters="\ufffe\uffff"), min_size=1, max_size=255
)
marks = st.builds(
    DesktopMark,
    id=st.just(UUID),
    pool=names_of_people,
    incarnation=names_of_people,
    generation=st.integers(0, MAX_COUNT),
    dirty=st.booleans(),
    user=st.none() | names_of_people,
)
SETTLED = [state for state in RecordState if state is not RecordState.MOVING]
"""The states of records without a move."""
moves = st.builds(
    MigrationMark,
    id=text,
    role=st.sampled_from(MigrationRole),
    peer=text,
    peer_machine_id=text,
    copies_disks=st.booleans(),
    is_offline=st.booleans(),
)
records = st.builds(
    VmRecord,
    state=st.sampled_from(SETTLED),
    vm_uuid=text,
    machine_id=text,
    vgpus=st.lists(assigned, max_size=3).map(tuple),
    disks=st.lists(made, max_size=3).map(tuple),
    request_json=text,
    reserve=text,
) | marks.map(lambda mark: VmRecord(RecordState.READY, UUID, MACHINE, (), (), "{}", desktop=mark))
records |= moves.map(lambda move: VmRecord(RecordState.MOVING, UUID, MACHINE, (), (), "{}", migration=move))


models = st.sampled_from(("virtio", "e1000e"))
macs = st.none() | st.integers(0, 255).map(lambda number: f"52:54:00:00:00:{number:02x}")
nics = st.builds(Nic, network=text.map(lambda rest: rest.replace("/", "") + "n"), model=models, mac=macs) | st.builds(
    Nic, bridge=st.just("br0"), vlan=st.none() | st.integers(1, 4094), model=models, mac=macs
)


@st.composite
def designs(draw: st.DrawFn) -> DomainDesign:
    """Any design: hosts' names and paths with XML's special characters, several devices."""
    uuid = draw(uuids)
    disk_paths = draw(st.lists(paths, max_size=4, unique=True))
    carriers = draw(st.lists(addresses | uuids, max_size=4, unique=True))
    hostdevs = tuple(
        DesignHostdev("pci", carrier, draw(st.booleans()), f"ua-vgpuctl-{number}")
        if ":" in carrier
        else DesignHostdev("mdev", carrier, False, f"ua-vgpuctl-{number}", draw(st.booleans()))
        for number, carrier in enumerate(carriers)
    )
    vgpus = tuple(draw(st.lists(assigned, max_size=2)))
    hugepages = draw(st.sampled_from(("none", *HUGEPAGES_KIB)))
    return DomainDesign(
        name=draw(names),
        uuid=uuid,
        memory_mib=draw(st.integers(64, 2**24)),
        vcpus=draw(st.integers(1, 512)),
        kvm=draw(st.booleans()),
        emulator=QEMU,
        firmware=draw(st.sampled_from(("uefi", "bios"))),
        disks=tuple(
            DesignDisk(draw(st.sampled_from(("disk", "cdrom"))), path, draw(st.sampled_from(("qcow2", "raw"))))
            for path in disk_paths
        ),
        nics=tuple(draw(st.lists(nics, max_size=3))),
        hostdevs=hostdevs,
        hotplug_slots=draw(st.integers(0, 16)),
        boot=draw(st.sampled_from((("hd",), ("cdrom", "hd"), ("network",), ("hd", "cdrom", "network")))),
        record=VmRecord(draw(st.sampled_from(SETTLED)), uuid, MACHINE, vgpus, (), draw(text)),
        pinned_cpus=draw(st.sampled_from(("", "3", "0-7,9"))),
        memory_nodes=draw(st.sampled_from(("", "1", "0-1"))),
        settings=(("hugepages", hugepages),) if hugepages != "none" else (),
        os=draw(st.sampled_from(("linux", "generic"))),
    )
