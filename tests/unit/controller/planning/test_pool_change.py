# SPDX-License-Identifier: Apache-2.0
"""What people read of a change of a pool's spec before they make it."""

from __future__ import annotations

from tests.unit.controller.planning.fleets import HOST, IMAGE, NEW_IMAGE, NOW, desktop_of, pool_of, ready_report
from vgpuctl.controller.model import Desktop, PoolState
from vgpuctl.controller.planning.pool_change import desktop_changes


def ready(number: int, **changes) -> Desktop:
    return desktop_of(number, report=ready_report(), **changes)


def lines(pool, desktops, image=IMAGE) -> list[str]:
    return list(desktop_changes(pool, desktops, image, NOW, {"h1": HOST}))


def test_what_is_made_and_deleted():
    assert lines(pool_of(spare=2), []) == ["2 desktops made: d-001, d-002"]
    assert lines(pool_of(spare=7), [])[0].endswith("d-005, …")
    assert lines(pool_of(spare=1), [ready(1), ready(2)]) == ["1 desktop without a user deleted: d-002"]
    assert lines(pool_of(spare=2), [ready(1), ready(2)]) == []
    used = [ready(n, user=f"u{n}") for n in range(1, 4)]
    assert lines(pool_of(maximum=2), used) == [
        "3 desktops have a user, more than the maximum: they stay until they are released"
    ]


def test_a_new_image_and_a_paused_pool():
    rows = [ready(1), ready(2, image_id=NEW_IMAGE.id), ready(3, absent=True)]
    text = "1 desktop of another image refreshed to office, at most 1 at a time; those with a user after he gave them "
    assert lines(pool_of(spare=2), rows, NEW_IMAGE) == [f"{text}back or logged off"]
    kept = ["1 desktop of another image not refreshed: max_unavailable is 0"]
    assert lines(pool_of(spare=2, max_unavailable=0), rows, NEW_IMAGE) == kept
    assert lines(pool_of(spare=1, state=PoolState.PAUSED), []) == [
        "the pool is paused: nothing of this begins until it is resumed", "1 desktop made: d-001",
    ]  # fmt: skip
