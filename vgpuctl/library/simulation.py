# SPDX-License-Identifier: Apache-2.0
"""The arguments of a simulation: recorded requests, or a pattern from which they are generated."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import (
    MAX_DAYS,
    MAX_LOAD,
    MAX_REQUESTS,
    MAX_SIMULATED_HOSTS,
    SIMULATION_PATTERNS,
    as_texts,
    require_choice,
    require_range,
)
from vgpuctl.config.vm_fields import PLACEMENT_POLICIES
from vgpuctl.errors import InvalidInput
from vgpuctl.library.text_file import read_text
from vgpuctl.operations import simulate
from vgpuctl.operations.simulate import GeneratedRequests, Hardware, RecordedRequests, Simulation
from vgpuctl.placement import trace_csv
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

VDI_DAYS, DEFAULT_DAYS = 1, 7
DEFAULT_LOAD, DEFAULT_SEED = 100, 1
_LIMITS = {"load": MAX_LOAD, "count": MAX_REQUESTS, "days": MAX_DAYS, "host_count": MAX_SIMULATED_HOSTS}
MAX_BYTES = 64 << 20
"""About a million requests."""


class SimulationRequest(Value):
    """What to simulate: either `requests`, a CSV file, or the pattern `generate`, with how much of it.

    `load`: the share of the framebuffer that is asked for, in percent. `mix`: `PROFILE:WEIGHT` each. `host_count`: so
    many hosts like this one. `keep`: what is on the GPUs stays there. `compare`: every placement policy.
    """

    requests: str | None = None
    generate: str | None = None
    load: int | None = None
    count: int | None = None
    mix: tuple[str, ...] = ()
    days: int | None = None
    seed: int | None = None
    placement: str | None = None
    compare: bool = False
    host_count: int = 1
    keep: bool = False
    mig_on_demand: bool = False


def run(host: Host, request: SimulationRequest) -> Simulation:
    """Carry out a simulation.

    Raises:
        InvalidInput: the arguments contradict each other, or the requests are wrong.
    """
    check(request)
    source = _read_recorded(request.requests) if request.requests is not None else _generated(request)
    policies = PLACEMENT_POLICIES if request.compare else tuple(filter(None, [request.placement]))
    return simulate.simulate(host, Hardware(request.host_count, request.keep, request.mig_on_demand), source, policies)


def check(request: SimulationRequest) -> None:
    """Check that the arguments go together.

    Raises:
        InvalidInput: they do not.
    """
    _check_values(request)
    if (request.requests is None) == (request.generate is None):
        raise usage_error("either --requests CSV or --generate PATTERN is due")
    if request.requests is not None:
        for name in ("load", "count", "mix", "days", "seed"):
            if getattr(request, name) not in (None, ()):
                raise usage_error(f"--{name} goes with --generate")
    if request.count is not None and request.load is not None:
        raise usage_error("--count and --load exclude each other")
    if request.compare and request.placement is not None:
        raise usage_error("--compare runs every policy: leave --placement out")
    if request.keep and request.mig_on_demand:
        raise usage_error("--keep keeps the GPU instances that are there, --mig-on-demand does not")


def _check_values(request: SimulationRequest) -> None:
    if request.generate is not None:
        require_choice("generate", request.generate, SIMULATION_PATTERNS)
    if request.placement is not None:
        require_choice("placement", request.placement, PLACEMENT_POLICIES)
    for name, most in _LIMITS.items():
        if getattr(request, name) is not None:
            require_range(name, getattr(request, name), 1, most)


def usage_error(text: str) -> InvalidInput:
    """Return the error for arguments that do not go together."""
    return InvalidInput(text, hint="vgpuctl simulate --help")


def _read_recorded(path: str) -> RecordedRequests:
    """Read recorded requests from a file."""
    return RecordedRequests(path, trace_csv.parse_trace(read_text(path, "CSV", MAX_BYTES), path))


def _generated(request: SimulationRequest) -> GeneratedRequests:
    """Return what requests to generate."""
    pattern = request.generate or ""
    rng = random.Random(DEFAULT_SEED if request.seed is None else request.seed)  # noqa: S311
    days = request.days or (VDI_DAYS if pattern == "vdi-day" else DEFAULT_DAYS)
    load = (request.load or DEFAULT_LOAD) / 100
    return GeneratedRequests(
        pattern, rng, days, load, request.count, dict(map(_parse_weight, as_texts("mix", request.mix)))
    )


def _parse_weight(text: str) -> tuple[str, float]:
    """Return a profile and its weight.

    Raises:
        InvalidInput: one of them is missing, or the weight is zero.
    """
    profile, _, weight = text.rpartition(":")
    if not profile or not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", weight, re.ASCII) or float(weight) <= 0:
        raise usage_error(f"--mix {text}: say PROFILE:WEIGHT, as 2B:40")
    return profile, float(weight)
