# SPDX-License-Identifier: Apache-2.0
"""Settings of host.yaml that a GPU lacks after a boot, before restore-host.

The driver changes the scheduler, MIG and mixed sizes only on a GPU without vGPUs. A vGPU that is created before them
would run without them, and then block restore-host until its VM is drained. So nothing new is placed there, and no
room is shown. The scheduler counts only if VMs have places on the GPU whose vGPUs are all missing, as after a boot:
otherwise host.yaml may be ahead of the driver, where only its next load sets the scheduler. libvirt's hook has no
NVML, so it does not know these settings: it creates the vGPU as the driver is.
"""

from __future__ import annotations

from vgpuctl.errors import HostCannot
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.scheduler.limits import explain_unsupported, running_scheduler, satisfies, scheduler_text


def unapplied_settings(snapshot: Snapshot, gpu: Gpu) -> list[str]:
    """Return a sentence for each setting that a GPU without vGPUs lacks and that restore-host would set now."""
    on_gpu = snapshot.vgpus_on(gpu.address)
    if any(v.present for v in on_gpu):
        return []
    return _differences(gpu, lost_vgpus=any(v.needs_device for v in on_gpu))


def unapplied_error(gpu: Gpu, differences: list[str]) -> HostCannot:
    """Return the refusal to create the first vGPU on such a GPU."""
    return HostCannot(
        f"{gpu.address} is not set up as host.yaml says: {'; '.join(differences)}; the driver changes this only on "
        "a GPU without vGPUs, and it has none now",
        hint="vgpuctl restore-host sets it up and creates the recorded vGPUs; then run the command again",
        check="gpu-settings",
        gpu=gpu.address,
    )


def _differences(gpu: Gpu, *, lost_vgpus: bool) -> list[str]:
    """Return a sentence for each setting that is known to differ and that restore-host can set.

    `lost_vgpus`: VMs have places on it, and their vGPUs do not exist.
    """
    if gpu.desired_mode not in (None, GpuMode.VGPU):
        return []
    differences = []
    if gpu.mig is not None and gpu.desired_mig is not None and gpu.mig.enabled is not gpu.desired_mig.is_requested:
        differences.append(f"MIG is {_on_or_off(gpu.mig.enabled)}, not {_on_or_off(gpu.desired_mig.is_requested)}")
    if None not in (gpu.mixed_size, gpu.desired_mixed_size) and gpu.mixed_size is not gpu.desired_mixed_size:
        differences.append(f"mixed sizes are {_on_or_off(gpu.mixed_size)}, not {_on_or_off(gpu.desired_mixed_size)}")
    desired, state = gpu.desired_scheduler, running_scheduler(gpu)
    if not lost_vgpus or desired is None or state is None:
        return differences
    if gpu.scheduler is None or not gpu.scheduler.setter_versions:
        return differences
    if not satisfies(state, desired) and explain_unsupported(gpu, None, desired) is None:
        differences.append(f"the scheduler is {state.policy or 'not known'}, not {scheduler_text(desired)}")
    return differences


def _on_or_off(enabled: bool | None) -> str:
    return "on" if enabled else "off"
