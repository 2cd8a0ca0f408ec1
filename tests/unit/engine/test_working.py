# SPDX-License-Identifier: Apache-2.0
"""reconcile leaves a VM alone on which another command works, also one without a place, of which no claim tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.halted import Halted, beside
from tests.unit.engine.test_many import ensure
from tests.unit.engine.test_refresh import prepared, refresh
from tests.worlds import Host, create, delete, mend, open_host, picture, wish
from vgpuctl.errors import Failed


def lent(name: str) -> Any:
    return wish("T4-2Q", name=name, reserve="running")


def create_off(world: Any) -> object:
    return create(world, lent("vm"), start=False)


def create_two(world: Any) -> object:
    one_at_a_time = 1  # where it halts, nothing else of that process goes on
    return ensure(world, lent("vm-{}"), ("vm-1", "vm-2"), start=False, parallel=one_at_a_time)


def change_disk(world: Any) -> object:
    return refresh(world)


WORKS = [("create", create_off), ("count", create_two), ("refresh", change_disk)]


def begun(tmp_path: Any, what: str, work: Callable[[Any], object]) -> tuple[Host, Halted]:
    host = prepared(tmp_path, reserve="running") if what == "refresh" else open_host(tmp_path, "t4")
    return host, Halted(host, "hypervisor", "redefine" if what == "refresh" else "set_promise", work)


@pytest.mark.parametrize(("what", "work"), WORKS, ids=[w for w, _ in WORKS])
def test_a_vm_without_a_place_is_left_alone_while_a_process_works_on_it(tmp_path, what, work):
    host, halted = begun(tmp_path, what, work)
    later = beside(host)
    before = picture(later)
    assert mend(later.world).data["findings"] == []
    assert picture(later) == before
    assert halted.finish() == 0
    assert later.world.claims.working() == frozenset()
    assert mend(beside(host).world).data["findings"] == []


@pytest.mark.parametrize(("what", "work"), WORKS, ids=[w for w, _ in WORKS])
def test_it_is_mended_once_that_process_is_dead(tmp_path, what, work):
    host, halted = begun(tmp_path, what, work)
    halted.die()
    later = beside(host)
    assert mend(later.world).changed
    assert len(picture(later).domains) == (what == "refresh")
    assert mend(later.world).data["findings"] == []
    assert later.world.claims.working() == frozenset()


def test_a_delete_in_flight_is_left_alone_too(tmp_path):
    host = open_host(tmp_path, "t4")
    create_off(host.world)
    halted = Halted(host, "hypervisor", "undefine", lambda world: delete(world, "vm"))
    assert mend(beside(host).world).data["findings"] == []
    assert halted.finish() == 0
    assert picture(beside(host)).domains == {}


def test_nothing_is_made_when_the_work_cannot_be_noted(tmp_path):
    host = open_host(tmp_path, "t4")
    before = picture(host)
    (host.world.claims._run_dir / "working").write_text("no directory")
    with pytest.raises(Failed, match="cannot be noted"):
        create_off(host.world)
    assert picture(host) == before
