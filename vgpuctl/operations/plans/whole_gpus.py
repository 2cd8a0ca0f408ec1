# SPDX-License-Identifier: Apache-2.0
"""What is particular to whole GPUs: which are connected, and what a VM that exists needs when it gets or loses some.

Only while it is off: the guest gives each BAR an address at its start, in a window whose size is then fixed, and a port
that is hot-plugged into gets only what QEMU reserved for it (docs/pcie_pci_bridge.txt; no element of libvirt sets it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.backends import backend_for
from vgpuctl.config.arguments import PCI_WINDOW_AUTO
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain, pci_window_of
from vgpuctl.errors import NotFound, Refused
from vgpuctl.makers import maker_of
from vgpuctl.model import hint_commands
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.numbers import count_text, format_size
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm, VmRecord
from vgpuctl.operations.plans.pci_window import DEFAULT_WINDOW_MIB, gpu_bars_mib, supports_maxphysaddr, window_mib
from vgpuctl.operations.steps.attach import RedefineDomain
from vgpuctl.ports.step import Step


def whole_functions(record: VmRecord) -> tuple[AssignedVgpu, ...]:
    """Return the functions of the whole GPUs that a VM has."""
    return tuple(v for v in record.vgpus if backend_for(v.backend).takes_whole_gpu)


def refuse_adding_gpus(vm: Vm, record: VmRecord, *, live: bool) -> None:
    """Refuse to give whole GPUs to a VM that runs or has vGPUs.

    Raises:
        Refused: with the command that changes that.
    """
    if live:
        raise Refused(
            f"{vm.name} is {vm.state}: it can get a whole GPU only while it is off, because the guest gives the GPU's"
            " memory an address when it starts",
            hint=f"stop the VM first: {hint_commands.stop_command(vm)}",
            vm=vm.name,
        )
    others = [v for v in record.vgpus if not backend_for(v.backend).takes_whole_gpu]
    if others:
        raise Refused(
            f"{vm.name} has {', '.join(v.profile or v.carrier for v in others)}: a VM has either whole GPUs, or vGPUs,"
            " or plain VFs",
            hint=f"vgpuctl detach-vgpu {vm.name}, then run the command again",
            vm=vm.name,
            carriers=[v.carrier for v in others],
        )


def select_whole_gpus(vm: Vm, record: VmRecord, gpus: Sequence[str]) -> tuple[AssignedVgpu, ...]:
    """Return all functions of these whole GPUs of a VM.

    Raises:
        NotFound: it has no such GPU.
    """
    current = whole_functions(record)
    requested = {normalize_pci(gpu) or gpu for gpu in gpus}
    unknown = sorted(requested - {v.gpu for v in current})
    if unknown:
        own = ", ".join(dict.fromkeys(v.gpu for v in current))
        raise NotFound(
            f"{vm.name} has no whole GPU {', '.join(unknown)}",
            hint=f"it has {own or 'none'}; vgpuctl show-vm {vm.name}",
            vm=vm.name,
            gpus=sorted({v.gpu for v in current}),
        )
    return tuple(v for v in current if v.gpu in requested)


def describe_record(vm: Vm, record: VmRecord) -> str:
    """Return the step of a record that has whole GPUs."""
    count = len({v.gpu for v in whole_functions(record)})
    return f"record that {vm.name} has {count_text(count, 'whole GPU') if count else 'no whole GPU'}"


def window_steps(
    snapshot: Snapshot, vm: Vm, record: VmRecord, xml: str, bars: Mapping[str, int]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the step that gives a VM a PCI window for its GPUs, if it needs a larger one, and notes.

    `record`: with the new GPUs; `bars`: of each of their functions. The definition of a VM that another program made
    stays as it is but for the devices.
    """
    wanted = window_mib(
        str(record.request_fields.get("pci_window") or PCI_WINDOW_AUTO), gpu_bars_mib(bars, record.vgpus)
    )
    current = pci_window_of(xml) or DEFAULT_WINDOW_MIB
    if wanted is None or wanted <= current:
        return (), ()
    size = format_size(wanted)
    if not record.created_vm:
        element = f"<pcihole64 unit='KiB'>{wanted << 10}</pcihole64>"
        where = f"virsh edit {vm.name}, {element} in <controller type='pci' index='0'>"
        return (), (f"its GPUs need a PCI window of {size}: {where}",)
    new_xml = edit_domain(xml, DomainEdit(pci_window=(wanted, supports_maxphysaddr(snapshot))))
    return (RedefineDomain(vm.name, vm.uuid, new_xml, xml, (f"PCI window: {size}",)),), ()


PARTITION_SIZES = (1, 2, 4, 8)
"""How many GPUs a partition of the fabric manager has on one board."""


def topology_notes(snapshot: Snapshot, vgpus: Sequence[AssignedVgpu]) -> tuple[str, ...]:
    """Return notes about the whole GPUs of a VM; none for a VM that has none."""
    addresses = dict.fromkeys(v.gpu for v in vgpus if backend_for(v.backend).takes_whole_gpu)
    gpus = [gpu for address in addresses if (gpu := snapshot.gpu(address)) is not None]
    if not gpus:
        return ()
    notes = [_nvswitch_note(snapshot, gpus)]
    if len(gpus) > 1:
        notes += [_unknown_place_note(gpus), _far_note(gpus), _nvlink_note(snapshot, gpus)]
    return tuple(note for note in notes if note)


def _nvswitch_note(snapshot: Snapshot, gpus: Sequence[Gpu]) -> str:
    if not snapshot.nvswitches or not any(maker_of(gpu).has_nvml for gpu in gpus):
        return ""
    count = len(gpus)
    switches = f"{len(snapshot.nvswitches)} NVSwitch{'es' if len(snapshot.nvswitches) > 1 else ''}"
    if count not in PARTITION_SIZES:
        return (
            f"{count} GPUs of a board with {switches}: its fabric manager has only partitions of 1, 2, 4 and 8 GPUs, so"
            f" NVLink will not work among these {count}"
        )
    if count == 1:
        return (
            f"the board has {switches}: one of its GPUs works alone if it is a partition of the fabric manager, or with"
            " its NVLinks off"
        )
    return (
        f"the board has {switches}: CUDA and NVLink work in the VM only if its GPUs are a partition that the fabric "
        "manager has activated (by the Module ID of 'nvidia-smi -q', not readable while vfio-pci has the GPUs),"
        " or if the VM has the whole board with the NVSwitches"
    )


def _unknown_place_note(gpus: Sequence[Gpu]) -> str:
    unknown = [gpu.address for gpu in gpus if gpu.numa_node is None or not gpu.pci_path]
    if not unknown:
        return ""
    return (
        f"the kernel does not report where {', '.join(unknown)} is (NUMA node, PCIe switch): it may be far from the"
        " others"
    )


def _far_note(gpus: Sequence[Gpu]) -> str:
    nodes = sorted({gpu.numa_node for gpu in gpus if gpu.numa_node is not None})
    if len(nodes) < 2:
        return ""
    return f"the GPUs are on NUMA nodes {', '.join(map(str, nodes))}: what they exchange over PCIe crosses CPU sockets"


def _nvlink_note(snapshot: Snapshot, gpus: Sequence[Gpu]) -> str:
    unknown = [gpu for gpu in gpus if maker_of(gpu).has_nvml and gpu.nvlink_peers is None]
    if not unknown or snapshot.nvswitches:
        return ""
    return (
        "whether NVLink connects these GPUs is not known: only NVIDIA's driver can tell, and it does not have all of"
        " them"
    )
