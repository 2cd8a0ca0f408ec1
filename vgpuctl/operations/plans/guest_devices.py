# SPDX-License-Identifier: Apache-2.0
"""What a VM's network cards, huge pages, pinned CPUs and display need from the host, checked before the first write.

libvirt accepts most of it in a definition and refuses it only when the VM starts. It applies a VLAN to a Linux bridge
since 11.0, and only where the bridge filters VLANs; elsewhere a start fails, or the guest's packets are not tagged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.backends import backend_for
from vgpuctl.config.arguments import CPU_PIN_AUTO, HUGEPAGES_KIB, NONE, WINDOWS_11
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse, InvalidInput
from vgpuctl.makers import maker_of
from vgpuctl.model.names import parse_profile_name
from vgpuctl.model.numbers import format_mib, format_ranges, format_version, parse_ranges
from vgpuctl.model.port_values import HypervisorCapabilities, NetworkInfo
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Nic
from vgpuctl.value import EMPTY_MAPPING, Value

LINUX_BRIDGE_VLAN_SINCE = 11_000_000
_NUMBER_LIMIT = 8192


class BridgeInfo(Value):
    """A network interface of the host that is used as a bridge. `is_linux_bridge` False: another kind of interface."""

    name: str
    is_linux_bridge: bool
    filters_vlans: bool = False


class HugepagePool(Value):
    """The huge pages of one size on one NUMA node: how many are free, and how many there are."""

    node: int
    size_kib: int
    free: int
    total: int


class HostTopology(Value):
    """The CPUs of the host, its NUMA nodes with their CPUs, and its huge pages."""

    online_cpus: frozenset[int] = frozenset()
    node_cpus: Mapping[int, frozenset[int]] = EMPTY_MAPPING
    hugepages: tuple[HugepagePool, ...] = ()


class Pins(Value):
    """The CPUs that a guest runs on and the NUMA nodes of its memory, as lists; both empty: any."""

    cpus: str = ""
    nodes: str = ""


class GuestHost(Value):
    """What the host offers to a request: its networks and bridges by name, None for one that is missing."""

    networks: Mapping[str, NetworkInfo | None] = EMPTY_MAPPING
    bridges: Mapping[str, BridgeInfo | None] = EMPTY_MAPPING
    topology: HostTopology = HostTopology()


def default_nic_model(os: str) -> str:
    """Return the model of a network card that a request leaves open: Windows has no driver for virtio."""
    return "e1000e" if os == WINDOWS_11 else "virtio"


# ------------------------------------------------------------------------------------------------------ network cards


def check_nics(snapshot: Snapshot, nics: Sequence[Nic], offered: GuestHost, *, own_uuid: str | None = None) -> None:
    """Check the network cards of a VM; `own_uuid`: of a VM that exists.

    Raises:
        HostCannot: a network or bridge is missing or not usable.
        InUse: another VM has the MAC address.
    """
    for nic in nics:
        if nic.network is not None:
            _check_network(nic.network, offered.networks.get(nic.network))
        if nic.bridge is not None:
            _check_bridge(snapshot, nic, offered.bridges.get(nic.bridge))
        users = [vm for vm in snapshot.vms if nic.mac in vm.mac_addresses and vm.uuid != own_uuid]
        if nic.mac is not None and users:
            raise InUse(
                f"the MAC address {nic.mac} belongs to a network card of VM {users[0].name}",
                hint="choose another one, or omit mac=: libvirt then chooses one",
                mac=nic.mac,
                vm=users[0].name,
            )


def _check_network(name: str, network: NetworkInfo | None) -> None:
    if network is None:
        raise HostCannot(
            f"libvirt has no network '{name}'",
            hint="virsh net-list --all shows the networks; choose one with --network, or a bridge with "
            "--network bridge=NAME",
            check="network",
            network=name,
        )
    if not network.active:
        raise HostCannot(
            f"the network '{name}' is not active", hint=f"virsh net-start {name}", check="network", network=name
        )


def _check_bridge(snapshot: Snapshot, nic: Nic, bridge: BridgeInfo | None) -> None:
    name = str(nic.bridge)
    if bridge is None:
        raise HostCannot(
            f"this host has no bridge '{name}'",
            hint="ip link show type bridge shows the bridges; choose one with --network bridge=NAME",
            check="bridge",
            bridge=name,
        )
    if not bridge.is_linux_bridge:
        raise HostCannot(
            f"'{name}' is a network interface, but not a Linux bridge",
            hint="ip link show type bridge shows the bridges. For Open vSwitch define a libvirt network with "
            "<virtualport type='openvswitch'/>, and choose it with --network NAME",
            check="bridge",
            bridge=name,
        )
    if nic.vlan is None:
        return
    version = snapshot.hypervisor.libvirt_version or 0
    is_old, own_bridge = version < LINUX_BRIDGE_VLAN_SINCE, f"{name}.{nic.vlan}"
    problems = [f"libvirt is {format_version(version)} (11.0 is needed)"] if is_old else []
    problems += [] if bridge.filters_vlans else ["the bridge does not filter VLANs"]
    if problems:
        filtering = f"ip link set {name} type bridge vlan_filtering 1; it affects every device on the bridge"
        separate = (
            f"make a bridge with the VLAN's own interface ({own_bridge}) as its port, and choose it without a VLAN"
        )
        raise HostCannot(
            f"VLAN {nic.vlan} does not work on the Linux bridge '{name}' here: {', and '.join(problems)}",
            hint=separate if is_old else filtering,
            check="vlan",
            bridge=name,
            vlan=nic.vlan,
        )


# --------------------------------------------------------------------------------------------------- CPUs and memory


def resolve_pins(snapshot: Snapshot, cpu_pin: str, vgpus: Sequence[AssignedVgpu], topology: HostTopology) -> Pins:
    """Return the CPUs and the memory's NUMA nodes for a VM with these vGPUs.

    Raises:
        HostCannot: the GPU's NUMA node, or its CPUs, are not known.
        InvalidInput: a CPU of the list is missing or offline.
    """
    if cpu_pin == NONE:
        return Pins()
    if cpu_pin != CPU_PIN_AUTO:
        cpus = parse_ranges(cpu_pin, _NUMBER_LIMIT)
        missing = cpus - topology.online_cpus
        if missing:
            raise InvalidInput(
                f"--cpu-pin {cpu_pin}: CPU {format_ranges(missing)} does not exist or is not online; online: "
                f"{format_ranges(topology.online_cpus) or 'not known'}",
                hint="lscpu --extended shows the CPUs and their NUMA nodes",
                cpus=format_ranges(missing),
            )
        return Pins(cpu_pin, format_ranges(n for n, members in topology.node_cpus.items() if members & cpus))
    nodes = {_node_of(snapshot, vgpu.gpu, topology) for vgpu in vgpus}
    cpus = frozenset[int]().union(*(topology.node_cpus.get(n, frozenset()) for n in nodes)) & topology.online_cpus
    if not cpus:
        raise HostCannot(
            f"NUMA node {format_ranges(nodes)} of the GPU has no CPU that is online",
            hint="name the CPUs with --cpu-pin=CPUS; lscpu --extended shows them",
            check="numa",
        )
    return Pins(format_ranges(cpus), format_ranges(nodes))


def _node_of(snapshot: Snapshot, address: str, topology: HostTopology) -> int:
    gpu = snapshot.gpu(address)
    if gpu is not None and gpu.numa_node is not None:
        return gpu.numa_node
    if len(topology.node_cpus) == 1:
        return next(iter(topology.node_cpus))
    raise HostCannot(
        f"the kernel does not report the NUMA node of GPU {address}",
        hint="name the CPUs with --cpu-pin=CPUS; lscpu --extended shows them with their NUMA nodes",
        check="numa",
        gpu=address,
    )


def check_hugepages(memory_mib: int, size: str, nodes: str, topology: HostTopology, count: int = 1) -> None:
    """Check that `count` VMs find enough free huge pages on these NUMA nodes ("": on any).

    Raises:
        InvalidInput: the memory is no multiple of the size.
        HostCannot: too few are free; names the numbers of each node.
    """
    size_kib = HUGEPAGES_KIB.get(size)
    if not size_kib:
        return
    if memory_mib * 1024 % size_kib:
        raise InvalidInput(
            f"{format_mib(memory_mib)} of memory is not a multiple of huge pages of {size}",
            hint=f"--memory with a multiple of {size}",
        )
    wanted_nodes = parse_ranges(nodes, _NUMBER_LIMIT)
    pools = [p for p in topology.hugepages if p.size_kib == size_kib and (not nodes or p.node in wanted_nodes)]
    needed, free = memory_mib * 1024 // size_kib * count, sum(p.free for p in pools)
    if not pools:
        raise HostCannot(
            f"this host has no huge pages of {size}",
            hint="ls /sys/kernel/mm/hugepages shows the sizes",
            check="hugepages",
        )
    if free < needed:
        where = ", ".join(f"node {p.node}: {p.free} of {p.total} free" for p in pools)
        raise HostCannot(
            f"{'the VM needs' if count == 1 else f'{count} VMs need'} {needed} huge pages of {size}, and {free} are "
            f"free ({where})",
            hint=_reserve_command(pools, needed - free, bound=bool(nodes)),
            check="hugepages",
            needed=needed,
            free=free,
        )


def _reserve_command(pools: Sequence[HugepagePool], missing: int, *, bound: bool) -> str:
    name = f"hugepages/hugepages-{pools[0].size_kib}kB/nr_hugepages"
    if bound:
        most = max(pools, key=lambda p: p.free)
        return f"echo {most.total + missing} | sudo tee /sys/devices/system/node/node{most.node}/{name}"
    return f"echo {sum(p.total for p in pools) + missing} | sudo tee /sys/kernel/mm/{name}"


# ------------------------------------------------------------------------------------------------------------ display


def check_display(snapshot: Snapshot, vgpu: AssignedVgpu) -> None:
    """Check that the screen of a VM's first vGPU can be in its console.

    Raises:
        InvalidInput: this kind of device, or this profile, has no screen that QEMU could show.
        HostCannot: libvirt is too old.
    """
    display_since = backend_for(vgpu.backend).display_since
    if display_since is None:
        raise InvalidInput(
            f"--display shows the screen of a vGPU, and {vgpu.carrier} is a {vgpu.backend} device, whose screen only "
            "its own outputs show",
            hint="omit --display, and use a remote desktop in the guest",
        )
    profile = parse_profile_name(vgpu.profile or "")
    gpu = snapshot.gpu(vgpu.gpu)
    has_no_screens = gpu is not None and not maker_of(gpu).has_displays
    if has_no_screens or (profile is not None and profile.series == "C"):
        use_screens = "choose a profile of the Q, B or A series (vgpuctl list-profiles), or omit --display"
        raise InvalidInput(
            f"{vgpu.profile} has no display: a VM with --display would not start",
            hint="omit --display, and use a remote desktop in the guest" if has_no_screens else use_screens,
            profile=vgpu.profile,
        )
    version = snapshot.hypervisor.libvirt_version or 0
    if version < display_since:
        raise HostCannot(
            f"--display on {vgpu.carrier} needs libvirt {format_version(display_since)}, and this host has "
            f"{format_version(version)}",
            hint="omit --display, and use a remote desktop in the guest",
            check="display",
        )


def needs_opengl(snapshot: Snapshot, vgpu: AssignedVgpu) -> bool:
    """Return whether QEMU needs OpenGL to show a vGPU's screen: Intel's GVT-g hands it over as a dma-buf."""
    gpu = snapshot.gpu(vgpu.gpu)
    return gpu is not None and maker_of(gpu).display_needs_gl


def check_guest_devices(
    snapshot: Snapshot, request: VmRequest, vgpus: Sequence[AssignedVgpu], offered: GuestHost, count: int = 1
) -> None:
    """Check the network cards, display, CPUs and huge pages of a new VM, or of `count` of them.

    Raises:
        HostCannot, InUse, InvalidInput: as the message says.
    """
    check_nics(snapshot, request.nics, offered)
    if request.display and vgpus:
        check_display(snapshot, vgpus[0])
    pins = resolve_pins(snapshot, request.cpu_pin, vgpus, offered.topology)
    check_hugepages(request.memory_mib, request.hugepages, pins.nodes, offered.topology, count)


MIN_MEMORY_MIB = 4096
MIN_VCPUS = 2


def check_windows(request: VmRequest, capabilities: HypervisorCapabilities) -> None:
    """Refuse a Windows 11 VM that could not be installed or started; other systems pass.

    Raises:
        InvalidInput: too little memory, or too few CPUs.
        HostCannot: no firmware with secure boot and keys, or no TPM emulator.
    """
    if request.os != WINDOWS_11:
        return
    if not capabilities.is_x86:
        raise HostCannot(
            f"a Windows 11 VM needs a host with x86_64, and this one has {capabilities.arch}",
            hint="use --os generic with an image and a template for this architecture",
            check="arch",
        )
    if request.memory_mib < MIN_MEMORY_MIB:
        raise InvalidInput(
            f"Windows 11 does not install with {format_mib(request.memory_mib)} of memory: "
            f"it needs {format_mib(MIN_MEMORY_MIB)}",
            hint="use --memory 4GiB or more",
            memory_mib=request.memory_mib,
            least_memory_mib=MIN_MEMORY_MIB,
        )
    if request.vcpus < MIN_VCPUS:
        raise InvalidInput(
            f"Windows 11 does not install with {request.vcpus} virtual CPU: it needs {MIN_VCPUS}",
            hint=f"use --vcpus {MIN_VCPUS} or more",
            vcpus=request.vcpus,
            least_vcpus=MIN_VCPUS,
        )
    if not capabilities.secure_boot:
        raise HostCannot(
            "Windows 11 needs UEFI with secure boot and Microsoft's keys enrolled, and this host has no such firmware",
            hint="apt install ovmf (Debian, Ubuntu) or dnf install edk2-ovmf (RHEL, Fedora)",
            check="uefi-secure-boot",
        )
    if not capabilities.tpm:
        raise HostCannot(
            "Windows 11 needs a TPM 2.0, and libvirt finds no TPM emulator on this host",
            hint="apt install swtpm swtpm-tools (Debian, Ubuntu) or dnf install swtpm swtpm-tools (RHEL, Fedora)",
            check="tpm",
        )


def refuse_bios_image(image: str) -> None:
    """Refuse an image that boots only with BIOS.

    Raises:
        InvalidInput: naming the image.
    """
    raise InvalidInput(
        f"{image} boots only with BIOS, and Windows 11 needs UEFI with secure boot",
        hint="convert it in the guest with mbr2gpt, or use --os generic",
        image=image,
    )
