# SPDX-License-Identifier: Apache-2.0
"""Replay requests on the GPUs of a host, with one policy or with each. The host is looked at once and not touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from vgpuctl.capacity.site import Site, site
from vgpuctl.engine.observe import Want, observe
from vgpuctl.errors import HostCannot, InvalidInput
from vgpuctl.placement import generate, mixes, trace
from vgpuctl.placement.demand import Demand, demands, serving
from vgpuctl.placement.least_waste import LeastWaste
from vgpuctl.placement.outcome import run_value
from vgpuctl.placement.policy import BY_GPU, Policy
from vgpuctl.placement.replay import Arrival, replay, span
from vgpuctl.placement.requests import Ask, Request, Requests
from vgpuctl.spec.fields import DEFAULT_PLACEMENT
from vgpuctl.value import NOTHING, Value, replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World


MOST_REQUESTS = 1_000_000
"""More are a mistake in what was typed, and would not fit into memory."""


class Hardware(Value):
    """On which GPUs: see `site`."""

    hosts: int = 1
    keep: bool = False
    instances_on_demand: bool = False


class Recorded(Value):
    """Requests of a file."""

    file: str
    requests: Requests


class Generated(Value):
    """Requests to generate. `load`: of the framebuffer; `mix`: profiles and weights in place of the pattern's."""

    pattern: str
    chance: generate.Chance
    days: int
    load: float = 1.0
    number: int | None = None
    mix: Mapping[str, float] = NOTHING


class Simulated(Value):
    """What came of it, as the JSON `data` object, and the requests as the lines of a CSV file."""

    data: Mapping[str, object]
    csv: tuple[str, ...]
    warnings: tuple[str, ...]


def simulate(world: World, hardware: Hardware, wanted: Recorded | Generated, policies: Sequence[str]) -> Simulated:
    """Replay the requests with each of the policies; of none, with the one that places VMs on this host.

    Raises:
        HostCannot: no GPU of the host can be counted on.
        InvalidInput: a request names a profile that no GPU offers.
    """
    snapshot = observe(world, Want(types=True))
    whole = site(snapshot, keep=hardware.keep, instances_on_demand=hardware.instances_on_demand, hosts=hardware.hosts)
    _require_profiles(world, whole)
    requests = wanted.requests.all if isinstance(wanted, Recorded) else _generated(whole, wanted)
    served = _served(whole, requests, wanted.file if isinstance(wanted, Recorded) else "what was generated")
    useful = [any(d.profiles[number] for d in served.values()) for number in range(len(whole.kinds))]
    on = whole.only(useful)
    ordered = sorted(requests, key=lambda one: one.arrival_seconds)
    arrivals = [Arrival(r.arrival_seconds, r.departure_seconds, served[r.ask].name, r.number) for r in ordered]
    kinds = serving(on.kinds, list(dict.fromkeys(served.values())))
    mix = Counter[str]()
    for arrival in arrivals:
        mix[arrival.profile] += arrival.number
    runs = []
    for name in policies or (snapshot.placement.policy or DEFAULT_PLACEMENT,):
        came = replay(on.fleet(kinds), on.used_mib, arrivals, _policy(name, mix))
        runs.append(run_value(name, arrivals, came, kinds))
    begin, end = span(arrivals)
    data = {
        "gpus": _gpus(on),
        "framebuffer_mib": on.framebuffer_mib,
        "kept_mib": sum(on.used_mib),
        "requests": len(arrivals),
        "requests_without_gpu": wanted.requests.without_gpu if isinstance(wanted, Recorded) else 0,
        "models_not_here": sum(not served[r.ask].restricted for r in requests),
        "begin_seconds": begin,
        "end_seconds": end,
        "policies": runs,
    }
    csv = trace.write([replace(r, ask=Ask(served[r.ask].name)) for r in ordered])
    return Simulated(data, tuple(csv), (*snapshot.warnings, *_left_out(whole, useful)))


def _policy(name: str, mix: Mapping[str, float]) -> Policy:
    """Return a policy as new. `mix`: what least-waste protects."""
    return BY_GPU[name]() if name in BY_GPU else LeastWaste(mix)


def _require_profiles(world: World, on: Site) -> None:
    """See that there is something to replay on.

    Raises:
        HostCannot: no GPU offers a vGPU.
    """
    if any(kind.sizes for kind in on.kinds):
        return
    why = "; ".join(f"{address}: {reason}" for address, reason in on.left_out.items())
    raise HostCannot(
        f"no GPU of {world.name} offers a vGPU that can be counted{f': {why}' if why else ''}",
        hint="vgpuctl list-profiles --all and list-gpus --all show what it has",
        check="profiles",
    )


def _generated(on: Site, wanted: Generated) -> tuple[Request, ...]:
    pattern, parts = {
        "vdi-day": (generate.vdi_day, mixes.desktops),
        "ai": (generate.ai, mixes.ai),
        "mig": (generate.churn, mixes.mig),
        "churn": (generate.churn, mixes.desktops),
    }[wanted.pattern]
    if wanted.mix:
        hours = mixes.MIG_HOURS if wanted.pattern == "mig" else mixes.DESKTOP_HOURS
        found = mixes.given(wanted.mix, on.kinds, on.called, hours)
    else:
        found = parts(on.kinds, on.called)
    asked = demands((part.ask for part in found), on.kinds, on.called).values()
    useful = on.only([any(d is not None and d.profiles[number] for d in asked) for number in range(len(on.kinds))])
    size = generate.Size(wanted.days, useful.framebuffer_mib - sum(useful.used_mib), wanted.load, wanted.number)
    requests = tuple(islice(pattern(wanted.chance, found, size), MOST_REQUESTS + 1))
    if len(requests) > MOST_REQUESTS:
        raise InvalidInput(
            f"more than {MOST_REQUESTS} requests are not generated", hint="less --load, fewer --days or a --count"
        )
    if not requests:
        raise InvalidInput("not one request comes in the time", hint="more --load, more --days or a --count")
    return requests


def _served(on: Site, requests: Sequence[Request], file: str) -> dict[Ask, Demand]:
    """Return what serves each ask.

    Raises:
        InvalidInput: nothing serves some, each with its line and what may have been meant.
    """
    found = demands((r.ask for r in requests), on.kinds, on.called)
    missing = {ask: mixes.unserved(ask, on.kinds) for ask, known in found.items() if known is None}
    if missing:
        wrong = [(r.line, "no GPU here offers {}; {}".format(*missing[r.ask])) for r in requests if r.ask in missing]
        raise trace.refusal(file, wrong)
    return {ask: known for ask, known in found.items() if known is not None}


def _gpus(on: Site) -> list[dict[str, object]]:
    """Return how many GPUs of each kind there are."""
    numbers = Counter(gpu.group.kind for gpu in on.gpus)
    return [
        {"model": on.kinds[number].name, "count": count, "framebuffer_mib": on.kinds[number].framebuffer_mib}
        for number, count in sorted(numbers.items())
    ]


def _left_out(on: Site, useful: Sequence[bool]) -> tuple[str, ...]:
    numbers = Counter(gpu.group.kind for gpu in on.gpus if not useful[gpu.group.kind])
    idle = (f"{n} x {on.kinds[kind].name} offers nothing that is asked for" for kind, n in sorted(numbers.items()))
    return (*(f"{address} is not simulated: {why}" for address, why in sorted(on.left_out.items())), *idle)
