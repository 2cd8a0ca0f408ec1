# SPDX-License-Identifier: Apache-2.0
"""What fits together, and the moves that make room: the `data` of the commands that weigh several vGPUs at once."""

from __future__ import annotations

from typing import Annotated

from vgpuctl.value import Value


class CountResult(Value):
    """A number of vGPUs of a profile."""

    profile: str
    count: int


class SpotResult(Value):
    """Where one vGPU has room. `placement_id` is null without mixed sizes, and if the driver chooses it."""

    profile: str
    gpu: str
    placement_id: int | None


class BarrierResult(Value):
    """How many of one of the profiles that do not fit have room on one GPU; `free` counts this profile alone.

    It is null if not known; `free_at_least` fit in any case.
    """

    address: str
    model: str
    profile: str
    free: int | None
    free_at_least: int
    reasons: tuple[str, ...]


class FitsResult(Value):
    """Whether the requested vGPUs fit together. `fits` is null if that is not known; `why` has the reason.

    If they fit, `places` has one place for each. If not, `too_many` is the smallest set to drop so that the rest
    fits, and `gpus` shows the room of each GPU for these.
    """

    fits: bool | None
    why: str | None
    wanted: tuple[CountResult, ...]
    places: tuple[SpotResult, ...]
    too_many: tuple[CountResult, ...]
    gpus: tuple[BarrierResult, ...]


class MoveResult(Value):
    """A vGPU of a VM that goes to another place; `state` is the VM's before: one that runs is stopped and started.

    `waits`: it gives up its place before, so that others can move, and the VM is off until its new one is free.
    `round`: the number of the step in `steps`.
    """

    vm: str
    uuid: str
    state: Annotated[str, "running", "stopped"]
    profile: str
    carrier: str
    from_gpu: str
    from_placement_id: int | None
    to_gpu: str
    to_placement_id: int | None
    waits: bool
    round: int


class StayResult(Value):
    """A vGPU that stays on the GPU that shall become empty. `vm` is null if no VM has it.

    `why`: what blocks it; `reasons`: for each other GPU, if it has no room there.
    """

    vm: str | None
    carrier: str
    profile: str | None
    why: str
    reasons: tuple[str, ...] = ()


class MovesResult(Value):
    """Moves in order, and where the requested vGPUs have room after them.

    `fewest`: whether fewer moves are known not to be enough. `source_gpu`: the GPU that the moves shall empty, if any;
    `stays`: the vGPUs that remain on it. With `dry_run` nothing was moved.
    """

    moves: tuple[MoveResult, ...]
    places: tuple[SpotResult, ...]
    fewest: bool
    source_gpu: str | None = None
    stays: tuple[StayResult, ...] = ()
