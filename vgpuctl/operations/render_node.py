# SPDX-License-Identifier: Apache-2.0
"""The device node by which QEMU draws for a VM of mode virtio-gpu, as it is on the host now."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InUse
from vgpuctl.model.gpu import DRI_BY_PATH, address_of_render_link
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import GPU_SETUP_CLAIM, Vm
from vgpuctl.observe.claims import reread_claims
from vgpuctl.operations.plans.rendering import choose_render_gpu, render_path
from vgpuctl.placement.constraints import allowed_addresses

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def read_render_links(host: Host) -> frozenset[str]:
    """Return the names that udev gives the nodes of GPUs by their addresses."""
    try:
        return frozenset(f"{DRI_BY_PATH}/{name}" for name in host.sysfs.listdir(DRI_BY_PATH))
    except OSError:
        return frozenset()  # no GPU has a node, or udev does not run


def refuse_unusable_node(host: Host, vm: Vm) -> None:
    """Refuse to start a VM whose GPU, on which QEMU should draw, is not there, has another driver, or is taken.

    A running VM that has the GPU leaves no node; one that just gets it has only a claim.

    Raises:
        HostCannot: naming the device node.
        InUse: naming who takes the GPU as a whole.
        FileFailed: the claims cannot be read.
    """
    if vm.render_node is None:
        return
    address = address_of_render_link(vm.render_node)
    claims = () if address is None else reread_claims(host, (address,))
    taken = next((claim for claim in claims if claim.vm != GPU_SETUP_CLAIM), None)
    if taken is not None:
        raise InUse(
            f"QEMU cannot draw on {address} for {vm.name}: {taken.holder_text} takes it as a whole",
            hint=f"vgpuctl show-gpu {address}",
            gpu=address,
            vm=vm.name,
        )
    directory, _, name = vm.render_node.rpartition("/")
    try:
        if name in host.sysfs.listdir(directory):
            return
    except OSError:
        pass  # there is no GPU with a node at all
    raise HostCannot(
        f"{vm.name} has {vm.render_node} to draw on, and this host has no such device now",
        hint=f"ls -l {directory} shows the others; to draw on another GPU: "
        f"vgpuctl set-vm {quote(vm.name)} --gpu ADDRESS",
        check="render-node",
        vm=vm.name,
        node=vm.render_node,
    )


def other_render_node(host: Host, snapshot: Snapshot, vm: Vm, request: VmRequest) -> str | None:
    """Return the node of the GPU on which QEMU draws for a VM from now on; None: on the same, or for a VM with a GPU.

    Raises:
        HostCannot, NoCapacity, NotFound: the request allows none that can.
    """
    if vm.render_node is None or snapshot.partial:
        return None
    gpu = choose_render_gpu(snapshot, request, vm.name, vm.uuid)
    allowed = [g for g in snapshot.gpus if g.address in allowed_addresses(snapshot, request.constraints)]
    if any(vm.render_node in g.render_paths for g in allowed):
        return None
    return render_path(gpu, read_render_links(host))
