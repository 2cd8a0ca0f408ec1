# SPDX-License-Identifier: Apache-2.0
"""Which vGPUs or whole GPUs of this host give a pod what it asks for.

A guest's programs do not have all of a profile's framebuffer: the driver keeps some. NVIDIA's formula for the most that
it keeps is a sixteenth of the profile and 16 MiB, and adjustments: 4 MiB for retired pages and 28 MiB for compression,
as on a T4, and another sixteenth with ECC on GPUs without HBM2. It was seen quoted (sicorps.com, "NVIDIA Virtual GPU
Software Frame Buffer Reservation"), not at NVIDIA's. Without the part for ECC, which the host does not show for a type,
that is what is left out here.

Profiles of series C come first, then Q, which has CUDA as well; A and B have none.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction

from vgpuctl.config.arguments import placement_policy_of
from vgpuctl.config.kubernetes.manifests import PodTemplate
from vgpuctl.config.kubernetes.request import DeviceRequest
from vgpuctl.errors import HostCannot
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu, GpuMode, VgpuType
from vgpuctl.model.names import ProfileName, parse_profile_name
from vgpuctl.model.numbers import count_text, format_mib
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vgpu_scheduler import SchedulerPolicy
from vgpuctl.placement.constraints import match_gpus
from vgpuctl.value import Value, replace

_FIXED_MIB = 16 + 4 + 28
_SERIES = {"C": 0, "Q": 1}
PRODUCT_LABELS = (
    "nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "k8s.amazonaws.com/accelerator", "accelerator",
)  # fmt: skip
"""Labels of nodes that name their GPUs' model."""
_SHARED_SUFFIX = re.compile(r"-(SHARED|MIG-(?P<slices>[1-7])g\.(?P<gb>[0-9]{1,3})gb[0-9a-z.-]*)$", re.ASCII)
_BRACKETS = re.compile(r"\[([^\]]+)\]")
_MEMORY_KINDS = frozenset({"hbm2", "hbm2e", "hbm3", "hbm3e", "gddr6", "gddr7"})
_PLACEMENT_LABEL = "hami.io/gpu-scheduler-policy"
_ALLOWED = (
    ("nvidia.com/use-gputype", True),
    ("nvidia.com/nouse-gputype", False),
    ("nvidia.com/use-gpuuuid", True),
    ("nvidia.com/nouse-gpuuuid", False),
)
"""HAMi's annotations, and whether they allow or exclude GPUs."""
KNOWN_ANNOTATIONS = frozenset({_PLACEMENT_LABEL, *(name for name, _ in _ALLOWED)})
_NEARLY = Fraction(98, 100)
_CHECK = "job"


class PodFit(Value):
    """What gives pods what they ask for: fields of a VM spec, how they follow from it, and what to do before."""

    fields: Mapping[str, object]
    kept: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


class _Offer(Value):
    """A type of vGPU that GPUs of this host have. `share`: of a GPU's time with the policy fixed_share.

    `has_scheduler`: policies say how its GPU's time is shared. Other makers' types have a part of the cores that no
    driver tells.
    """

    profile: str
    framebuffer_mib: int
    usable_mib: int
    gpu_mib: int | None
    share: Fraction | None
    rank: tuple[int, int]
    mig: tuple[int, int] | None
    is_whole: bool
    has_scheduler: bool


def usable_mib(framebuffer_mib: int) -> int:
    """Return about how much of an NVIDIA profile's framebuffer a guest's programs have, in MiB."""
    return framebuffer_mib - framebuffer_mib // 16 - _FIXED_MIB


def fit_pod(snapshot: Snapshot, template: PodTemplate, requests: Sequence[DeviceRequest]) -> PodFit:
    """Return what gives pods their devices on this host.

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
        raise _error(f"this host has no GPU of {maker} that vgpuctl manages: {_gpus_text(snapshot.gpus)}")
    allowed, notes = _select(gpus, template, [r.model for r in requests if r.model is not None])
    requests, of_label = _as_instances(template, requests)
    notes = (*notes, *of_label)
    wholes = [r for r in requests if r.is_whole]
    if wholes and len(wholes) < len(requests):
        raise _error(
            "one container asks for whole GPUs and another for a part: a VM has either", hint="make two pods of it"
        )
    if wholes:
        allowed = _having(allowed, max(r.whole_mib or 0 for r in wholes))
    fit = _fit_whole(allowed, sum(r.count for r in wholes)) if wholes else _fit_parts(allowed, requests)
    fields = dict(fit.fields)
    others = [gpu for gpu in snapshot.gpus if gpu.is_display_class and gpu not in allowed]
    if len(allowed) < len(gpus) or (others and "mode" in fields):  # a profile's name says whose it is
        fields.setdefault("gpu", [gpu.address for gpu in allowed])
    policy = placement_policy_of(template.annotations.get(_PLACEMENT_LABEL, ""))
    if policy is not None and "profile" in fields:
        fields["placement"] = policy
    return replace(fit, fields=fields, kept=(*notes, *fit.kept))


def _select(gpus: Sequence[Gpu], template: PodTemplate, models: Sequence[str]) -> tuple[list[Gpu], tuple[str, ...]]:
    """Return the GPUs that a pod's words, node selector and annotations allow, and what that was."""
    notes: list[str] = []
    allowed = list(gpus)
    for model in models:
        allowed = [gpu for gpu in allowed if _plain(model) in _plain(gpu.model)]
        notes.append(f"model {model}")
    for label in PRODUCT_LABELS:
        product = template.node_selector.get(label)
        if product is not None:
            allowed = [gpu for gpu in allowed if _is_product(gpu, product)]
            notes.append(f"{label} {product}")
    for annotation, is_wanted in _ALLOWED:
        names = [name.strip() for name in template.annotations.get(annotation, "").split(",") if name.strip()]
        if names:
            allowed = [gpu for gpu in allowed if any(_is_type(gpu, name) for name in names) is is_wanted]
            notes.append(f"{annotation} {', '.join(names)}")
    if not allowed:
        raise _error(f"no GPU of this host is {' and '.join(notes)}: {_gpus_text(gpus)}")
    return allowed, tuple(notes)


def _having(gpus: Sequence[Gpu], asked_mib: int) -> list[Gpu]:
    """Return the GPUs with so much memory; of what a data sheet says, a GPU shows up to a tenth less.

    Raises:
        HostCannot: none has it.
    """
    having = [gpu for gpu in gpus if gpu.framebuffer_mib is None or asked_mib * 10 <= gpu.framebuffer_mib * 11]
    if not having:
        largest = max(gpu.framebuffer_mib or 0 for gpu in gpus)
        raise _error(f"a whole GPU with {asked_mib} MiB: the largest of {_gpus_text(gpus)} has {largest} MiB")
    return having


def _as_instances(
    template: PodTemplate, requests: Sequence[DeviceRequest]
) -> tuple[Sequence[DeviceRequest], tuple[str, ...]]:
    """Return the requests with GPU instances where the label of the nodes says so (MIG's strategy `single`)."""
    suffixes = (_SHARED_SUFFIX.search(template.node_selector.get(label, "")) for label in PRODUCT_LABELS)
    suffix = next((match for match in suffixes if match is not None), None)
    if suffix is None:
        return requests, ()
    if suffix["slices"] is None:
        return requests, ("the label says that pods share each GPU, and not how many: a GPU is taken as a whole",)
    instance = {"mig_slices": int(suffix["slices"]), "mig_gb": int(suffix["gb"])}
    return [replace(one, **instance) if one.is_whole else one for one in requests], ()


def _is_product(gpu: Gpu, product: str) -> bool:
    """Return whether a label of NVIDIA's feature discovery, such as Tesla-T4-SHARED, is a GPU's model.

    A GPU whose driver is not loaded is known by the PCI database alone: `NVIDIA Corporation GH100 [H100 SXM5 80GB]`.
    """
    wanted, model = (_words(text) for text in (_SHARED_SUFFIX.sub("", product), gpu.model))
    bracket = _BRACKETS.search(gpu.model)
    if bracket is not None:
        return _is_named_so(wanted, _words(bracket[1]))
    return bool(wanted) and (model[: len(wanted)] == wanted or wanted[: len(model)] == model)


def _is_named_so(wanted: Sequence[str], words: Sequence[str]) -> bool:
    """Return whether a label means a card of the PCI database: the same chip, and no other memory or form."""
    plain = [word for word in wanted if word not in _MEMORY_KINDS]
    sizes = [{word for word in one if re.fullmatch(r"[0-9]+gb", word)} for one in (plain, words)]
    if not plain or plain[0] != (words[0] if words else None) or (all(sizes) and sizes[0] != sizes[1]):
        return False
    is_pcie = ["pcie" in one for one in (wanted, words)]
    named_form = is_pcie[0] or any(word.startswith("sxm") for word in wanted) or len(plain) < len(wanted)
    return is_pcie[0] == is_pcie[1] if named_form else True


def _is_type(gpu: Gpu, name: str) -> bool:
    return bool(match_gpus((gpu,), name)) or _plain(name) in _plain(gpu.model)


def _words(text: str) -> list[str]:
    """Return the words of a model's name without its maker: A10 is no beginning of A100."""
    return [word for word in re.split(r"[^a-z0-9]+", text.lower()) if word not in ("", "nvidia", "tesla", "grid")]


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]|nvidia|tesla", "", text.lower())


def _fit_whole(gpus: Sequence[Gpu], count: int) -> PodFit:
    """Return so many whole GPUs of one model: passed through where they are so, else vGPUs of the whole size."""
    models = list(dict.fromkeys(gpu.model for gpu in gpus))
    groups = [[gpu for gpu in gpus if gpu.model == model] for model in models]
    ready = next((group for group in groups if sum(map(_is_passed_through, group)) >= count), None)
    if ready is not None:
        return _whole_fit(gpus, [gpu for gpu in ready if _is_passed_through(gpu)], count, ())
    offers = sorted((o for gpu in gpus for o in _offers(gpu) if o.is_whole and o.mig is None), key=lambda o: o.rank)
    having = Counter(o.profile for gpu in gpus for o in set(_offers(gpu)) if o.is_whole)
    for offer in offers:
        if having[offer.profile] >= count:
            text = f"{_devices(count)}: {offer.profile} is all of one"
            return PodFit({"profile": _profile_field([(offer.profile, count)])}, (text,))
    largest = max(groups, key=len)
    if len(largest) < count:
        raise _error(f"{count_text(count, 'whole GPU')} of one model: this host has {_gpus_text(gpus)}")
    missing = count - sum(map(_is_passed_through, largest))
    commands = [f"vgpuctl set-mode {g.address} passthrough" for g in largest if not _is_passed_through(g)]
    return _whole_fit(gpus, largest, count, tuple(commands[:missing]))


def _is_passed_through(gpu: Gpu) -> bool:
    return gpu.mode is GpuMode.PASSTHROUGH


def _whole_fit(gpus: Sequence[Gpu], chosen: Sequence[Gpu], count: int, first: tuple[str, ...]) -> PodFit:
    names = {"gpu": [gpu.address for gpu in chosen]} if len(chosen) < len(gpus) else {}
    return PodFit({"mode": "passthrough", "gpus": count, **names}, (_devices(count),), first)


def _devices(count: int) -> str:
    return "a whole GPU" if count == 1 else f"{count} whole GPUs"


def _fit_parts(gpus: Sequence[Gpu], requests: Sequence[DeviceRequest]) -> PodFit:
    offers = list(dict.fromkeys(offer for gpu in gpus for offer in _offers(gpu)))
    chosen: list[tuple[str, int]] = []
    kept: list[str] = []
    first: list[str] = []
    shares = False
    fitting = [_choose(gpus, offers, request) for request in requests]
    if len(set(fitting)) > len(gpus) and not any(gpu.mixed_size for gpu in gpus):
        largest = max(fitting, key=lambda offer: offer.rank)  # one GPU has vGPUs of one size
        fitting = [largest] * len(fitting)
    for request, offer in zip(requests, fitting, strict=True):
        chosen.append((offer.profile, request.count))
        kept.append(_kept_text(offer, request))
        if request.cores_percent is not None and offer.has_scheduler and offer.mig is None and not offer.is_whole:
            first += _scheduler_commands(gpus, offer)
            shares = True
    fields: dict[str, object] = {"profile": _profile_field(chosen)}
    if shares:
        fields["scheduler"] = str(SchedulerPolicy.FIXED_SHARE)
    return PodFit(fields, tuple(kept), tuple(dict.fromkeys(first)))


def _scheduler_commands(gpus: Sequence[Gpu], offer: _Offer) -> list[str]:
    """Return the command that has a GPU guarantee shares of its time; none where one does."""
    having = [gpu for gpu in gpus if offer in _offers(gpu)]
    if any(_policy(gpu) is SchedulerPolicy.FIXED_SHARE for gpu in having):
        return []
    return [f"vgpuctl set-scheduler {having[0].address} --policy {SchedulerPolicy.FIXED_SHARE}"]


def _profile_field(chosen: Sequence[tuple[str, int]]) -> object:
    totals: dict[str, int] = {}
    for profile, count in chosen:
        totals[profile] = totals.get(profile, 0) + count
    texts = [profile if count == 1 else f"{profile}:{count}" for profile, count in totals.items()]
    return texts[0] if len(texts) == 1 else texts


def _policy(gpu: Gpu) -> SchedulerPolicy | None:
    state = None if gpu.scheduler is None else gpu.scheduler.state
    return None if state is None else state.policy


def _offers(gpu: Gpu) -> Iterator[_Offer]:
    """Yield the types of a GPU that programs can compute with."""
    for vgpu_type in gpu.types:
        offer = _offer(gpu, vgpu_type)
        if offer is not None:
            yield offer


def _offer(gpu: Gpu, vgpu_type: VgpuType) -> _Offer | None:
    name = parse_profile_name(vgpu_type.profile)
    size = vgpu_type.framebuffer_mib or (None if name is None else _named_mib(name))
    is_nvidia = maker_of(gpu).has_nvml
    if size is None or (is_nvidia and (name is None or name.series not in _SERIES)):
        return None
    if is_nvidia and name is not None and bool(name.mig_slices) is not (gpu.mig is not None and gpu.mig.enabled):
        return None
    mig = None
    if name is not None and name.mig_slices:
        mig = (name.mig_slices, round(size / 1024))
    count = vgpu_type.max_per_gpu
    return _Offer(
        profile=vgpu_type.profile,
        framebuffer_mib=size,
        usable_mib=usable_mib(size) if is_nvidia else size,
        gpu_mib=gpu.framebuffer_mib,
        share=Fraction(100, count) if is_nvidia and count and mig is None else None,
        rank=(size, _SERIES.get(name.series, 0) if name is not None else 0),
        mig=mig,
        is_whole=count == 1 and mig is None,
        has_scheduler=is_nvidia,
    )


def _named_mib(name: ProfileName) -> int | None:
    """Return the size that a profile's name says, in MiB; None for less than a GiB, which it says as 0."""
    match = re.fullmatch(r"(?:[1-7]-)?([0-9]+)[A-Z].*", name.without_board, re.ASCII | re.IGNORECASE)
    return None if match is None else int(match[1]) * 1024 or None


def _choose(gpus: Sequence[Gpu], offers: Sequence[_Offer], request: DeviceRequest) -> _Offer:
    """Return the smallest type that holds a request.

    Raises:
        HostCannot: none does.
    """
    if not offers:
        raise _error(
            f"no vGPU types of {_gpus_text(gpus)} are known for computing, so no part of it can be given",
            hint=f"vgpuctl show-gpu {gpus[0].address}",
        )
    if request.mig_slices is not None:
        return _choose_instance(gpus, offers, request)
    fitting = [offer for offer in offers if _holds(offer, request)]
    if not fitting:
        largest = max(offers, key=lambda offer: offer.usable_mib)
        raise _error(
            f"no vGPU of {_gpus_text(gpus)} holds {_amount_text(request)}: the largest, {largest.profile}, has "
            f"{format_mib(largest.framebuffer_mib)}, of which programs get about {largest.usable_mib} MiB",
            hint="vgpuctl list-profiles; a whole GPU holds more: ask for devices alone, without memory and cores",
        )
    return min(fitting, key=lambda offer: (offer.mig is not None, offer.rank))


def _choose_instance(gpus: Sequence[Gpu], offers: Sequence[_Offer], request: DeviceRequest) -> _Offer:
    slices, size = request.mig_slices, request.mig_gb
    fitting = [offer for offer in offers if offer.mig is not None and offer.mig[0] == slices]
    if not fitting:
        able = [gpu.address for gpu in gpus if gpu.mig is not None]
        raise _error(
            f"no GPU of this host is divided into GPU instances for {slices}g.{size}gb: {_gpus_text(gpus)}",
            hint=f"vgpuctl set-mig {able[0]} {slices}g.{size}gb" if able else "no GPU of this host supports MIG",
        )
    return min(fitting, key=lambda offer: (abs(offer.mig[1] - (size or 0)) if offer.mig else 0, offer.rank))


def _holds(offer: _Offer, request: DeviceRequest) -> bool:
    if request.memory_mib is not None and offer.usable_mib < request.memory_mib:
        return False
    if request.memory_percent is not None and not _has_percent(offer, request.memory_percent):
        return False
    if request.cores_percent is None:
        return True
    if not offer.has_scheduler:  # its part of the cores comes with its memory
        return request.memory_mib is not None or request.memory_percent is not None
    return offer.share is not None and offer.share >= request.cores_percent


def _has_percent(offer: _Offer, percent: Fraction) -> bool:
    """Return whether a type has this part of its GPU's memory: profiles leave some of that over, at most a fiftieth."""
    return offer.gpu_mib is not None and offer.framebuffer_mib * 100 >= percent * offer.gpu_mib * _NEARLY


def _amount_text(request: DeviceRequest) -> str:
    amounts = [] if request.memory_mib is None else [f"{request.memory_mib} MiB"]
    amounts += [] if request.memory_percent is None else [f"{float(request.memory_percent):g} % of the memory"]
    amounts += [] if request.cores_percent is None else [f"{float(request.cores_percent):g} % of the cores"]
    return " and ".join(amounts)


def _kept_text(offer: _Offer, request: DeviceRequest) -> str:
    what = _amount_text(request) or f"GPU instance {request.mig_slices}g.{request.mig_gb}gb"
    share = ""
    if request.cores_percent is not None and offer.share is not None:
        share = f", and {float(offer.share):.3g} % of the time"
    elif request.cores_percent is not None and not offer.has_scheduler:
        share = ", and its own part of the cores, which vgpuctl cannot compare"
    return f"{what}: {offer.profile} has about {offer.usable_mib} MiB for programs{share}"


def _gpus_text(gpus: Sequence[Gpu]) -> str:
    counts = Counter(gpu.model for gpu in gpus if gpu.is_display_class)
    return ", ".join(model if count == 1 else f"{count} {model}" for model, count in counts.items()) or "none"


def _error(text: str, hint: str | None = None) -> HostCannot:
    return HostCannot(text, hint=hint or "vgpuctl list-gpus shows what this host has", check=_CHECK)
