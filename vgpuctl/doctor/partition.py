# SPDX-License-Identifier: Apache-2.0
"""MIG and mixed sizes: a mode that waits for a reset, instances that no vGPU can use, what host.yaml asks for.

Sources: NVML's nvmlDeviceGetMigMode (current and pending); NVIDIA's AI Enterprise administration guide, "MIG-backed
vGPUs". A bus reset under vendor-specific VFIO wedges hosts with Linux 7 and newer.
"""

from __future__ import annotations

from vgpuctl.doctor.check import (
    Check,
    Finding,
    Look,
    Needs,
    fail,
    judged_by_host,
    not_applicable,
    number_of,
    ok,
    unknown,
    warn,
)
from vgpuctl.doctor.gpus import shortened
from vgpuctl.doctor.versions import RELEASE
from vgpuctl.model.gpu import NOT_FOR_VGPUS, Backend, Gpu, Mode
from vgpuctl.model.partition import GpuInstance, Mig
from vgpuctl.model.snapshot import Snapshot

KERNEL_WITHOUT_RESET = (7,)
_NO_MIG = "no GPU here has MIG, or NVML does not tell of it"


def _mode(look: Look, snapshot: Snapshot) -> Finding:
    seen = _with_mig(snapshot)
    if not seen:
        return not_applicable(_NO_MIG)
    waiting = [(gpu, mig) for gpu, mig in seen if mig.enabled is not mig.pending]
    if not waiting:
        return ok(*shortened([f"{gpu.address}: MIG is {_on(mig.enabled)}" for gpu, mig in seen]))
    lines = [
        f"{gpu.address} ({gpu.model}): MIG is {_on(mig.enabled)}, and {_on(mig.pending)} after its next reset"
        for gpu, mig in waiting
    ]
    release = (look.file(RELEASE).text or "").strip()
    if number_of(release) >= KERNEL_WITHOUT_RESET and any(g.backend is Backend.VENDOR_VF for g in snapshot.gpus):
        return warn(
            *shortened(lines),
            f"{RELEASE}: {release}; with vendor-specific VFIO a reset hangs such a host until its power is cut",
            fix="reboot the host; never nvidia-smi --gpu-reset here",
        )
    return warn(
        *shortened(lines),
        fix="reboot the host, or stop who has the driver open (vgpuctl doctor driver-holders) and run vgpuctl set-mig"
        " again; no nvidia-smi --gpu-reset while VFs are on",
    )


def _instances(look: Look, snapshot: Snapshot) -> Finding:
    seen = [(gpu, mig) for gpu, mig in _with_mig(snapshot) if mig.enabled and gpu.desired not in NOT_FOR_VGPUS]
    if not seen:
        return not_applicable("no GPU for vGPUs has MIG on")
    none = [
        f"{gpu.address} ({gpu.model}): MIG is on, and it has no GPU instance" for gpu, mig in seen if not mig.instances
    ]
    if none:
        return fail(
            *shortened(none),
            "no vGPU can be made on it",
            fix="vgpuctl set-mig GPU PROFILE[:N]... makes GPU instances (--off turns MIG off); those of host.yaml:"
            " vgpuctl restore-host",
        )
    idle = [
        f"{gpu.address}: GPU instance {one.gi_id} ({_name(mig, one)}) has no vGPU type"
        for gpu, mig in seen
        for one in mig.instances
        if not _has_type(look, gpu, one)
    ]
    if idle:
        return warn(
            *shortened(idle),
            fix="vgpuctl set-mig GPU --for VGPU_PROFILE[:N] makes those that vGPUs need",
        )
    return ok(*shortened([f"{gpu.address}: {len(mig.instances)} GPU instances" for gpu, mig in seen]))


def _has_type(look: Look, gpu: Gpu, instance: GpuInstance) -> bool:
    """Say whether a vGPU can be in an instance; where no type tells its instance, that is not known."""
    known = {t.gi_profile_id for t in look.instance_types.get(gpu.address, ())} - {None}
    return not known or instance.profile_id in known


def _name(mig: Mig, instance: GpuInstance) -> str:
    profile = mig.profile(instance.profile_id)
    return profile.name if profile is not None else f"profile {instance.profile_id}"


def _as_asked(look: Look, snapshot: Snapshot) -> Finding:
    if snapshot.host_file_problem is not None:
        return unknown(snapshot.host_file_problem)
    asking = [g for g in snapshot.gpus if _asks(g)]
    if not asking:
        return not_applicable("host.yaml asks for neither MIG nor mixed sizes")
    dark = [g.address for g in asking if g.nvidia_driver and g.mig is None and g.mixed_size is None]
    if dark and not snapshot.nvml.available:
        return unknown(f"NVML does not tell how these are partitioned: {', '.join(dark)}")
    lines = [line for g in asking for line in look.drift.get(g.address, ())]
    if lines:
        return warn(
            *shortened(lines),
            "turning VFs off and on, or loading the driver again, takes GPU instances and mixed sizes away",
            fix="vgpuctl restore-host; where VMs run on it: vgpuctl apply --drain",
        )
    return ok(f"{len(asking)} GPU(s) are partitioned as host.yaml asks")


def _asks(gpu: Gpu) -> bool:
    if gpu.desired not in (None, Mode.VGPU):
        return False
    return gpu.desired_mig is not None or gpu.desired_mixed_size is not None


def _with_mig(snapshot: Snapshot) -> list[tuple[Gpu, Mig]]:
    return [(gpu, gpu.mig) for gpu in snapshot.gpus if gpu.nvidia_driver and gpu.mig is not None]


def _on(value: bool) -> str:
    return "on" if value else "off"


CHECKS = (
    Check(
        id="mig-mode",
        title="no change of MIG waits for a reset",
        looks_at=f"NVML, `{RELEASE}`",
        judge=judged_by_host(_mode),
        needs=Needs(files=(RELEASE,)),
        explains=("busy", "partition", "no-capacity"),
    ),
    Check(
        id="mig-instances",
        title="GPUs with MIG on have GPU instances that vGPUs can use",
        looks_at="NVML",
        judge=judged_by_host(_instances),
        explains=("no-capacity", "partition"),
        partitions=True,
    ),
    Check(
        id="partition",
        title="MIG and mixed sizes are as host.yaml asks",
        looks_at="NVML, `mig:` and `mixed_size:` of `/etc/vgpuctl/host.yaml`",
        judge=judged_by_host(_as_asked),
        explains=("partition", "no-capacity"),
        partitions=True,
    ),
)
