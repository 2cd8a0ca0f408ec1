# SPDX-License-Identifier: Apache-2.0
"""What people must know about the links among the whole GPUs of a VM: NVSwitches, NVLink, PCIe and NUMA.

A board with NVSwitches (HGX, DGX) does not let any set of its GPUs use NVLink. NVIDIA describes two ways. Sources: the
Fabric Manager User Guide, "Full Passthrough Virtualization Model" and "Shared NVSwitch Virtualization Model"; the HGX
Shared NVSwitch GPU Passthrough Virtualization Integration Guide, WP-12736-002:

- Full passthrough: a VM gets all GPUs of the board with all its NVSwitches, or one GPU with its NVLinks off. On an A100
  board also two GPUs with one NVSwitch, or four with three.
- Shared NVSwitch: a service VM or the host keeps the NVSwitches and runs the fabric manager. It has fixed partitions of
  8, 4, 2 and 1 GPUs, and activates one before its VM starts. A partition names GPUs by physical id, which is the Module
  ID of `nvidia-smi -q`, not the order of addresses: on the guide's HGX H100 bus 0f is 5, 10 is 7, 41 is 6, 44 is 8.

While vfio-pci has the GPUs, nobody can ask for the Module ID or for the NVLinks. So these notes say what has to hold,
and nothing here guesses.
"""

from __future__ import annotations

from collections.abc import Sequence

from vgpuctl.backends import backend_for
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu

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
