# SPDX-License-Identifier: Apache-2.0
"""Choose the whole GPUs, or the GPU of a plain VF, that a VM gets without a profile.

A VM gets all of the whole GPUs that it asks for, or none. Named addresses are taken as they are. Otherwise it gets the
free GPUs that are nearest to each other (`vm_placement`), of one model where possible. GPUs of different models
go to one VM only if it names them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vgpuctl.backends import backend_for, backend_of_mode
from vgpuctl.config.vm_request import VmRequest
from vgpuctl.errors import NoCapacity, NotFound, VgpuctlError
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.numbers import count_text
from vgpuctl.model.request import GpuConstraints
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import AssignedVgpu
from vgpuctl.placement.constraints import add_spread_group, select_allowed_gpus, why_excluded, why_restricted
from vgpuctl.placement.slot_search import choose_gpu_for_vf
from vgpuctl.placement.vm_placement import choose_near, stuck_write_error
from vgpuctl.value import Value, replace

Functions = tuple[AssignedVgpu, ...]


def choose_whole_gpus(snapshot: Snapshot, request: VmRequest, vm: str, uuid: str) -> Functions:
    """Return the functions of the whole GPUs that a VM gets. `vm`: its name.

    Raises:
        NoCapacity: fewer are free than requested; the message has both numbers, and the reason for each GPU.
        NotFound, InvalidInput, Refused, InUse, HostCannot, Stuck: why the only GPU, or a named one, cannot be given.
    """
    gpus, excluded = candidate_gpus(snapshot, request.constraints, uuid)
    if names_each_gpu(request) and not excluded and len(gpus) == request.gpus:
        return _give_all(snapshot, request, gpus, _gpus_of_vm(snapshot, uuid), vm)
    offer = offer_whole_gpus(snapshot, request, vm, uuid)
    if offer.chosen is not None:
        return number_functions([offer.functions[g.address] for g in offer.chosen])
    if request.gpus == 1:
        return _give(snapshot, request, _least_taken(snapshot, request, gpus, vm))
    raise _too_few_error(request, offer)


class WholeGpuOffer(Value):
    """What a host offers to a request for whole GPUs.

    `gpus`: all that the request could mean. `functions`: what a VM would get of each GPU that can be given now, by its
    address; `reasons`: why each other one cannot. `chosen`: the GPUs to give, None if there are too few.
    """

    gpus: tuple[Gpu, ...]
    functions: Mapping[str, Functions]
    reasons: Mapping[str, str]
    chosen: tuple[Gpu, ...] | None


def offer_whole_gpus(snapshot: Snapshot, request: VmRequest, vm: str, uuid: str) -> WholeGpuOffer:
    """Return which whole GPUs a VM would get, and why it would not get others. `vm`: its name.

    Raises:
        NoCapacity, NotFound: the request excludes every GPU, or names one that the host does not have.
    """
    gpus, excluded = candidate_gpus(snapshot, request.constraints, uuid)
    beside = _gpus_of_vm(snapshot, uuid)
    restricted = excluded | _restrictions(snapshot, request, gpus, vm)
    open_gpus = [g for g in gpus if g.address not in restricted]
    functions, refusals = _try_each(snapshot, request, open_gpus, beside)
    chosen = _choose(request, [g for g in open_gpus if g.address in functions], beside)
    reasons = restricted | {address: error.message for address, error in refusals.items()}
    short = {address: _short(address, reason) for address, reason in reasons.items()}
    named = tuple(g for g in snapshot.gpus if g.address in functions or g.address in reasons)
    return WholeGpuOffer(named, functions, short, chosen)


def _gpus_of_vm(snapshot: Snapshot, uuid: str) -> tuple[Gpu, ...]:
    """Return the GPUs on which a VM has something."""
    return tuple(g for g in snapshot.gpus if any(v.vm_uuid == uuid for v in snapshot.vgpus_on(g.address)))


def names_each_gpu(request: VmRequest) -> bool:
    """Say whether a request for whole GPUs names each of them by its address."""
    names = request.gpu
    return len(names) == request.gpus and all(normalize_pci(name) is not None for name in names)


def number_functions(parts: Sequence[Functions]) -> Functions:
    """Return the functions of several GPUs as those of one VM, with an index for each."""
    return tuple(replace(v, index=n) for n, v in enumerate(v for part in parts for v in part))


def choose_vf_gpu(snapshot: Snapshot, request: VmRequest, vm: str, uuid: str) -> Gpu:
    """Return the GPU that provides the next plain VF of a VM, or one that says why none does.

    Raises:
        NoCapacity, NotFound, Stuck: as `choose_whole_gpus`.
    """
    return _least_taken(snapshot, request, candidate_gpus(snapshot, request.constraints, uuid)[0], vm)


def _give(snapshot: Snapshot, request: VmRequest, gpu: Gpu, fellows: frozenset[str] = frozenset()) -> Functions:
    backend = backend_of_mode(request.mode)
    return backend.assign(
        snapshot, gpu, force_console=request.force_console, force_reset=request.force_reset, fellows=fellows
    )


def _give_all(snapshot: Snapshot, request: VmRequest, gpus: Sequence[Gpu], beside: Sequence[Gpu], vm: str) -> Functions:
    """Return the functions of GPUs that are all named; the first that cannot be given says why."""
    fellows = frozenset(g.address for g in (*gpus, *beside))
    parts = []
    for gpu in gpus:
        _least_taken(snapshot, request, (gpu,), vm)  # raises what restricts it
        parts.append(_give(snapshot, request, gpu, fellows))
    return number_functions(parts)


def _restrictions(snapshot: Snapshot, request: VmRequest, gpus: Sequence[Gpu], vm: str) -> dict[str, str]:
    """Return why nothing new goes to some of these GPUs: host.yaml, or a kernel write that is blocked."""
    stuck = {s.gpu for s in snapshot.stuck_writes}
    reasons = {g.address: why for g in gpus if (why := why_restricted(g, request.mode, vm)) is not None}
    return reasons | {g.address: "a kernel write on it is blocked" for g in gpus if g.address in stuck}


def _try_each(
    snapshot: Snapshot, request: VmRequest, gpus: Sequence[Gpu], beside: Sequence[Gpu]
) -> tuple[dict[str, Functions], dict[str, VgpuctlError]]:
    """Return what a VM would get of each GPU, and why it would get nothing of the others."""
    fellows = frozenset(g.address for g in (*beside, *(gpus if request.gpus == len(gpus) else ())))
    offers: dict[str, Functions] = {}
    refusals: dict[str, VgpuctlError] = {}
    for gpu in gpus:
        try:
            offers[gpu.address] = _give(snapshot, request, gpu, fellows)
        except VgpuctlError as error:
            refusals[gpu.address] = error
    return offers, refusals


def _choose(request: VmRequest, free: Sequence[Gpu], beside: Sequence[Gpu]) -> tuple[Gpu, ...] | None:
    """Return the GPUs to give: of the first model with enough, else of several models that the request names.

    `beside`: the GPUs that the VM has already. Their models come first.
    """
    for model in dict.fromkeys(g.model for g in (*beside, *free)):
        chosen = choose_near([g for g in free if g.model == model], request.gpus, beside)
        if chosen is not None:
            return chosen
    return choose_near(free, request.gpus, beside) if len(request.gpu) > 1 else None


def _too_few_error(request: VmRequest, offer: WholeGpuOffer) -> NoCapacity:
    """Say how many whole GPUs are free and why the others are not; and of which models, if these are the reason."""
    free_models = [g.model for g in offer.gpus if g.address in offer.functions]
    counts = [f"{free_models.count(model)} {model}" for model in dict.fromkeys(free_models)]
    models = f" ({', '.join(counts)}; GPUs of different models only if --gpu names them)" if len(counts) > 1 else ""
    requested, free = count_text(request.gpus, "whole GPU"), len(offer.functions)
    details = [f"{address}: {reason}" for address, reason in offer.reasons.items()]
    return NoCapacity(
        f"{requested} requested, but only {free} of {len(offer.gpus)} can be given now{models}",
        hint="vgpuctl list-gpus; vgpuctl list-vms shows which VM has which GPU",
        requested=request.gpus,
        free=free,
        **({"details": details} if details else {}),
    )


def _short(address: str, reason: str) -> str:
    """Return a reason without the address that it begins with, and without what follows from it."""
    return reason.partition(";")[0].removeprefix(f"{address} is ").removeprefix(f"{address} ")


def _least_taken(snapshot: Snapshot, request: VmRequest, gpus: Sequence[Gpu], vm: str) -> Gpu:
    """Return the GPU that the next device comes from; if none can give one, a GPU that says why.

    Raises:
        NotFound: the host has no GPU. NoCapacity, Stuck: nothing new goes to any of them.
    """
    if not gpus:
        raise NotFound("this host has no GPU", hint="vgpuctl list-gpus --all also lists other devices")
    stuck = {s.gpu: s for s in snapshot.stuck_writes}
    if len(gpus) == 1 and gpus[0].address in stuck:
        raise stuck_write_error(stuck[gpus[0].address])
    restricted = {g.address: why for g in gpus if (why := why_restricted(g, request.mode, vm)) is not None}
    if len(restricted) == len(gpus):
        raise NoCapacity(
            f"no GPU accepts a new vGPU: {'; '.join(f'{a}: {why}' for a, why in restricted.items())}",
            hint=f"vgpuctl uncordon {gpus[0].address}" if gpus[0].cordoned else "vgpuctl list-gpus --all",
            gpus=sorted(restricted),
        )
    gpus = tuple(g for g in gpus if g.address not in restricted)
    usable = [g for g in gpus if g.address not in stuck]
    if request.mode == "sriov":
        with_vfs = [g for g in usable if backend_for(g.backend).mode == request.mode]
        chosen = choose_gpu_for_vf(snapshot, with_vfs, request.placement, vm)
        return chosen or (with_vfs or usable or list(gpus))[0]
    free = [g for g in usable if not snapshot.vgpus_on(g.address)]
    return (free or usable or list(gpus))[0]


def candidate_gpus(snapshot: Snapshot, requested: GpuConstraints, uuid: str) -> tuple[tuple[Gpu, ...], dict[str, str]]:
    """Return the GPUs that a request for whole GPUs or plain VFs can choose from, and why it excludes others.

    Raises:
        NoCapacity: none is left; the message names for each GPU the constraint that excludes it.
    """
    constraints = add_spread_group(snapshot, requested, uuid)
    gpus = select_allowed_gpus(snapshot, constraints)
    excluded = {g.address: why for g in gpus if (why := why_excluded(snapshot, g, constraints, uuid)) is not None}
    if gpus and len(excluded) == len(gpus):
        details = "; ".join(
            f"{exclusion.constraint} excludes {address}: {exclusion.reason}" for address, exclusion in excluded.items()
        )
        raise NoCapacity(
            f"no GPU meets all conditions: {details}",
            hint="vgpuctl list-gpus --all",
            gpus=sorted(excluded),
        )
    reasons = {address: f"{exclusion.constraint}: {exclusion.reason}" for address, exclusion in excluded.items()}
    return tuple(g for g in gpus if g.address not in excluded), reasons
