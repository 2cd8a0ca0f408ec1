# SPDX-License-Identifier: Apache-2.0
"""What follows for a pool's desktops when its spec is changed, in sentences for who decides about that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import count

from vgpuctl.controller.model import Desktop, FleetHost, Image, Pool, PoolState
from vgpuctl.controller.planning.pool_plan import plan_pool
from vgpuctl.model.numbers import count_text
from vgpuctl.value import replace

MOST_NAMES = 5


def desktop_changes(
    pool: Pool, desktops: Sequence[Desktop], image: Image, now: float, hosts: Mapping[str, FleetHost]
) -> tuple[str, ...]:
    """Return which desktops are made, deleted and refreshed. `pool`: with its new spec; `desktops`: all that it has."""
    numbers = count()
    active = replace(pool, state=PoolState.ACTIVE)
    plan = plan_pool(active, desktops, image, now, lambda: f"mac-{next(numbers)}", hosts)
    retired = set(plan.retire)
    lines = []
    if pool.state is PoolState.PAUSED:
        lines.append("the pool is paused: nothing of this begins until it is resumed")
    if plan.create:
        lines.append(f"{count_text(len(plan.create), 'desktop')} made: {_names([one.name for one in plan.create])}")
    if retired:
        names = [one.name for one in desktops if one.id in retired]
        lines.append(f"{count_text(len(names), 'desktop')} without a user deleted: {_names(names)}")
    kept = [one for one in desktops if one.id not in retired and not one.absent]
    old = [one for one in kept if one.image_id != image.id]
    if old:
        lines.append(_refreshed(pool, old, image))
    used = sum(one.user is not None for one in kept)
    if used > pool.spec.maximum:
        lines.append(f"{used} desktops have a user, more than the maximum: they stay until they are released")
    return tuple(lines)


def _refreshed(pool: Pool, old: Sequence[Desktop], image: Image) -> str:
    text = f"{count_text(len(old), 'desktop')} of another image"
    if pool.spec.max_unavailable == 0:
        return f"{text} not refreshed: max_unavailable is 0"
    return (
        f"{text} refreshed to {image.name}, at most {pool.spec.max_unavailable} at a time; those with a user after he "
        "gave them back or logged off"
    )


def _names(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:MOST_NAMES])
    return f"{shown}, …" if len(names) > MOST_NAMES else shown
