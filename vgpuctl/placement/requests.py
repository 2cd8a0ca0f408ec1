# SPDX-License-Identifier: Apache-2.0
"""Who wants vGPUs, from when until when: what `simulate` replays."""

from __future__ import annotations

from vgpuctl.value import Value

WHOLE_GPU = 1000
"""A whole GPU in thousandths."""


class Ask(Value):
    """What each vGPU of a request may be; equal asks are served alike.

    `profile`: names of profiles with `|` between them; a GPU gives the first that it has. A name is a profile's own
    (`A16-2B`) or what is behind the model in it (`2B`), which any model may serve. None: the smallest profile that
    covers `gpu_milli`, a share of the GPU's framebuffer in thousandths. `models`: the only models that will do, none
    for any.
    """

    profile: str | None = None
    gpu_milli: int = 0
    models: tuple[str, ...] = ()


class Request(Value):
    """One VM's vGPUs: `number` of them, all or none. `line` is its line in the file, 0 when it was generated.

    Times are seconds from the beginning. `departure_seconds` None: it stays until the end.
    """

    arrival_seconds: float
    departure_seconds: float | None
    ask: Ask
    number: int = 1
    name: str = ""
    line: int = 0


class Requests(Value):
    """Requests in the order of their file. `without_gpu`: tasks of the file that want none, and are left out."""

    all: tuple[Request, ...]
    without_gpu: int = 0
