# SPDX-License-Identifier: Apache-2.0
"""Replay requests on the GPUs of a host with one or more policies. It reads the host once and changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import SIMULATION_PATTERNS
from vgpuctl.config.vm_fields import DEFAULT_PLACEMENT_POLICY, PLACEMENT_POLICIES
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.results.simulation import SimulationResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.placement.policy import POLICIES
from vgpuctl.placement.profile_resolution import ResolvedProfile, rename_profiles, resolve_profile
from vgpuctl.simulate import patterns, trace
from vgpuctl.simulate.gpus import SimulatedGpus, list_simulated_gpus
from vgpuctl.simulate.replay import Arrival, find_time_span, replay_arrivals, report_replay
from vgpuctl.simulate.trace import TraceRequest
from vgpuctl.value import EMPTY_MAPPING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


MAX_REQUESTS = 1_000_000
"""More requests are a mistake in the options, and would not fit into memory."""


class SimulationRequest(Value):
    """What to simulate: `requests`, a CSV file, or the pattern `generate` (`vdi-day` when neither is given).

    `count`: so many desktops; None for as many as have the framebuffer of all GPUs. `mix`: `PROFILE:WEIGHT` each.
    `add_cards`: `MODEL:N` each, N more cards in each host. `host_count`: so many hosts like this one. `keep`: the
    current vGPUs stay. `compare`: every placement policy.
    """

    requests: str | None = None
    generate: str | None = None
    count: int | None = None
    mix: tuple[str, ...] = ()
    days: int | None = None
    seed: int | None = None
    placement: str | None = None
    compare: bool = False
    add_cards: tuple[str, ...] = ()
    host_count: int = 1
    keep: bool = False


class SimulationInputs(Value):
    """What belongs to a request: the content of its file, the weights of its mix, and the GPUs of its new cards."""

    random_source: patterns.RandomSource
    recorded: tuple[TraceRequest, ...] = ()
    weights: Mapping[str, float] = EMPTY_MAPPING
    new_gpus: tuple[Gpu, ...] = ()


class Simulation(Value):
    """The result, and the requests as the lines of a CSV file."""

    data: SimulationResult
    csv: tuple[str, ...]
    warnings: tuple[str, ...]


def simulate(host: Host, request: SimulationRequest, inputs: SimulationInputs) -> Simulation:
    """Replay requests with each policy that is requested; without any, with the one that places VMs on this host.

    Raises:
        HostCannot: no GPU of the host can be simulated.
        InvalidInput: a request names a profile that no GPU offers.
    """
    snapshot = observe(host, ReadScope(types=True))
    with_new = replace(snapshot, gpus=(*snapshot.gpus, *inputs.new_gpus))
    all_gpus = list_simulated_gpus(with_new, keep_vgpus=request.keep, host_count=request.host_count)
    _require_profiles(host, all_gpus)
    requests = inputs.recorded or _generate_requests(all_gpus, request, inputs)
    resolved = _resolve_profiles(all_gpus, requests, request.requests or "the generated requests")
    useful = _useful_kinds(resolved.values(), all_gpus)
    gpus = all_gpus.keep_kinds(useful)
    ordered = sorted(requests, key=lambda request: request.arrival_seconds)
    arrivals = [
        Arrival(r.arrival_seconds, r.departure_seconds, resolved[r.profile].name, r.vgpu_count) for r in ordered
    ]
    kinds = rename_profiles(gpus.kinds, list(dict.fromkeys(resolved.values())))
    policy = request.placement or snapshot.placement_spec.policy or DEFAULT_PLACEMENT_POLICY
    runs = []
    for name in PLACEMENT_POLICIES if request.compare else (policy,):
        replayed = replay_arrivals(gpus.make_fleet(kinds), gpus.used_mib, arrivals, POLICIES[name]())
        runs.append(report_replay(name, arrivals, replayed, kinds))
    begin, end = find_time_span(arrivals)
    data = SimulationResult(
        gpus=gpus.count_by_kind(),
        framebuffer_mib=gpus.framebuffer_mib,
        kept_mib=sum(gpus.used_mib),
        requests=len(arrivals),
        begin_seconds=begin,
        end_seconds=end,
        policies=tuple(runs),
    )
    csv = trace.format_trace([replace(r, profile=resolved[r.profile].name) for r in ordered])
    return Simulation(data, tuple(csv), (*snapshot.warnings, *_warn_of_excluded(all_gpus, useful)))


def _require_profiles(host: Host, gpus: SimulatedGpus) -> None:
    """Refuse to replay without a GPU to replay on.

    Raises:
        HostCannot: no GPU offers a vGPU.
    """
    if any(kind.sizes for kind in gpus.kinds):
        return
    reasons = "; ".join(f"{address}: {reason}" for address, reason in gpus.excluded_gpus.items())
    raise HostCannot(
        f"no GPU of {host.name} offers a vGPU that can be counted{f': {reasons}' if reasons else ''}",
        hint="vgpuctl simulate --add-cards A16:3 simulates cards that you might buy",
        check="profiles",
    )


def _generate_requests(
    gpus: SimulatedGpus, request: SimulationRequest, inputs: SimulationInputs
) -> tuple[TraceRequest, ...]:
    pattern = request.generate or next(iter(SIMULATION_PATTERNS))
    mix = patterns.custom_mix(inputs.weights, gpus.kinds) if inputs.weights else patterns.desktop_mix(gpus.kinds)
    resolved = [resolve_profile(share.profile, gpus.kinds) for share in mix]
    useful_gpus = gpus.keep_kinds(_useful_kinds(filter(None, resolved), gpus))
    free_mib = useful_gpus.framebuffer_mib - sum(useful_gpus.used_mib)
    days = request.days or SIMULATION_PATTERNS[pattern]
    size = patterns.WorkloadSize(days, request.count or patterns.fill_fleet(mix, free_mib))
    requests = tuple(islice(patterns.PATTERNS[pattern](inputs.random_source, mix, size), MAX_REQUESTS + 1))
    if len(requests) > MAX_REQUESTS:
        raise InvalidInput(f"the maximum is {MAX_REQUESTS} requests", hint="use a smaller --count, or fewer --days")
    if not requests:
        raise InvalidInput("no request arrives in this time", hint="use a larger --count, or more --days")
    return requests


def _resolve_profiles(gpus: SimulatedGpus, requests: Sequence[TraceRequest], file: str) -> dict[str, ResolvedProfile]:
    """Return what serves each requested profile.

    Raises:
        InvalidInput: no GPU serves some of them; it names each line and suggests similar profiles.
    """
    resolved = {text: resolve_profile(text, gpus.kinds) for text in dict.fromkeys(r.profile for r in requests)}
    hints = {text: patterns.suggestion_for(text, gpus.kinds) for text, result in resolved.items() if result is None}
    invalid_lines = [
        (r.line, f"no GPU here offers {r.profile}; {hints[r.profile]}") for r in requests if r.profile in hints
    ]
    if invalid_lines:
        raise trace.invalid_lines_error(file, invalid_lines)
    return {text: result for text, result in resolved.items() if result is not None}


def _useful_kinds(resolved: Iterable[ResolvedProfile], gpus: SimulatedGpus) -> list[bool]:
    """Return for each kind of GPU whether it serves one of the requests."""
    served = [result.profiles for result in resolved]
    return [any(profiles[number] for profiles in served) for number in range(len(gpus.kinds))]


def _warn_of_excluded(gpus: SimulatedGpus, useful: Sequence[bool]) -> tuple[str, ...]:
    unused = gpus.keep_kinds([not is_useful for is_useful in useful]).count_by_kind()
    return (
        *(f"{address} is not simulated: {reason}" for address, reason in sorted(gpus.excluded_gpus.items())),
        *(f"{kind.count} x {kind.model} is not used: it offers none of the requested profiles" for kind in unused),
    )
