# SPDX-License-Identifier: Apache-2.0
"""How GPUs are set up: MIG and mixed sizes. What waits for a reset, or differs from host.yaml.

Sources: NVML's nvmlDeviceGetMigMode (current and pending); NVIDIA's AI Enterprise administration guide, "MIG-backed
vGPUs". With vendor-specific VFIO, a bus reset hangs hosts with Linux 7 and newer.
"""

from __future__ import annotations

from shlex import quote

from vgpuctl.backends import backend_for
from vgpuctl.doctor.check import (
    Check,
    CheckContext,
    Finding,
    PathsToRead,
    fail,
    not_applicable,
    ok,
    on_or_off,
    parse_version,
    require_snapshot,
    shorten,
    unknown,
    warn,
)
from vgpuctl.doctor.nvidia import nvidia_gpus
from vgpuctl.doctor.virtualization import KERNEL_RELEASE
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import MODES_WITHOUT_VFS, Gpu, GpuInstance, GpuMode, MigState
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot

_NO_MIG = "no GPU here has MIG, or NVML does not report it"


def _check_mig_mode(context: CheckContext, snapshot: Snapshot) -> Finding:
    mig_gpus = _mig_gpus(snapshot)
    if not mig_gpus:
        return not_applicable(_NO_MIG)
    waiting = [(gpu, mig) for gpu, mig in mig_gpus if mig.enabled is not mig.pending_enabled]
    if not waiting:
        return ok(*shorten([f"{gpu.address}: MIG is {on_or_off(mig.enabled)}" for gpu, mig in mig_gpus]))
    lines = [
        f"{gpu.address} ({gpu.model}): MIG is {on_or_off(mig.enabled)}, and "
        f"{on_or_off(mig.pending_enabled)} after its next reset"
        for gpu, mig in waiting
    ]
    release = (context.file(KERNEL_RELEASE).text or "").strip()
    hang_since = (backend_for(g.backend).gpu_reset_hangs_since for g in snapshot.gpus)
    if any(since is not None and parse_version(release) >= since for since in hang_since):
        return warn(
            *shorten(lines),
            f"{KERNEL_RELEASE}: {release}; with vendor-specific VFIO a reset hangs this host until it is powered off",
            fix="reboot the host; never nvidia-smi --gpu-reset here",
        )
    return warn(
        *shorten(lines),
        fix="reboot the host, or stop the programs that have the driver open (vgpuctl doctor driver-holders) and run "
        "set-mig again; no nvidia-smi --gpu-reset while VFs are on",
    )


def _check_mig_instances(context: CheckContext, snapshot: Snapshot) -> Finding:
    mig_gpus = [
        (gpu, mig) for gpu, mig in _mig_gpus(snapshot) if mig.enabled and gpu.desired_mode not in MODES_WITHOUT_VFS
    ]
    if not mig_gpus:
        return not_applicable("no GPU for vGPUs has MIG on")
    empty = [(gpu, mig) for gpu, mig in mig_gpus if not mig.instances]
    if empty:
        return fail(
            *shorten([f"{gpu.address} ({gpu.model}): MIG is on, but it has no GPU instance" for gpu, _ in empty]),
            "no vGPU can be created on it",
            fix=_suggest_instances(*empty[0]),
        )
    unusable = [
        (gpu, f"{gpu.address}: GPU instance {instance.gi_id} ({_profile_name(mig, instance)}) has no vGPU type")
        for gpu, mig in mig_gpus
        for instance in mig.instances
        if not _has_type(context, gpu, instance)
    ]
    if unusable:
        first = unusable[0][0]
        profile = context.instance_types[first.address][0].profile
        return warn(
            *shorten([line for _, line in unusable]),
            fix=f"create those that vGPUs need, for instance: vgpuctl set-mig {first.address} --for {quote(profile)}",
        )
    return ok(*shorten([f"{gpu.address}: {len(mig.instances)} GPU instances" for gpu, mig in mig_gpus]))


def _suggest_instances(gpu: Gpu, mig: MigState) -> str:
    """Return the commands that make a GPU with MIG on and without instances usable."""
    off = f"turn MIG off: vgpuctl set-mig {gpu.address} --off"
    if gpu.desired_mig is not None:
        return f"create those of host.yaml: vgpuctl restore-host; {off}"
    example = f"vgpuctl set-mig {gpu.address} {mig.profiles[0].name}; " if mig.profiles else ""
    return f"{f'create GPU instances, for instance: {example}' if example else ''}{off}"


def _has_type(context: CheckContext, gpu: Gpu, instance: GpuInstance) -> bool:
    """Return whether a vGPU can be in an instance; assumed where no type reports its instance."""
    profile_ids = {t.gi_profile_id for t in context.instance_types.get(gpu.address, ())} - {None}
    return not profile_ids or instance.profile_id in profile_ids


def _profile_name(mig: MigState, instance: GpuInstance) -> str:
    profile = mig.find_profile(instance.profile_id)
    return profile.name if profile is not None else f"profile {instance.profile_id}"


def _check_partition(context: CheckContext, snapshot: Snapshot) -> Finding:
    if snapshot.host_file_problem is not None:
        return unknown(snapshot.host_file_problem)
    configured = [g for g in snapshot.gpus if _has_desired_partition(g)]
    if not configured:
        return not_applicable("host.yaml configures neither MIG nor mixed sizes")
    unreported = [g.address for g in configured if uses_nvml(g) and g.mig is None and g.mixed_size is None]
    if unreported and not snapshot.nvml.available:
        return unknown(f"NVML does not report how these are partitioned: {', '.join(unreported)}")
    lines = [line for g in configured for line in context.partition_drift.get(g.address, ())]
    if lines:
        return warn(
            *shorten(lines),
            "turning VFs off and on, or reloading the driver, removes GPU instances and mixed sizes",
            # apply refuses a host.yaml that names a GPU which is gone: the check host-file says that
            fix="vgpuctl restore-host" + ("" if context.absent_gpus else "; if VMs run on it: vgpuctl apply --drain"),
        )
    return ok(f"partitioned as in host.yaml: {count_text(len(configured), 'GPU')}")


def _has_desired_partition(gpu: Gpu) -> bool:
    if gpu.desired_mode not in (None, GpuMode.VGPU):
        return False
    return gpu.desired_mig is not None or gpu.desired_mixed_size is not None


def _mig_gpus(snapshot: Snapshot) -> list[tuple[Gpu, MigState]]:
    return [(gpu, gpu.mig) for gpu in nvidia_gpus(snapshot) if gpu.mig is not None]


CHECKS = (
    Check(
        id="mig-mode",
        title="changes of MIG that wait for a reset",
        looks_at=f"NVML, `{KERNEL_RELEASE}`",
        run=require_snapshot(_check_mig_mode),
        paths=PathsToRead(files=(KERNEL_RELEASE,)),
        explains=("busy", "partition", "no-capacity"),
    ),
    Check(
        id="mig-instances",
        title="the GPU instances of GPUs with MIG on",
        looks_at="NVML",
        run=require_snapshot(_check_mig_instances),
        explains=("no-capacity", "partition"),
        needs_partitions=True,
    ),
    Check(
        id="partition",
        title="MIG and mixed sizes, compared with host.yaml",
        looks_at="NVML, `mig:` and `mixed_size:` of `/etc/vgpuctl/host.yaml`",
        run=require_snapshot(_check_partition),
        explains=("partition", "no-capacity"),
        needs_partitions=True,
    ),
)
