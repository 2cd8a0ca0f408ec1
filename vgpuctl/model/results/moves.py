# SPDX-License-Identifier: Apache-2.0
"""What fits together, and the moves that make room: the `data` of the commands that weigh several vGPUs at once."""

from __future__ import annotations

from typing import Annotated

from vgpuctl.value import Value


class CountResult(Value):
    """So many vGPUs of a profile."""

    profile: str
    count: int


class SpotResult(Value):
    """Where one vGPU has room. `placement_id` is null without mixed sizes, and where the driver alone chooses it."""

    profile: str
    gpu: str
    placement_id: int | None


class BarrierResult(Value):
    """What one GPU has room for of one of the profiles that are too many; `free` counts that profile alone.

    It is null when not known; then `free_at_least` fit for sure.
    """

    address: str
    model: str
    profile: str
    free: int | None
    free_at_least: int
    reasons: tuple[str, ...]


class FitsResult(Value):
    """Whether all that is wanted fits together. `fits` is null when that is not known; `why` then says why not.

    `places` has one for each when it fits. When it does not, `too_many` are the fewest of what is wanted without which
    the rest fits, and `gpus` what each GPU has room for of these.
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


class MovesResult(Value):
    """Moves in their order, and where what was asked for has room after them.

    `fewest`: whether it is known that fewer would not do. With `dry_run` nothing was moved.
    """

    moves: tuple[MoveResult, ...]
    places: tuple[SpotResult, ...]
    fewest: bool
