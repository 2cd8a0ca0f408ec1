# SPDX-License-Identifier: Apache-2.0
"""Replay requests on the GPUs of a host with one or more policies. It reads the host once and changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from vgpuctl.capacity.simulated_gpus import SimulatedGpus, list_simulated_gpus
from vgpuctl.config.vm_fields import DEFAULT_PLACEMENT_POLICY
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.model.results.simulation import SimulatedGpusResult, SimulationResult
from vgpuctl.observe import ReadScope, observe
from vgpuctl.placement import trace_csv, workload, workload_mixes
from vgpuctl.placement.least_waste import LeastWaste
from vgpuctl.placement.policy import GPU_POLICIES, PlacementPolicy
from vgpuctl.placement.profile_resolution import ResolvedProfile, rename_profiles, resolve_selectors
from vgpuctl.placement.replay import Arrival, find_time_span, replay_arrivals
from vgpuctl.placement.replay_report import report_replay
from vgpuctl.placement.trace_request import ProfileSelector, Trace, TraceRequest
from vgpuctl.value import EMPTY_MAPPING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


MAX_REQUESTS = 1_000_000
"""More requests are a mistake in the options, and would not fit into memory."""


class Hardware(Value):
    """The GPUs to simulate: see `capacity.simulated_gpus`."""

    hosts: int = 1
    keep: bool = False
    instances_on_demand: bool = False


class RecordedRequests(Value):
    """Requests from a file."""

    file: str
    requests: Trace


class GeneratedRequests(Value):
    """Requests to generate. `load`: share of the framebuffer; `mix`: weights by profile, replacing the pattern's."""

    pattern: str
    chance: workload.RandomSource
    days: int
    load: float = 1.0
    count: int | None = None
    mix: Mapping[str, float] = EMPTY_MAPPING


class Simulation(Value):
    """The result, and the requests as the lines of a CSV file."""

    data: SimulationResult
    csv: tuple[str, ...]
    warnings: tuple[str, ...]


def simulate(
    host: Host, hardware: Hardware, source: RecordedRequests | GeneratedRequests, policies: Sequence[str]
) -> Simulation:
    """Replay the requests with each policy; without any, with the policy that places VMs on this host.

    Raises:
        HostCannot: no GPU of the host can be simulated.
        InvalidInput: a request names a profile that no GPU offers.
    """
    snapshot = observe(host, ReadScope(types=True))
    all_gpus = list_simulated_gpus(
        snapshot, keep_vgpus=hardware.keep, instances_on_demand=hardware.instances_on_demand, host_count=hardware.hosts
    )
    _require_profiles(host, all_gpus)
    requests = (
        source.requests.requests if isinstance(source, RecordedRequests) else _generate_requests(all_gpus, source)
    )
    resolved = _match_demands(
        all_gpus, requests, source.file if isinstance(source, RecordedRequests) else "what was generated"
    )
    is_useful = [any(d.profiles[number] for d in resolved.values()) for number in range(len(all_gpus.kinds))]
    used_gpus = all_gpus.keep_kinds(is_useful)
    ordered = sorted(requests, key=lambda request: request.arrival_seconds)
    arrivals = [
        Arrival(r.arrival_seconds, r.departure_seconds, resolved[r.selector].name, r.vgpu_count) for r in ordered
    ]
    gpu_kinds = rename_profiles(used_gpus.kinds, list(dict.fromkeys(resolved.values())))
    vgpu_counts = Counter[str]()
    for arrival in arrivals:
        vgpu_counts[arrival.profile] += arrival.vgpu_count
    runs = []
    for name in policies or (snapshot.placement_spec.policy or DEFAULT_PLACEMENT_POLICY,):
        replayed = replay_arrivals(
            used_gpus.make_fleet(gpu_kinds), used_gpus.used_mib, arrivals, _policy(name, vgpu_counts)
        )
        runs.append(report_replay(name, arrivals, replayed, gpu_kinds))
    begin, end = find_time_span(arrivals)
    data = SimulationResult(
        gpus=_gpu_results(used_gpus),
        framebuffer_mib=used_gpus.framebuffer_mib,
        kept_mib=sum(used_gpus.used_mib),
        requests=len(arrivals),
        requests_without_gpu=source.requests.skipped_count if isinstance(source, RecordedRequests) else 0,
        models_not_here=sum(not resolved[r.selector].is_model_known for r in requests),
        begin_seconds=begin,
        end_seconds=end,
        policies=tuple(runs),
    )
    csv = trace_csv.format_trace([replace(r, selector=ProfileSelector(resolved[r.selector].name)) for r in ordered])
    return Simulation(data, tuple(csv), (*snapshot.warnings, *_left_out_warnings(all_gpus, is_useful)))


def _policy(name: str, mix: Mapping[str, float]) -> PlacementPolicy:
    """Return a new instance of a policy. `mix`: the profiles that least-waste protects."""
    return GPU_POLICIES[name]() if name in GPU_POLICIES else LeastWaste(mix)


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
        hint="vgpuctl list-profiles --all and list-gpus --all show what it has",
        check="profiles",
    )


def _generate_requests(gpus: SimulatedGpus, settings: GeneratedRequests) -> tuple[TraceRequest, ...]:
    pattern, default_mix = {
        "vdi-day": (workload.generate_vdi_day, workload_mixes.desktop_mix),
        "ai": (workload.generate_ai, workload_mixes.ai_mix),
        "mig": (workload.generate_churn, workload_mixes.mig_mix),
        "churn": (workload.generate_churn, workload_mixes.desktop_mix),
    }[settings.pattern]
    if settings.mix:
        hours = workload_mixes.MIG_HOURS if settings.pattern == "mig" else workload_mixes.DESKTOP_HOURS
        mix_parts = workload_mixes.custom_mix(settings.mix, gpus.kinds, gpus.model_matchers, hours)
    else:
        mix_parts = default_mix(gpus.kinds, gpus.model_matchers)
    resolved = resolve_selectors((part.selector for part in mix_parts), gpus.kinds, gpus.model_matchers).values()
    useful_gpus = gpus.keep_kinds(
        [any(d is not None and d.profiles[number] for d in resolved) for number in range(len(gpus.kinds))]
    )
    size = workload.WorkloadSize(
        settings.days, useful_gpus.framebuffer_mib - sum(useful_gpus.used_mib), settings.load, settings.count
    )
    requests = tuple(islice(pattern(settings.chance, mix_parts, size), MAX_REQUESTS + 1))
    if len(requests) > MAX_REQUESTS:
        raise InvalidInput(
            f"more than {MAX_REQUESTS} requests are not generated", hint="less --load, fewer --days or a --count"
        )
    if not requests:
        raise InvalidInput("not one request comes in the time", hint="more --load, more --days or a --count")
    return requests


def _match_demands(
    gpus: SimulatedGpus, requests: Sequence[TraceRequest], file: str
) -> dict[ProfileSelector, ResolvedProfile]:
    """Return the profile that serves each selector.

    Raises:
        InvalidInput: no GPU serves some of them; it names each line and suggests similar profiles.
    """
    resolved = resolve_selectors((r.selector for r in requests), gpus.kinds, gpus.model_matchers)
    unserved = {
        selector: workload_mixes.describe_unserved(selector, gpus.kinds)
        for selector, profile in resolved.items()
        if profile is None
    }
    if unserved:
        invalid_lines = [
            (r.line, "no GPU here offers {}; {}".format(*unserved[r.selector]))
            for r in requests
            if r.selector in unserved
        ]
        raise trace_csv.invalid_lines_error(file, invalid_lines)
    return {selector: profile for selector, profile in resolved.items() if profile is not None}


def _gpu_results(gpus: SimulatedGpus) -> tuple[SimulatedGpusResult, ...]:
    """Return the number of GPUs of each kind."""
    counts_by_kind = Counter(gpu.group.kind_index for gpu in gpus.gpus)
    return tuple(
        SimulatedGpusResult(gpus.kinds[kind].name, count, gpus.kinds[kind].framebuffer_mib)
        for kind, count in sorted(counts_by_kind.items())
    )


def _left_out_warnings(gpus: SimulatedGpus, useful: Sequence[bool]) -> tuple[str, ...]:
    counts_by_kind = Counter(gpu.group.kind_index for gpu in gpus.gpus if not useful[gpu.group.kind_index])
    idle_warnings = (
        f"{count} x {gpus.kinds[kind].name} offers nothing that is asked for"
        for kind, count in sorted(counts_by_kind.items())
    )
    return (
        *(f"{address} is not simulated: {reason}" for address, reason in sorted(gpus.excluded_gpus.items())),
        *idle_warnings,
    )
