# SPDX-License-Identifier: Apache-2.0
"""The arguments of a simulation: requests from a file or generated ones, and GPUs that you might buy."""

from __future__ import annotations

import random
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from vgpuctl import simulated
from vgpuctl.config.arguments import (
    MAX_DAYS,
    MAX_DESKTOPS,
    MAX_NEW_CARDS,
    MAX_SIMULATED_HOSTS,
    SIMULATION_PATTERNS,
    as_texts,
    require_choice,
    require_range,
)
from vgpuctl.config.vm_fields import PLACEMENT_POLICIES
from vgpuctl.errors import InvalidInput
from vgpuctl.library.text_file import read_text
from vgpuctl.model.gpu import Gpu
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations import simulate
from vgpuctl.operations.simulate import Simulation, SimulationInputs, SimulationRequest
from vgpuctl.simulate.trace import TraceRequest, parse_trace
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

__all__ = ["SimulationRequest", "check", "run", "usage_error"]
DEFAULT_SEED = 1
_LIMITS = {"count": MAX_DESKTOPS, "days": MAX_DAYS, "host_count": MAX_SIMULATED_HOSTS}
MAX_BYTES = 64 << 20
"""About a million requests."""


def run(host: Host, request: SimulationRequest) -> Simulation:
    """Carry out a simulation.

    Raises:
        InvalidInput: the arguments contradict each other, or the requests are wrong.
        NotFound: there is no such file, or a card's model is unknown.
    """
    check(request)
    inputs = SimulationInputs(
        random.Random(DEFAULT_SEED if request.seed is None else request.seed),  # noqa: S311
        _read_requests(request.requests) if request.requests is not None else (),
        dict(map(_parse_weight, as_texts("mix", request.mix))),
        tuple(gpu for text in as_texts("add_cards", request.add_cards) for gpu in _list_new_gpus(text)),
    )
    return simulate.simulate(host, request, inputs)


def check(request: SimulationRequest) -> None:
    """Check that the arguments go together.

    Raises:
        InvalidInput: they do not.
    """
    if request.generate is not None:
        require_choice("generate", request.generate, SIMULATION_PATTERNS)
    if request.placement is not None:
        require_choice("placement", request.placement, PLACEMENT_POLICIES)
    for name, most in _LIMITS.items():
        if getattr(request, name) is not None:
            require_range(name, getattr(request, name), 1, most)
    for name in ("generate", "count", "mix", "days", "seed"):
        if request.requests is not None and getattr(request, name) not in (None, ()):
            raise usage_error(f"--{name} applies to generated requests, and --requests reads them from a file")
    if request.compare and request.placement is not None:
        raise usage_error("--compare runs every policy: omit --placement")


def usage_error(text: str) -> InvalidInput:
    """Return the error for arguments that do not go together."""
    return InvalidInput(text, hint="vgpuctl simulate --help")


def _read_requests(path: str) -> tuple[TraceRequest, ...]:
    return parse_trace(read_text(path, "CSV", MAX_BYTES), path)


def _parse_weight(text: str) -> tuple[str, float]:
    """Return a profile and its weight.

    Raises:
        InvalidInput: one of them is missing, or the weight is zero.
    """
    profile, _, weight = text.rpartition(":")
    if not profile or not re.fullmatch(r"\d{1,6}(\.\d{1,6})?", weight, re.ASCII) or float(weight) <= 0:
        raise usage_error(f"--mix {text}: expected PROFILE:WEIGHT, for example 2B:40")
    return profile, float(weight)


def _list_new_gpus(text: str) -> list[Gpu]:
    """Return the GPUs of the cards in `MODEL:N`, as the simulator's driver reports them.

    Raises:
        InvalidInput: the number is missing or out of range, or no vGPU of this card can be counted.
        NotFound: the simulator does not know the model.
    """
    model, _, number = text.rpartition(":")
    if not model or not re.fullmatch(r"\d{1,6}", number, re.ASCII) or not 1 <= int(number) <= MAX_NEW_CARDS:
        raise usage_error(f"--add-cards {text}: expected MODEL:N, for example A16:3, with N from 1 to {MAX_NEW_CARDS}")
    with (
        TemporaryDirectory(prefix="vgpuctl-") as directory,
        simulated.open_host_with_card(model, Path(directory)) as host,
    ):
        gpus = observe(host, ReadScope(types=True)).gpus
    if not any(vgpu_type.framebuffer_mib for gpu in gpus for vgpu_type in gpu.types):
        raise usage_error(f"--add-cards {text}: this card has no vGPU types with a known size of framebuffer")
    return [
        replace(gpu, address=f"new {model} {card}, GPU {position}")
        for card in range(1, int(number) + 1)
        for position, gpu in enumerate(gpus, 1)
    ]
