# SPDX-License-Identifier: Apache-2.0
"""What a controller says of room in its fleet, and of what is being done there."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.model.results.fleet import DesktopResult
from vgpuctl.value import Value


class PoolRoomResult(Value):
    """How many more desktops of a pool fit now, at most `maximum_left`, which its spec allows.

    `why`: what the first host without room says; null where so many fit as the spec allows.
    """

    pool: str
    profiles: tuple[str, ...]
    free: int
    maximum_left: int
    why: str | None


class ProfileRoomResult(Value):
    """How many more of a profile fit if all have it, in all and on each of the `hosts`. `total`: on empty GPUs."""

    profile: str
    free: int
    total: int
    hosts: Mapping[str, int]


class FleetCapacityResult(Value):
    """What the hosts of a fleet have room for. The numbers do not add up: each is as if the others got nothing.

    `unplaced`: how many desktops wait for a host: they go first.
    """

    pools: tuple[PoolRoomResult, ...]
    profiles: tuple[ProfileRoomResult, ...]
    unplaced: int


class ImageCopyResult(Value):
    """An image that a host does not have whole. `state`: missing, copying 40 %, or failed with the reason."""

    image: str
    host: str
    state: str


class FleetProgressResult(Value):
    """What is being done. `moving`, `failed`: how many desktops are on their way, and how many failed or are not known.

    `desktops`, `failures`: the first ones of both, by name. `copies`: images on hosts that do not have them yet.
    """

    moving: int
    failed: int
    desktops: tuple[DesktopResult, ...]
    failures: tuple[DesktopResult, ...]
    copies: tuple[ImageCopyResult, ...]
