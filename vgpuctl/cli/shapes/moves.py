# SPDX-License-Identifier: Apache-2.0
"""What fits together, and the moves that make room: the `data` of the commands that weigh several vGPUs at once."""

from __future__ import annotations

from typing import Literal, TypedDict

from vgpuctl.cli.shapes.work import WorkShape


class CountShape(TypedDict):
    """So many vGPUs of a profile."""

    profile: str
    count: int


class SpotShape(TypedDict):
    """Where one vGPU has room. `placement_id` is null without mixed sizes, and where the driver alone chooses it."""

    profile: str
    gpu: str
    placement_id: int | None


class BarrierShape(TypedDict):
    """What one GPU has room for of one of the profiles that are too many; `free` counts that profile alone.

    It is null when not known; then `free_at_least` fit for sure.
    """

    address: str
    model: str
    profile: str
    free: int | None
    free_at_least: int
    reasons: list[str]


class FitsShape(TypedDict):
    """Whether all that is wanted fits together. `fits` is null when that is not known; `why` then says why not.

    `places` has one for each when it fits. When it does not, `too_many` are some of what is wanted that do not fit, and
    `gpus` what each GPU has room for of these; with `fewest` no fewer are too many.
    """

    fits: bool | None
    why: str | None
    wanted: list[CountShape]
    places: list[SpotShape]
    too_many: list[CountShape]
    fewest: bool
    gpus: list[BarrierShape]


class MoveShape(TypedDict):
    """A vGPU of a VM that goes to another place; `state` is the VM's before: one that runs is stopped and started.

    Those of one `round` go at once, as each needs the place of another: all are stopped before the first is started.
    """

    vm: str
    uuid: str
    state: Literal["running", "stopped"]
    profile: str
    carrier: str
    from_gpu: str
    from_placement_id: int | None
    to_gpu: str
    to_placement_id: int | None
    round: int


class MovesShape(WorkShape):
    """Moves in their order, and where what was asked for has room after them.

    `fewest`: whether it is known that fewer would not do. `dry_run` is true without --yes: nothing was moved.
    """

    moves: list[MoveShape]
    places: list[SpotShape]
    fewest: bool
