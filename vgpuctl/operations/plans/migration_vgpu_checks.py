# SPDX-License-Identifier: Apache-2.0
"""Whether a host has a GPU for each vGPU of a VM that moves there, and software that can take it while the VM runs.

Whether a slot is free is decided where one is chosen; here is which GPUs come into question, and why others do not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set

from vgpuctl.backends import backend_for
from vgpuctl.backends.base import GpuBackend
from vgpuctl.backends.versions import old_programs
from vgpuctl.errors import HostCannot, NoCapacity, VgpuctlError
from vgpuctl.gpu.profiles import find_types
from vgpuctl.gpu.room import why_profile_unknown
from vgpuctl.makers import enable_vfs_hint, maker_of, vgpu_driver_hint
from vgpuctl.makers.maker import Maker
from vgpuctl.model.gpu import Backend, Gpu
from vgpuctl.model.numbers import format_version
from vgpuctl.model.results.migration import MigratingVgpuResult, MigrationOfferResult, MigrationReasonResult
from vgpuctl.operations.plans.migration_target import Pair, TargetFacts
from vgpuctl.operations.plans.selection import shorten
from vgpuctl.value import EMPTY_MAPPING, Value, replace

Reasons = Iterator[MigrationReasonResult]
_HOST_DRIVER = "host-driver"
_COMMAND = re.compile(r"[;:] (vgpuctl [a-z].*)")


class GpuProblem(Value):
    """Why a GPU does not take a vGPU, as a clause, and what helps. `is_host_driver`: the hosts' drivers differ."""

    what: str
    hint: str
    is_host_driver: bool = False


def find_gpus(
    vgpu: MigratingVgpuResult, offer: MigrationOfferResult, facts: TargetFacts, *, offline: bool
) -> Mapping[str, GpuProblem | None]:
    """Return the GPUs of the target that offer what a vGPU needs: None, or why that one does not take it.

    `offline`: its state is not sent, so nothing has to be equal.
    """
    return {
        gpu.address: None if offline else _problem_on(vgpu, gpu, offer, facts)
        for gpu in facts.snapshot.gpus
        if _offers(gpu, vgpu)
    }


def find_fit_gpus(offer: MigrationOfferResult, facts: TargetFacts, *, offline: bool) -> frozenset[str]:
    """Return the GPUs of the target that one of the VM's vGPUs can be on, and that refuse none of them."""
    by_vgpu = [find_gpus(vgpu, offer, facts, offline=offline) for vgpu in offer.vgpus]
    fit = {gpu for gpus in by_vgpu for gpu, problem in gpus.items() if problem is None}
    return frozenset(fit - {gpu for gpus in by_vgpu for gpu, problem in gpus.items() if problem is not None})


def gpu_refusals(offer: MigrationOfferResult, facts: TargetFacts, *, offline: bool) -> Mapping[str, str]:
    """Return why GPUs of the target that offer what a vGPU needs do not take it, by address."""
    problems = (find_gpus(vgpu, offer, facts, offline=offline) for vgpu in offer.vgpus)
    return {gpu: problem.what for gpus in problems for gpu, problem in gpus.items() if problem is not None}


def lacks_gpu(offer: MigrationOfferResult, facts: TargetFacts, *, offline: bool) -> bool:
    """Return whether one of its vGPUs can be on no GPU of the target, whatever is free: `vgpu_reasons` says why."""
    return any(all(find_gpus(vgpu, offer, facts, offline=offline).values()) for vgpu in offer.vgpus)


def _offers(gpu: Gpu, vgpu: MigratingVgpuResult) -> bool:
    """Return whether a vGPU of this profile, or a device of this model, can be on a GPU.

    Whether a GPU can be given whole, or has VFs, is for who chooses one: that depends on more than its driver now.
    """
    if vgpu.profile is not None:
        return any(vgpu.profile in (known.profile, known.name) for known in gpu.types)
    return gpu.is_display_class and _is_same_model(gpu, vgpu)


def _is_same_model(gpu: Gpu, vgpu: MigratingVgpuResult) -> bool:
    """Compare the ids of vendor and device: names come from different lists, and may not be known. Unknown is no."""
    if gpu.pci_id is not None and vgpu.pci_id is not None:
        return gpu.pci_id == vgpu.pci_id
    return bool(vgpu.gpu_model) and gpu.model == vgpu.gpu_model


def _model(gpu: Gpu) -> str | None:
    """Return the name of its model; None where it was not read."""
    return None if gpu.model == gpu.pci_id else gpu.model


def _problem_on(
    vgpu: MigratingVgpuResult, gpu: Gpu, offer: MigrationOfferResult, facts: TargetFacts
) -> GpuProblem | None:
    limits = facts.pair_limits.get((vgpu.carrier, gpu.address))
    if limits is not None:
        return _limits_problem(limits, offer, facts)
    ecc = facts.has_ecc.get(gpu.address)
    if None not in (ecc, vgpu.has_ecc) and ecc is not vgpu.has_ecc:
        words = {True: "on", False: "off"}
        return GpuProblem(
            f"its ECC is {words[bool(ecc)]}, and that of the GPU on {offer.host.name} is {words[not ecc]}",
            f"on {facts.host.name}: nvidia-smi -i {gpu.address} -e {int(bool(vgpu.has_ecc))}, then reset "
            "the GPU when no VM uses it, or reboot when no VM runs; or add --offline",
        )
    return None


def _limits_problem(limits: tuple[str, ...], offer: MigrationOfferResult, facts: TargetFacts) -> GpuProblem:
    """Return what NVML's words for why a GPU does not take a vGPU mean here."""
    ours, theirs = offer.host, facts.host
    texts = {
        _HOST_DRIVER: f"the host drivers do not match ({ours.driver or 'unknown'} on {ours.name}, "
        f"{theirs.driver or 'unknown'} on {theirs.name})",
        "guest-driver": "the driver in its guest does not match the driver of this host",
        "gpu": f"this GPU is not of the same kind as the one on {ours.name}, or not set up in the same way",
    }
    known = [texts[limit] for limit in limits if limit in texts]
    is_driver = _HOST_DRIVER in limits
    return GpuProblem(
        f"NVML says that {' and '.join(known) or 'it does not take this vGPU, and gives no reason'}",
        "install the same driver on both hosts; or add --offline" if is_driver else "add --offline",
        is_host_driver=is_driver,
    )


def vgpu_reasons(pair: Pair) -> Reasons:
    """Yield why no GPU of the target takes a vGPU."""
    for vgpu in pair.offer.vgpus:
        yield from _gpu_reasons(pair, vgpu)
        if not pair.offline:
            yield from _software_reasons(pair, vgpu)
    if not pair.offline:
        yield from _maker_reasons(pair)


def _gpu_reasons(pair: Pair, vgpu: MigratingVgpuResult) -> Reasons:
    gpus = find_gpus(vgpu, pair.offer, pair.facts, offline=pair.offline)
    if not gpus:
        yield _no_gpu_reason(pair, vgpu)
    elif all(gpus.values()):
        addresses: dict[str, list[str]] = {}
        for address, problem in gpus.items():
            addresses.setdefault("" if problem is None else problem.what, []).append(address)
        texts = "; ".join(f"to {', '.join(names)}: {what}" for what, names in addresses.items())
        hint = next((problem.hint for problem in gpus.values() if problem is not None), None)
        yield pair.there(f"{vgpu.profile or vgpu.carrier} cannot go {texts}", hint)


def _no_gpu_reason(pair: Pair, vgpu: MigratingVgpuResult) -> MigrationReasonResult:
    """Return why no GPU offers what a vGPU needs, as for a new VM, and what the host has instead."""
    snapshot = pair.facts.snapshot
    gpus = [gpu for gpu in snapshot.gpus if gpu.is_display_class]
    if vgpu.profile is not None:
        try:
            find_types(snapshot, gpus, vgpu.profile)
        except (HostCannot, NoCapacity) as error:  # VFs are off, or a GPU in use lists only what still fits
            return pair.there(error.message, None if error.hint is None else pair.on_target(error.hint))
        except VgpuctlError:
            pass
    model = vgpu.gpu_model or vgpu.pci_id or "of the same model"
    models = Counter(gpu.model for gpu in gpus)
    others = shorten([f"{number} × {name}" for name, number in models.items()]) or "no GPU"
    if vgpu.profile is None:
        use = "to pass through" if _backend(vgpu).takes_whole_gpu else "with virtual functions"
        instead = f", but {others}" if gpus else ""
        return pair.there(f"the host has no {model} {use}{instead}", f"choose a host with this GPU: {model}")
    same = next((gpu for gpu in gpus if _is_same_model(gpu, vgpu)), None)
    if same is None:
        what = f"no GPU offers {vgpu.profile}: the host has {others}"
        return pair.there(what, f"choose a host with this GPU: {model}")
    return pair.there(
        f"no GPU offers {vgpu.profile}: the host has {others}; {same.address}: {why_profile_unknown(same)}",
        _offering_hint(pair, same),
    )


def _offering_hint(pair: Pair, gpu: Gpu) -> str:
    """Return what makes a GPU of the target offer more profiles."""
    if gpu.backend is None:
        return pair.on_target(enable_vfs_hint(gpu))
    if not backend_for(gpu.backend).creates_devices:
        return pair.on_target(vgpu_driver_hint(gpu))
    driver = pair.on_target(f"install the vGPU driver that {pair.source} has")
    return f"choose another host; or {driver} (vgpuctl list-profiles shows what this one offers)"


def no_place_reason(
    offer: MigrationOfferResult,
    target: str,
    error: VgpuctlError,
    refusals: Mapping[str, str] = EMPTY_MAPPING,
    hidden: Set[str] = frozenset(),
) -> MigrationReasonResult:
    """Return why a VM has no place on a host: the error for a new VM, with its reason for each GPU.

    `refusals`: why GPUs with the profile do not take the vGPU, whatever is free. `hidden`: GPUs of no interest.
    """
    excluded, details = error.facts.get("excluded"), error.facts.get("details")
    gpus_by_option: Mapping[str, Sequence[str]] = excluded if isinstance(excluded, dict) else {}
    lines = [str(line) for line in details] if isinstance(details, list) else []
    lines = [line for line in lines if line.partition(": ")[0] not in hidden]
    lines += [f"{gpu}: {why}" for gpu, why in refusals.items() if isinstance(error, NoCapacity)]
    message = error.message
    if gpus_by_option:
        message = message.partition("; ")[0].replace("no room for", "no place for")  # there may be room
        lines = [line.partition("; room for ")[0] for line in lines]
        for option in gpus_by_option:
            made = f"{offer.name} was created with {option}"
            for end, words in ((": its ", ", and this GPU's "), (": it ", ", and this GPU "), ("", "")):
                lines = [line.replace(f"excluded by {option}{end}", f"{made}{words}") for line in lines]
    hint = next((_constraint_hint(option, gpus) for option, gpus in gpus_by_option.items()), error.hint)
    commands = [match for match in map(_COMMAND.search, lines) if match is not None]  # in a GPU's own reason
    if len(commands) == 1:
        hint = commands[0][1]
        lines = [_COMMAND.sub("", line) for line in lines]
    elif commands:
        hint, lines = None, [_COMMAND.sub(rf"; on {target}: \1", line) for line in lines]
    elif lines and all(": host.yaml " in line for line in lines):
        hint = "change gpus: in /etc/vgpuctl/host.yaml; or choose another host"
    if len(lines) == 1:
        (line,) = lines
        gpu, _, why = line.partition(": ")
        message = f"{message}: {why if gpu in message else line}"
    elif lines:
        message = "\n".join([f"{message}:", *lines])
    return MigrationReasonResult(target, message, None if hint is None else f"on {target}: {hint}")


def _constraint_hint(option: str, gpus: Sequence[str]) -> str:
    """Return what lets a VM have a GPU that an option of its creation excludes, or shows who is on it."""
    name, _, value = option.partition(" ")
    is_scheduler = name == "--scheduler"
    if is_scheduler:
        return _scheduler_command(gpus[0], value)
    return f"move the VMs that are named away (vgpuctl show-gpu {gpus[0]} shows all); or choose another host"


def _scheduler_command(gpu: str, policy: str) -> str:
    return f"vgpuctl set-scheduler {gpu} --policy {policy} (it changes all VMs on that GPU)"


def _maker_reasons(pair: Pair) -> Reasons:
    """Yield what makers say of the two hosts; of different drivers only if NVML has not said it already."""
    by_vgpu = [find_gpus(vgpu, pair.offer, pair.facts, offline=False) for vgpu in pair.offer.vgpus]
    is_named = any(p is not None and p.is_host_driver for gpus in by_vgpu if all(gpus.values()) for p in gpus.values())
    drivers = (pair.offer.host.driver or "", pair.facts.host.driver or "")
    for maker in _makers(pair):
        for problem in maker.move_problems(pair.offer.host, pair.facts.host):
            is_driver = all(drivers) and all(driver in problem for driver in drivers)
            if not (is_driver and is_named):
                hint = "install the same driver on both hosts; or add --offline" if is_driver else "add --offline"
                yield pair.there(problem, hint)


def _backend(vgpu: MigratingVgpuResult) -> GpuBackend:
    """Return the backend that the source names; one without facts for a word of another version."""
    known = next((backend for backend in Backend if backend.value == vgpu.backend), None)
    return backend_for(known)


def least_qemu(pair: Pair) -> str | None:
    """Return the QEMU that the VM's vGPUs need in order to move while it runs; None: any."""
    needs = (_backend(vgpu).live_move for vgpu in pair.offer.vgpus if not pair.offline)
    least = max((needed.qemu for needed in needs if needed is not None), default=None)
    return None if least is None else format_version(least)


def _software_reasons(pair: Pair, vgpu: MigratingVgpuResult) -> Reasons:
    needed = _backend(vgpu).live_move
    if needed is None:
        return  # the source says whether its driver can
    is_named = pair.has_older_qemu or pair.lacks_machine
    move, versions = f"move {vgpu.profile or vgpu.carrier}", needed
    if _changes_kind(pair, vgpu):
        kinds = ("an mdev vGPU", "a VF vGPU")
        first, second = kinds if _backend(vgpu).carrier_has_uuid else kinds[::-1]
        move = f"move {first} to {second}"
        versions = replace(needed, libvirt=needed.between_kinds_libvirt)
    for host in (pair.offer.host, pair.facts.host):
        for old in old_programs(versions, host.libvirt_version, host.qemu_version, host.kernel):
            if old.program == "QEMU" and host is pair.facts.host and is_named:
                continue
            yield MigrationReasonResult(
                host.name,
                f"{old.program} {old.version} is too old to {move} while its VM runs: {old.least} is needed",
                f"on {host.name}: upgrade {old.program} to {old.least} or newer; or add --offline",
            )


def _changes_kind(pair: Pair, vgpu: MigratingVgpuResult) -> bool:
    """Return whether all GPUs there have it as another kind: an mdev in place of a VF, or the reverse."""
    own = _backend(vgpu).carrier_has_uuid
    kinds = {backend_for(gpu.backend).carrier_has_uuid for gpu in pair.facts.snapshot.gpus if _offers(gpu, vgpu)}
    return bool(kinds) and own not in kinds


def _makers(pair: Pair) -> list[Maker]:
    gpus = [g for g in pair.facts.snapshot.gpus for vgpu in pair.offer.vgpus if vgpu.profile and _offers(g, vgpu)]
    return list(dict.fromkeys(maker_of(gpu) for gpu in gpus))


def vgpu_warnings(pair: Pair) -> Reasons:
    """Yield what of the GPUs may surprise."""
    if pair.offline:
        return
    for maker in _makers(pair):
        for doubt in maker.move_doubts(pair.offer.host, pair.facts.host):
            yield pair.there(doubt, None) if pair.target in doubt else pair.here(doubt, None)
    for vgpu in pair.offer.vgpus:
        gpus = [
            g
            for g in pair.facts.snapshot.gpus
            if _offers(g, vgpu) and _problem_on(vgpu, g, pair.offer, pair.facts) is None
        ]
        what = vgpu.profile or vgpu.carrier
        policies = {policy for g in gpus if (policy := _policy(g)) is not None}
        if vgpu.scheduler is not None and policies and vgpu.scheduler not in policies:
            yield pair.there(
                f"the scheduler of the GPUs with {what} is {', '.join(sorted(policies))} here and {vgpu.scheduler} on "
                f"{pair.source}: the VM's share of the GPU's time changes",
                pair.on_target(_scheduler_command(gpus[0].address, vgpu.scheduler)),
            )
        models = {model for g in gpus if (model := _model(g)) is not None}
        if vgpu.metadata is None and vgpu.gpu_model and models and vgpu.gpu_model not in models:
            yield pair.there(
                f"{what} goes from {vgpu.gpu_model} to {' or '.join(sorted(models))}: whether the driver takes that is "
                "not known",
                None,
            )


def _policy(gpu: Gpu) -> str | None:
    state = None if gpu.scheduler is None else gpu.scheduler.state
    return None if state is None or state.policy is None else state.policy.value
