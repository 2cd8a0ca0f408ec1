# SPDX-License-Identifier: Apache-2.0
"""Compare what host.yaml asks for with the host as it is: key by key for each GPU, and its other sections."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.errors import HostCannot, InvalidInput, Refused
from vgpuctl.layout.mig import instances_for, names_of, profiles_of, same
from vgpuctl.model.gpu import Gpu, Mode
from vgpuctl.model.partition import Mig, MigSpec
from vgpuctl.model.scheduler import Policy, SchedulerSpec
from vgpuctl.plan.layout import wanted_vfs
from vgpuctl.plan.scheduler import differs
from vgpuctl.scheduler.limits import as_spec, runs_on, satisfies
from vgpuctl.spec.gpus import KEYS
from vgpuctl.spec.host import GpuSpec, HostSpec, VgpuSpec, as_written
from vgpuctl.value import Value, as_dict, replace

_OF_DEVICES = ("mode", "vfs", "mig", "mixed_size", "scheduler")
_MODES = (Mode.VGPU, Mode.SRIOV, Mode.PASSTHROUGH)


class Difference(Value):
    """One key that is not as asked for. Values are as host.yaml writes them, None for nothing."""

    key: str
    wanted: object
    found: object

    @property
    def data(self) -> dict[str, object]:
        """The JSON value."""
        return {"key": self.key, "wanted": self.wanted, "is": self.found}


def as_it_is(gpu: Gpu) -> GpuSpec:
    """Return what host.yaml would say of a GPU so that nothing changed.

    What host.yaml asks for and the GPU has is said as host.yaml says it; else what is seen. What is known of no GPU,
    as who may be placed on it, is what host.yaml says.
    """
    seen = Mode.VGPU if gpu.mode is Mode.MIG_VGPU else gpu.mode
    mode = next((m for m in (gpu.desired, seen) if m is not None and _fits(gpu, m)), None)
    return GpuSpec(
        mode=None if mode is None else str(mode),
        vfs=gpu.vfs_enabled if mode is Mode.SRIOV else None,
        cordoned=gpu.cordoned or None,
        scheduler=_scheduler_now(gpu),
        profiles=gpu.allowed_profiles,
        reserved_for=gpu.reserved_for or None,
        mig=_mig_now(gpu) if mode is Mode.VGPU else None,
        mixed_size=gpu.mixed_size or None if mode is Mode.VGPU else None,
    )


def _fits(gpu: Gpu, mode: Mode) -> bool:
    """Say whether a GPU has the virtual functions of a mode already; `unmanaged` fits only where it is asked for."""
    if mode not in _MODES:
        return mode is Mode.UNMANAGED and gpu.desired is mode
    if mode is Mode.PASSTHROUGH and gpu.mig is not None and gpu.mig.enabled:
        return False
    try:
        return wanted_vfs(gpu, mode, None) == gpu.vfs_enabled
    except (HostCannot, InvalidInput):
        return False


def _scheduler_now(gpu: Gpu) -> SchedulerSpec | None:
    """Return what runs; what is asked for where that runs, or where nobody tells what runs.

    With MIG there is a choice only where GPU instances have schedulers.
    """
    if gpu.mig is not None and gpu.mig.enabled and not gpu.gi_schedulers:
        return None
    state = runs_on(gpu)
    asked = gpu.desired_scheduler
    if asked is not None and (state is None or satisfies(state, asked)):
        return asked
    seen = as_spec(state) if state is not None else None
    return None if seen is None or seen.policy is Policy.BEST_EFFORT or differs(gpu, seen) else seen


def _mig_now(gpu: Gpu) -> MigSpec | None:
    """Return the instances of a GPU with MIG; as host.yaml says it where that is so, by vGPUs for instance."""
    asked, mig = gpu.desired_mig, gpu.mig
    if mig is None:
        return None
    if asked is not None and _has(gpu, mig, asked):
        return asked
    return MigSpec(names_of(mig)) if mig.enabled and mig.instances else None


def _has(gpu: Gpu, mig: Mig, asked: MigSpec) -> bool:
    """Say whether a GPU is partitioned so; vGPUs whose instances are not known are not there."""
    if not asked.on or not mig.enabled:
        return asked.on is mig.enabled
    try:
        named = asked.instances or instances_for(mig, asked.vgpus, gpu.types, gpu.address)
        return same(mig, profiles_of(mig, named, gpu.address))
    except InvalidInput:
        return False


def differences(gpu: Gpu, said: GpuSpec) -> tuple[Difference, ...]:
    """Return what is not as it is asked for on a GPU; what is not asked for and was not before is no difference."""
    now = as_it_is(gpu)
    found = [*_mode_differs(gpu, said, now), *_partition_differs(gpu, said, now), *_scheduler_differs(gpu, said, now)]
    for key in ("cordoned", "profiles", "reserved_for"):
        wanted, seen = (as_written(getattr(one, key)) or None for one in (said, now))
        if wanted != seen:
            found.append(Difference(key, wanted, seen))
    return tuple(found)


def _mode_differs(gpu: Gpu, said: GpuSpec, now: GpuSpec) -> list[Difference]:
    if said.mode is None:
        dropped = gpu.desired is not None and now.mode == gpu.desired
        return [Difference("mode", None, now.mode)] if dropped else []
    found = [] if said.mode == now.mode else [Difference("mode", said.mode, now.mode or str(gpu.mode))]
    if said.vfs is not None and said.vfs != gpu.vfs_enabled:
        found.append(Difference("vfs", said.vfs, gpu.vfs_enabled))
    return found


def _partition_differs(gpu: Gpu, said: GpuSpec, now: GpuSpec) -> list[Difference]:
    """Return what differs of MIG and mixed sizes; they count for the mode vgpu, and passthrough has no MIG."""
    if said.mode not in (None, Mode.VGPU, Mode.PASSTHROUGH):
        return []
    found = []
    wanted = MigSpec() if said.mode == Mode.PASSTHROUGH and gpu.mig is not None else said.mig
    there = MigSpec(names_of(gpu.mig)) if gpu.mig is not None and gpu.mig.enabled else MigSpec()
    if wanted is not None and not (_has(gpu, gpu.mig, wanted) if gpu.mig is not None else not wanted.on):
        found.append(Difference("mig", as_written(wanted), as_written(there)))
    elif wanted is None and gpu.desired_mig is not None and now.mig == gpu.desired_mig:
        found.append(Difference("mig", None, as_written(now.mig)))
    if said.mode == Mode.PASSTHROUGH:
        return found
    if (said.mixed_size is not None and said.mixed_size is not bool(gpu.mixed_size)) or (
        said.mixed_size is None and gpu.desired_mixed_size and gpu.mixed_size
    ):
        found.append(Difference("mixed_size", said.mixed_size, bool(gpu.mixed_size)))
    return found


def partition_value(gpu: Gpu) -> dict[str, object] | None:
    """Return how a GPU is partitioned, as JSON values; None for one that has neither MIG nor mixed sizes."""
    if gpu.mig is None and gpu.mixed_size is None:
        return None
    instances = list(names_of(gpu.mig)) if gpu.mig is not None and gpu.mig.enabled else []
    return {
        "mig": None if gpu.mig is None else gpu.mig.enabled,
        "instances": instances,
        "mixed_size": gpu.mixed_size,
    }


def not_as_set(gpu: Gpu, said: GpuSpec) -> list[str]:
    """Return what of a GPU's devices is not as it was set, a sentence each: a later step or the driver took it away."""
    able = gpu.scheduler is not None and bool(gpu.scheduler.interfaces)
    return [
        f"{gpu.address}: {row.key} is {_shown(row.found)}, not {_shown(row.wanted)}"
        for row in differences(gpu, said)
        if row.key in _OF_DEVICES and row.wanted is not None and (able or row.key != "scheduler")
    ]


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {one}" for key, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _scheduler_differs(gpu: Gpu, said: GpuSpec, now: GpuSpec) -> list[Difference]:
    wanted = said.scheduler
    if said.mode not in (None, Mode.VGPU):
        return []  # it counts where there are vGPUs
    if wanted == now.scheduler or (wanted is None and gpu.desired_scheduler is None):
        return []
    if wanted is not None and runs_on(gpu) is not None and not differs(gpu, wanted):
        return []
    return [Difference("scheduler", as_written(wanted), as_written(now.scheduler))]


def settings_differ(wanted: HostSpec, now: HostSpec) -> tuple[Difference, ...]:
    """Return what the other sections of host.yaml say otherwise: `defaults.memory`, `vgpus.NAME` and so on."""
    found = []
    for section in ("defaults", "placement", "boot"):
        new, old = (as_dict(getattr(one, section)) for one in (wanted, now))
        found += [Difference(f"{section}.{key}", new[key], old[key]) for key in new if new[key] != old[key]]
    for name in sorted({*wanted.vgpus, *now.vgpus}):
        entries = (wanted.vgpus.get(name), now.vgpus.get(name))
        if entries[0] != entries[1]:
            found.append(Difference(f"vgpus.{name}", _vgpu(entries[0]), _vgpu(entries[1])))
    return tuple(found)


def no_device(name: str, entry: VgpuSpec) -> Difference:
    """Return the difference of a vGPU that host.yaml keeps and whose device is missing."""
    return Difference(f"vgpus.{name}", _vgpu(entry), None)


def _vgpu(entry: VgpuSpec | None) -> Mapping[str, object] | None:
    return None if entry is None else {key: value for key, value in as_dict(entry).items() if value}


def refuse_lost_vgpus(wanted: HostSpec, now: HostSpec, source: str) -> None:
    """Refuse a host.yaml that drops or changes a vGPU without a VM: its device would be nobody's.

    Raises:
        Refused: naming them.
    """
    lost = sorted(name for name, entry in now.vgpus.items() if wanted.vgpus.get(name) != entry)
    if lost:
        raise Refused(
            f"{source} lacks or changes the vGPU {', '.join(lost)}, which host.yaml keeps",
            hint=f"vgpuctl delete-vgpu {lost[0]} takes it away; vgpuctl export prints the entries as they are",
            vgpus=lost,
        )


def as_asked(gpu: Gpu, said: GpuSpec) -> GpuSpec:
    """Return how a GPU is when it is as asked for: what is said, and as it is now where nothing is."""
    now = as_it_is(gpu)
    kept: dict[str, object] = {"mode": said.mode or now.mode, "vfs": said.vfs if said.mode else now.vfs}
    if said.mode == now.mode and said.vfs is None:
        kept["vfs"] = now.vfs
    if kept["mode"] == Mode.VGPU:
        kept["mig"] = now.mig if said.mig is None else said.mig
        kept["mixed_size"] = (now.mixed_size if said.mixed_size is None else said.mixed_size) or None
    lost = kept["mode"] in (Mode.SRIOV, Mode.PASSTHROUGH)  # a GPU without vGPUs has no scheduler
    scheduler = said.scheduler or (None if lost else now.scheduler)
    return replace(said, **kept, cordoned=said.cordoned or None, scheduler=scheduler)


def sides(gpu: Gpu, after: GpuSpec) -> dict[str, object]:
    """Return a GPU before and after a change, as JSON values."""
    return {"before": said_value(as_it_is(gpu)), "after": said_value(after)}


def said_value(said: GpuSpec) -> dict[str, object]:
    """Return what is said of a GPU, as JSON values; null for nothing."""
    return {key: as_written(getattr(said, key)) for key in KEYS}
