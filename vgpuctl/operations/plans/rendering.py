# SPDX-License-Identifier: Apache-2.0
"""Mode virtio-gpu: QEMU draws for the guest, on a GPU of the host (virgl). The guest's calls of OpenGL go to the host.

No device is taken, so any number of VMs share a GPU with the host's own programs. What QEMU needs: its OpenGL modules,
a render node, and a library that speaks to the GPU's driver (virglrenderer, Mesa).
Sources: QEMU, docs/system/devices/virtio-gpu.rst; libvirt, formatdomain (graphics egl-headless, video acceleration).
"""

from __future__ import annotations

from collections.abc import Collection

from vgpuctl.config.arguments import RENDERING_MODE, WINDOWS_11
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import HostCannot, InvalidInput, NoCapacity
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.port_values import HypervisorCapabilities
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.operations.plans.choose_whole import candidate_gpus
from vgpuctl.placement.constraints import why_restricted


def choose_render_gpu(snapshot: Snapshot, request: VmRequest, vm: str, uuid: str) -> Gpu:
    """Return the GPU on which QEMU draws for a new VM: of those allowed, the one that draws for the fewest VMs.

    One whose driver may refuse comes last.

    Raises:
        NoCapacity, NotFound: no GPU, or none that the request allows.
        HostCannot: none of them has a render node; the message has the reason for each.
    """
    gpus, _ = candidate_gpus(snapshot, request.constraints, uuid)
    reasons = {gpu.address: why for gpu in gpus if (why := _why_not(snapshot, gpu, vm)) is not None}
    usable = [gpu for gpu in gpus if gpu.address not in reasons]
    if usable:
        return min(usable, key=lambda gpu: (_why_doubtful(gpu) is not None, len(snapshot.vms_drawn_by(gpu))))
    if not gpus:
        raise NoCapacity("this host has no GPU to draw on", hint="vgpuctl list-gpus --all")
    named = "no GPU can draw for VMs" if len(gpus) > 1 else "QEMU cannot draw there"
    raise HostCannot(
        f"{named}: {'; '.join(f'{address}: {why}' for address, why in reasons.items())}",
        hint="vgpuctl list-gpus --all --columns address,driver,render-node shows the GPUs with a render node",
        check="render-node",
        gpus=sorted(reasons),
    )


def _why_not(snapshot: Snapshot, gpu: Gpu, vm: str) -> str | None:
    if gpu.render_node is None:
        return f"its driver ({gpu.driver or 'none'}) has no render node"
    whole = next((v for v in snapshot.vgpus_on(gpu.address) if v.carrier == gpu.address and v.command is None), None)
    if whole is not None:
        return f"it is taken as a whole by {whole.holder_text}"
    return why_restricted(gpu, RENDERING_MODE, vm)


def _why_doubtful(gpu: Gpu) -> str | None:
    return maker_of(gpu).drawing_problem if gpu.driver == maker_of(gpu).vgpu_driver else None


def drawing_warnings(snapshot: Snapshot, node: str | None) -> tuple[str, ...]:
    """Return why QEMU may not be able to draw through a render node; empty for none."""
    gpu = None if node is None else next((gpu for gpu in snapshot.gpus if node in gpu.render_paths), None)
    why = None if gpu is None else _why_doubtful(gpu)
    return () if gpu is None or why is None else (f"{gpu.address} ({gpu.model}): {why}",)


def new_render_node(snapshot: Snapshot, request: VmRequest, vm: str, uuid: str, links: Collection[str]) -> str | None:
    """Return the device node by which QEMU draws for a new VM, None for one that gets a GPU. `links`: udev's.

    Raises:
        VgpuctlError: as `choose_render_gpu`.
    """
    return (
        render_path(choose_render_gpu(snapshot, request, vm, uuid), links) if request.mode == RENDERING_MODE else None
    )


def render_path(gpu: Gpu, links: Collection[str]) -> str:
    """Return the path by which a definition names a GPU's render node: udev's link, which stays over boots, if any."""
    paths = gpu.render_paths
    return next((path for path in paths if path in links), paths[-1])


def check_rendering(request: VmRequest, capabilities: HypervisorCapabilities) -> None:
    """Check what mode virtio-gpu needs besides a GPU; other modes pass.

    Raises:
        InvalidInput: the guest's system has no driver for it.
        HostCannot: QEMU has no OpenGL here.
    """
    if request.mode != RENDERING_MODE:
        return
    if request.os == WINDOWS_11:
        raise InvalidInput(
            "Windows has no driver that draws through virtio-gpu: there it is a plain screen",
            hint="give it a vGPU (--profile), or a whole GPU (--mode passthrough)",
        )
    if capabilities.has_opengl is False:
        raise HostCannot(
            "QEMU cannot draw on a GPU here: libvirt reports no egl-headless",
            hint="apt-get install qemu-system-modules-opengl (on Debian 12 qemu-system-gui), then systemctl restart "
            "libvirtd, which asks QEMU again",
            check="opengl",
        )
