# SPDX-License-Identifier: Apache-2.0
"""Which vGPUs or whole GPUs of this host give a pod what it asks for, and how many such VMs have room now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from vgpuctl.config.arguments import placement_policy_of
from vgpuctl.config.kubernetes.pod_gpus import FRACTION_ANNOTATIONS, PodGpus
from vgpuctl.config.kubernetes.pods import PodTemplate
from vgpuctl.config.kubernetes.request import DeviceRequest
from vgpuctl.config.vm_spec import VM_SHAPE, build_request
from vgpuctl.errors import VgpuctlError
from vgpuctl.makers import disable_vfs_hint, maker_of, sets_vfs_at_load
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.numbers import count_text
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.operations.plans.choose_whole import offer_whole_gpus
from vgpuctl.operations.plans.job_gpus import SELECTING_ANNOTATIONS, gpus_with_memory, select_job_gpus
from vgpuctl.operations.plans.job_offers import (
    choose_offer,
    gpus_text,
    job_error,
    kept_text,
    offers_of,
)
from vgpuctl.placement.fit import check_fit
from vgpuctl.value import Value, replace

_PLACEMENT_ANNOTATION, _MODE_ANNOTATION = "hami.io/gpu-scheduler-policy", "nvidia.com/vgpu-mode"
KNOWN_ANNOTATIONS = SELECTING_ANNOTATIONS | FRACTION_ANNOTATIONS | {_PLACEMENT_ANNOTATION, _MODE_ANNOTATION}
_MOST_VMS = 1000
"""More are not counted."""


class PodFit(Value):
    """What gives pods what they ask for: fields of a VM spec, how they follow from it, and what to do before."""

    fields: Mapping[str, object]
    kept: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


def fit_pod(snapshot: Snapshot, template: PodTemplate, requests: Sequence[DeviceRequest], pod_gpus: PodGpus) -> PodFit:
    """Return what gives pods their devices on this host. `pod_gpus`: what their labels say of these.

    Raises:
        HostCannot: this host has no such devices; the message says why.
    """
    maker = requests[0].maker
    gpus = [
        g
        for g in snapshot.gpus
        if g.is_display_class and maker_of(g).name == maker and g.desired_mode is not GpuMode.UNMANAGED
    ]
    if not gpus:
        raise job_error(f"this host has no GPU of {maker} that vgpuctl manages: {gpus_text(snapshot.gpus)}")
    models = [r.model for r in requests if r.model is not None]
    allowed, notes = select_job_gpus(gpus, template, pod_gpus.products, models)
    wholes = [r for r in requests if r.is_whole]
    if wholes and len(wholes) < len(requests):
        raise job_error(
            "one container asks for whole GPUs and another for a part: a VM has either", hint="make two pods of it"
        )
    if wholes:
        allowed = gpus_with_memory(allowed, max(r.whole_mib or 0 for r in wholes))
        fit = _fit_whole(allowed, sum(r.count for r in wholes))
    else:
        allowed, of_mode = _of_vgpu_mode(allowed, template.annotations.get(_MODE_ANNOTATION))
        fit = _fit_parts(allowed, requests)
        notes = (*notes, *of_mode)
    fields = dict(fit.fields)
    others = [gpu for gpu in snapshot.gpus if gpu.is_display_class and gpu not in allowed]
    if len(allowed) < len(gpus) or (others and "mode" in fields):  # a profile's name says whose it is
        fields.setdefault("gpu", [gpu.address for gpu in allowed])
    policy = placement_policy_of(template.annotations.get(_PLACEMENT_ANNOTATION, ""))
    if policy is not None and "profile" in fields:
        fields.setdefault("placement", policy)
    is_waiting = bool(fit.first) and "profile" not in fields  # for GPUs that are not passed through yet
    room = () if is_waiting else _room_note(snapshot, allowed, fields, template.pods)
    return replace(fit, fields=fields, kept=(*notes, *fit.kept, *room))


def _of_vgpu_mode(gpus: Sequence[Gpu], mode: str | None) -> tuple[list[Gpu], tuple[str, ...]]:
    """Return the GPUs that HAMi would take for a way to share them: those with MIG, or those without."""
    wanted = [gpu for gpu in gpus if (gpu.mig is not None and gpu.mig.enabled) is (mode == "mig")]
    if mode is None or len(wanted) == len(gpus):
        return list(gpus), () if mode is None else (f"{_MODE_ANNOTATION} {mode}",)
    if not wanted:
        state = "is in MIG mode: a time-sliced vGPU" if mode == "mig" else "is without MIG: a GPU instance"
        return list(gpus), (f"{_MODE_ANNOTATION} {mode}, and no such GPU {state} has its own memory, too",)
    return wanted, (f"{_MODE_ANNOTATION} {mode}",)


def _fit_whole(gpus: Sequence[Gpu], count: int) -> PodFit:
    """Return so many whole GPUs of one model: passed through where they are so, else vGPUs of the whole size."""
    models = list(dict.fromkeys(gpu.model for gpu in gpus))
    groups = [[gpu for gpu in gpus if gpu.model == model] for model in models]
    ready = next((group for group in groups if sum(map(_is_passed_through, group)) >= count), None)
    if ready is not None:
        return _whole_fit(gpus, [gpu for gpu in ready if _is_passed_through(gpu)], count, ())
    offers = sorted((o for gpu in gpus for o in offers_of(gpu) if o.is_whole and o.mig is None), key=lambda o: o.rank)
    having = Counter(o.profile for gpu in gpus for o in set(offers_of(gpu)) if o.is_whole)
    for offer in offers:
        if having[offer.profile] >= count:
            text = f"{_devices(count)}: {offer.profile} is all of one"
            return PodFit({"profile": _profile_field([(offer.profile, count)])}, (text,))
    largest = max(groups, key=len)
    if len(largest) < count:
        raise job_error(f"{count_text(count, 'whole GPU')} of one model: this host has {gpus_text(gpus)}")
    missing = count - sum(map(_is_passed_through, largest))
    commands = [_passthrough_command(gpu) for gpu in largest if not _is_passed_through(gpu)]
    return _whole_fit(gpus, largest, count, tuple(commands[:missing]))


def _is_passed_through(gpu: Gpu) -> bool:
    return GpuMode.PASSTHROUGH in (gpu.mode, gpu.desired_mode)


def _passthrough_command(gpu: Gpu) -> str:
    """Return what makes a GPU one for passthrough; some drivers alone turn VFs off."""
    if not (sets_vfs_at_load(gpu) and gpu.vfs_enabled):
        return f"vgpuctl set-mode {gpu.address} passthrough"
    text = f"{gpu.address} has {count_text(gpu.vfs_enabled, 'VF')}, which stay on: {disable_vfs_hint(gpu)}"
    return f"{text}, by mode: sriov in place of passthrough"


def _whole_fit(gpus: Sequence[Gpu], chosen: Sequence[Gpu], count: int, first: tuple[str, ...]) -> PodFit:
    names = {"gpu": [gpu.address for gpu in chosen]} if len(chosen) < len(gpus) else {}
    return PodFit({"mode": "passthrough", "gpus": count, **names}, (_devices(count),), first)


def _devices(count: int) -> str:
    return "a whole GPU" if count == 1 else f"{count} whole GPUs"


def _fit_parts(gpus: Sequence[Gpu], requests: Sequence[DeviceRequest]) -> PodFit:
    offers = list(dict.fromkeys(offer for gpu in gpus for offer in offers_of(gpu)))
    fitting = [choose_offer(gpus, offers, request) for request in requests]
    if len(set(fitting)) > len(gpus) and not any(gpu.mixed_size for gpu in gpus):
        largest = max(fitting, key=lambda offer: offer.rank)  # one GPU has vGPUs of one size
        fitting = [largest] * len(fitting)
    chosen: list[tuple[str, int]] = []
    kept: list[str] = []
    first: list[str] = []
    fields: dict[str, object] = {}
    for request, offer in zip(requests, fitting, strict=True):
        chosen.append((offer.profile, request.count))
        kept.append(kept_text(offer, request))
        having = [gpu for gpu in gpus if offer in offers_of(gpu)]
        if request.is_apart:
            fields["placement"] = "breadth"
            kept.append(_apart_text(request.count, len(having)))
        if request.cores_percent is not None and offer.needs_policy:
            fields["scheduler"] = str(SchedulerPolicy.FIXED_SHARE)
            first += _scheduler_commands(having, request.count if request.is_apart else 1)
    return PodFit({"profile": _profile_field(chosen), **fields}, tuple(kept), tuple(dict.fromkeys(first)))


def _apart_text(count: int, having: int) -> str:
    text = f"{count} devices are parts of {count} GPUs"
    if having >= count:
        return f"{text}: placement breadth takes another for each while it has room"
    return f"{text}, and this host has {count_text(having, 'such GPU')}: more than one comes from the same"


def _scheduler_commands(having: Sequence[Gpu], count: int) -> list[str]:
    """Return the commands that have so many GPUs guarantee shares of their time; none where enough do."""
    others = [gpu for gpu in having if _policy(gpu) is not SchedulerPolicy.FIXED_SHARE]
    missing = min(count, len(having)) - (len(having) - len(others))
    policy = SchedulerPolicy.FIXED_SHARE
    return [f"vgpuctl set-scheduler {gpu.address} --policy {policy}" for gpu in others[: max(missing, 0)]]


def _policy(gpu: Gpu) -> SchedulerPolicy | None:
    state = None if gpu.scheduler is None else gpu.scheduler.state
    return None if state is None else state.policy


def _profile_field(chosen: Sequence[tuple[str, int]]) -> object:
    totals: dict[str, int] = {}
    for profile, count in chosen:
        totals[profile] = totals.get(profile, 0) + count
    texts = [profile if count == 1 else f"{profile}:{count}" for profile, count in totals.items()]
    return texts[0] if len(texts) == 1 else texts


def _room_note(snapshot: Snapshot, gpus: Sequence[Gpu], fields: Mapping[str, object], pods: int) -> tuple[str, ...]:
    """Say how many of these VMs have room now, where that is fewer than there are pods and is known."""
    wanted = min(pods, _MOST_VMS)
    room = _count_room(snapshot, gpus, fields, wanted) if wanted else None
    if room is None or room >= wanted:
        return ()
    if room or pods > 1:
        return (f"now there is room for {room} of {pods} such VMs on this host",)
    return ("now there is no room for it on this host: another VM has it",)


def _count_room(snapshot: Snapshot, gpus: Sequence[Gpu], fields: Mapping[str, object], wanted: int) -> int | None:
    """Return for how many of so many VMs there is room; None if that is not known, or VMs have several profiles."""
    try:
        if "profile" not in fields:
            request = build_request(VM_SHAPE.check({"name": "vm", **fields}), require_complete=False)
            return len(offer_whole_gpus(snapshot, request, "", "").functions) // request.gpus
        if not isinstance(fields["profile"], str):
            return None
        profile, _, count = fields["profile"].partition(":")
        each = int(count or 1)
        result = check_fit(snapshot, gpus, [(profile, wanted * each)])
    except VgpuctlError:
        return None
    if result.fits is None:
        return None
    return (wanted * each - sum(number for _, number in result.excess)) // each
