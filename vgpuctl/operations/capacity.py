# SPDX-License-Identifier: Apache-2.0
"""What a VM, or this host, is as a node of Kubernetes: in the words of NVIDIA's device plugin and feature discovery.

The labels are those that GPU feature discovery gives a node (NVIDIA/k8s-device-plugin, docs/gpu-feature-discovery), as
far as the host knows them: in the node itself it may find more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vgpuctl.config.vm_request import request_of_record
from vgpuctl.domain.guest_setup import config_name, device_plugin_config, node_labels
from vgpuctl.errors import HostCannot
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.guest_sharing import GuestSharing, SharingMethod
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.jobs import CapacityResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu, Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.guards import find_vm

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+", re.ASCII)
_MAX_LABEL = 63
_RESOURCE, _SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"


def capacity_of(host: Host, name: str | None) -> QueryResult[CapacityResult]:
    """Return what a VM is as a node; None: this host.

    Raises:
        NotFound: there is no such VM.
        HostCannot: it has no GPU of NVIDIA's, for which these words are.
    """
    snapshot = observe(host, ReadScope())
    if name is None:
        return QueryResult(_of_host(snapshot), snapshot.warnings, notes=_host_notes(snapshot))
    return QueryResult(_of_vm(snapshot, find_vm(snapshot, name)), snapshot.warnings)


def _of_vm(snapshot: Snapshot, vm: Vm) -> CapacityResult:
    vgpus = () if vm.record is None else vm.record.vgpus
    pairs = [(vgpu, gpu) for vgpu in vgpus if (gpu := snapshot.gpu(vgpu.gpu)) is not None and maker_of(gpu).has_nvml]
    _require_nvidia([gpu for _, gpu in pairs], f"VM {vm.name}")
    recorded = None if vm.record is None else request_of_record(vm.record.request_fields).guest_sharing
    sharing = recorded if recorded is not None and recorded.replicas else None
    labels = _labels(sharing, [_product(vgpu, gpu) for vgpu, gpu in pairs])
    sizes = {vgpu.framebuffer_mib or gpu.framebuffer_mib for vgpu, gpu in pairs}
    if len(sizes) == 1 and (size := sizes.pop()) is not None:
        labels["nvidia.com/gpu.memory"] = str(size)
    if any(vgpu.profile is not None for vgpu, _ in pairs):
        labels["nvidia.com/vgpu.present"] = "true"
        if snapshot.nvml.driver_version is not None:
            labels["nvidia.com/vgpu.host-driver-version"] = _label(snapshot.nvml.driver_version)
    return CapacityResult(vm.name, labels, _resources(sharing, len(pairs)), device_plugin_config(sharing))


def _of_host(snapshot: Snapshot) -> CapacityResult:
    gpus = [gpu for gpu in snapshot.gpus if gpu.is_display_class]
    _require_nvidia(gpus, "this host")
    gpus = [gpu for gpu in gpus if maker_of(gpu).has_nvml]
    instances = Counter(
        f"nvidia.com/mig-{profile.name.lower().replace('+', '.')}"
        for gpu in gpus
        if gpu.mig is not None and gpu.mig.enabled
        for instance in gpu.mig.instances
        if (profile := gpu.mig.find_profile(instance.profile_id)) is not None and profile.name
    )
    whole = [gpu for gpu in gpus if gpu.mig is None or not gpu.mig.enabled]
    labels = _labels(None, [gpu.model for gpu in gpus])
    if instances:
        labels["nvidia.com/mig.strategy"] = "mixed"
        labels["nvidia.com/device-plugin.config"] = config_name(None, has_mig=True)
    resources = {**_resources(None, len(whole)), **instances}
    return CapacityResult(None, labels, resources, device_plugin_config(None, has_mig=bool(instances)))


def _host_notes(snapshot: Snapshot) -> tuple[str, ...]:
    """Return which GPUs this host's own pods cannot have as they are set up now."""
    kept = [gpu for gpu in snapshot.gpus if gpu.is_display_class and gpu.mode is not GpuMode.UNMANAGED]
    if not kept:
        return ()
    addresses = ", ".join(gpu.address for gpu in kept)
    return (f"{addresses}: set up for VMs, so pods of this host cannot have them: a device plugin belongs into guests",)


def _require_nvidia(gpus: Sequence[Gpu], what: str) -> None:
    if not any(maker_of(gpu).has_nvml for gpu in gpus):
        raise HostCannot(
            f"{what} has no GPU of NVIDIA: other makers' device plugins use other resource names",
            hint="vgpuctl list-vms; vgpuctl list-gpus",
            check="capacity",
        )


def _product(vgpu: AssignedVgpu, gpu: Gpu) -> str:
    return gpu.model if vgpu.profile is None else f"NVIDIA {vgpu.profile}"


def _labels(sharing: GuestSharing | None, products: Sequence[str]) -> dict[str, str]:
    """Return the labels that say how many GPUs there are, which, and how they are shared."""
    labels = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.count": str(len(products)),
        "nvidia.com/gpu.product": _label(Counter(products).most_common(1)[0][0]),
        "nvidia.com/gpu.replicas": str(1 if sharing is None else sharing.replicas),
        "nvidia.com/gpu.sharing-strategy": "none" if sharing is None else str(sharing.method),
    }
    if sharing is not None:
        labels |= {key: value for key, _, value in (label.partition("=") for label in node_labels(sharing))}
        labels["nvidia.com/device-plugin.config"] = config_name(sharing)
        labels["nvidia.com/mps.capable"] = str(sharing.method is SharingMethod.MPS).lower()
    return labels


def _label(text: str) -> str:
    """Return a text as the value of a label: at most 63 letters, digits, `.`, `_` and `-`."""
    return _NO_LABEL.sub("-", text)[:_MAX_LABEL].strip("-._")


def _resources(sharing: GuestSharing | None, gpus: int) -> dict[str, int]:
    if sharing is None or sharing.replicas is None:
        return {_RESOURCE: gpus} if gpus else {}
    return {_SHARED: gpus * sharing.replicas}
