# SPDX-License-Identifier: Apache-2.0
"""The types of vGPU that a pod could get on this host, and the smallest one that holds what a container asks for.

A guest's programs do not have all of a profile's framebuffer: the driver keeps some. NVIDIA's formula for the most that
it keeps is a sixteenth of the profile and 16 MiB, and adjustments: 4 MiB for retired pages and 28 MiB for compression,
as on a T4, and another sixteenth with ECC on GPUs without HBM2. It was seen quoted (sicorps.com, "NVIDIA Virtual GPU
Software Frame Buffer Reservation"), not at NVIDIA's. Without the part for ECC, which the host does not show for a type,
that is what is left out here.

Profiles of series C come first, then Q, which has CUDA as well; A and B have none. A GPU with MIG has only the profiles
of the GPU instances that exist: to divide it again ends the work of all of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from vgpuctl.config.kubernetes.request import DeviceRequest
from vgpuctl.errors import HostCannot
from vgpuctl.makers import maker_of
from vgpuctl.model.gpu import Gpu, VgpuType
from vgpuctl.model.names import ProfileName, parse_profile_name
from vgpuctl.model.numbers import format_mib
from vgpuctl.value import Value

_FIXED_MIB = 16 + 4 + 28
_SERIES = {"C": 0, "Q": 1}
_NEARLY = Fraction(98, 100)
_CHECK = "job"


class JobOffer(Value):
    """A type of vGPU that GPUs of this host have. `share`: in percent of a GPU's cores.

    For time-sliced types that is with the policy fixed_share; `has_scheduler`: policies say how the GPU's time is
    shared. Other makers' types have a part of the cores that no driver tells. `mig`: compute slices and GB of the GPU
    instance that it is on.
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

    @property
    def needs_policy(self) -> bool:
        """Whether its share of the cores depends on the scheduler's policy."""
        return self.has_scheduler and self.mig is None and not self.is_whole


def usable_mib(framebuffer_mib: int) -> int:
    """Return about how much of an NVIDIA profile's framebuffer a guest's programs have, in MiB."""
    return framebuffer_mib - framebuffer_mib // 16 - _FIXED_MIB


def offers_of(gpu: Gpu) -> Iterator[JobOffer]:
    """Yield the types of a GPU that programs can compute with."""
    for vgpu_type in gpu.types:
        offer = _offer(gpu, vgpu_type)
        if offer is not None:
            yield offer


def _offer(gpu: Gpu, vgpu_type: VgpuType) -> JobOffer | None:
    name = parse_profile_name(vgpu_type.profile)
    size = vgpu_type.framebuffer_mib or (None if name is None else _named_mib(name))
    is_nvidia = maker_of(gpu).has_nvml
    if size is None or (is_nvidia and (name is None or name.series not in _SERIES)):
        return None
    mig = None
    if is_nvidia and name is not None:
        mig = (name.mig_slices, round(size / 1024)) if name.mig_slices else None
        if (mig is not None) is not (gpu.mig is not None and gpu.mig.enabled) or not _has_instance(gpu, vgpu_type):
            return None
    count = vgpu_type.max_per_gpu
    share = _instance_share(gpu, mig[0], vgpu_type) if mig is not None else Fraction(100, count) if count else None
    return JobOffer(
        profile=vgpu_type.profile,
        framebuffer_mib=size,
        usable_mib=usable_mib(size) if is_nvidia else size,
        gpu_mib=gpu.framebuffer_mib,
        share=share if is_nvidia else None,
        rank=(size, _SERIES.get(name.series, 0) if name is not None else 0),
        mig=mig,
        is_whole=count == 1 and mig is None,
        has_scheduler=is_nvidia,
    )


def _has_instance(gpu: Gpu, vgpu_type: VgpuType) -> bool:
    """Return whether the GPU instance that a type is on exists; types that are on none need none."""
    instances = () if gpu.mig is None else gpu.mig.instances
    wanted = vgpu_type.gi_profile_id
    return wanted is None or any(instance.profile_id == wanted for instance in instances)


def _instance_share(gpu: Gpu, slices: int, vgpu_type: VgpuType) -> Fraction | None:
    """Return the percentage of a GPU's cores that a vGPU on a GPU instance has."""
    profiles = () if gpu.mig is None else gpu.mig.profiles
    total = max((profile.compute_slices for profile in profiles), default=0)
    return Fraction(100 * slices, total * (vgpu_type.max_per_gi or 1)) if total else None


def _named_mib(name: ProfileName) -> int | None:
    """Return the size that a profile's name says, in MiB; None for less than a GiB, which it says as 0."""
    match = re.fullmatch(r"(?:[1-7]-)?([0-9]+)[A-Z].*", name.without_board, re.ASCII | re.IGNORECASE)
    return None if match is None else int(match[1]) * 1024 or None


def choose_offer(gpus: Sequence[Gpu], offers: Sequence[JobOffer], request: DeviceRequest) -> JobOffer:
    """Return the smallest type that holds a request.

    Raises:
        HostCannot: none does.
    """
    if not offers:
        raise job_error(
            f"no vGPU types of {gpus_text(gpus)} are known for computing, so no part of it can be given",
            hint=maker_of(gpus[0]).slicing or f"vgpuctl show-gpu {gpus[0].address}",
        )
    if request.mig_slices is not None:
        return _choose_instance(gpus, offers, request)
    fitting = [offer for offer in offers if _holds(offer, request)]
    if not fitting:
        raise job_error(
            f"no vGPU of {gpus_text(gpus)} holds {amount_text(request)}: {_largest_text(offers, request)}",
            hint="vgpuctl list-profiles; a whole GPU holds more: ask for devices alone, without memory and cores",
        )
    return min(fitting, key=lambda offer: (offer.mig is not None, offer.rank))


def _largest_text(offers: Sequence[JobOffer], request: DeviceRequest) -> str:
    largest = max(offers, key=lambda offer: (offer.usable_mib, offer.share or 0))
    text = (
        f"the largest, {largest.profile}, has {format_mib(largest.framebuffer_mib)}, of which programs get about "
        f"{largest.usable_mib} MiB"
    )
    known = request.cores_percent is not None and largest.share is not None
    return f"{text}, and {float(largest.share or 0):.3g} % of the cores" if known else text


def _choose_instance(gpus: Sequence[Gpu], offers: Sequence[JobOffer], request: DeviceRequest) -> JobOffer:
    slices, size = request.mig_slices or 0, request.mig_gb or 0
    fitting = [offer for offer in offers if offer.mig is not None and offer.mig[0] >= slices and offer.mig[1] >= size]
    if not fitting:
        able = [gpu.address for gpu in gpus if gpu.mig is not None]
        existing = sorted({f"{offer.mig[0]}g.{offer.mig[1]}gb" for offer in offers if offer.mig is not None})
        there = f"; its GPU instances are {', '.join(existing)}" if existing else ""
        raise job_error(
            f"no GPU of this host is divided into GPU instances for {instance_text(request)}: {gpus_text(gpus)}{there}",
            hint=f"vgpuctl show-gpu {able[0]}; to divide it: vgpuctl set-mig --help"
            if able
            else "no GPU of this host supports MIG",
        )
    return min(fitting, key=lambda offer: (offer.mig or (0, 0), offer.rank))


def _holds(offer: JobOffer, request: DeviceRequest) -> bool:
    if request.memory_mib is not None and offer.usable_mib < request.memory_mib:
        return False
    if request.memory_percent is not None and not _has_percent(offer, request.memory_percent):
        return False
    if request.cores_percent is None:
        return True
    if not offer.has_scheduler:  # its part of the cores comes with its memory
        return request.memory_mib is not None or request.memory_percent is not None
    return offer.share is not None and offer.share >= request.cores_percent


def _has_percent(offer: JobOffer, percent: Fraction) -> bool:
    """Return whether a type has this part of its GPU's memory: profiles leave some of that over, at most a fiftieth."""
    return offer.gpu_mib is not None and offer.framebuffer_mib * 100 >= percent * offer.gpu_mib * _NEARLY


def amount_text(request: DeviceRequest) -> str:
    """Return what a container asks for of a GPU, for people."""
    amounts = [] if request.memory_mib is None else [f"{request.memory_mib} MiB"]
    amounts += [] if request.memory_percent is None else [f"{float(request.memory_percent):.3g} % of the memory"]
    amounts += [] if request.cores_percent is None else [f"{float(request.cores_percent):.3g} % of the cores"]
    return " and ".join(amounts)


def instance_text(request: DeviceRequest) -> str:
    """Return the name of the GPU instance that a container asks for; another maker's slice has no size."""
    return f"{request.mig_slices}g" + ("" if request.mig_gb is None else f".{request.mig_gb}gb")


def kept_text(offer: JobOffer, request: DeviceRequest) -> str:
    """Return how a type holds what a container asks for."""
    what = amount_text(request) or f"GPU instance {instance_text(request)}"
    share = ""
    if request.cores_percent is not None and offer.share is not None:
        share = f", and {float(offer.share):.3g} % of the {'cores' if offer.mig is not None else 'time'}"
    elif request.cores_percent is not None and not offer.has_scheduler:
        share = ", and its own part of the cores, which vgpuctl cannot compare"
    if request.mig_slices is not None and offer.mig not in (None, (request.mig_slices, request.mig_gb)):
        share += "; no smaller GPU instance of this host holds that"
    return f"{what}: {offer.profile} has about {offer.usable_mib} MiB for programs{share}"


def gpus_text(gpus: Sequence[Gpu]) -> str:
    """Return the models of GPUs, and how many there are of each."""
    counts = Counter(gpu.model for gpu in gpus if gpu.is_display_class)
    return ", ".join(model if count == 1 else f"{count} {model}" for model, count in counts.items()) or "none"


def job_error(text: str, hint: str | None = None) -> HostCannot:
    """Return the error of a pod that this host has nothing for."""
    return HostCannot(text, hint=hint or "vgpuctl list-gpus shows what this host has", check=_CHECK)
