# SPDX-License-Identifier: Apache-2.0
"""reconcile leaves a VM alone while another command works on it, even a VM without a place, which has no claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.halted import Halted, reopen
from tests.hosts import SimulatedHost, create, delete, open_sim_host, picture, request, run_reconcile
from tests.unit.operations.test_ensure_vms import ensure
from tests.unit.operations.test_refresh import prepared, refresh
from vgpuctl.errors import Failed


def reserving(name: str) -> Any:
    return request("T4-2Q", name=name, reserve="running")


def create_off(ports: Any) -> object:
    return create(ports, reserving("vm"), start=False)


def create_two(ports: Any) -> object:
    one_at_a_time = 1  # where it halts, nothing else of that process goes on
    return ensure(ports, reserving("vm-{}"), ("vm-1", "vm-2"), start=False, parallel=one_at_a_time)


def change_disk(ports: Any) -> object:
    return refresh(ports)


WORKS = [("create", create_off), ("count", create_two), ("refresh", change_disk)]


def begun(tmp_path: Any, what: str, work: Callable[[Any], object]) -> tuple[SimulatedHost, Halted]:
    host = prepared(tmp_path, reserve="running") if what == "refresh" else open_sim_host(tmp_path, "t4")
    return host, Halted(host, "hypervisor", "redefine" if what == "refresh" else "set_record", work)


@pytest.mark.parametrize(("what", "work"), WORKS, ids=[w for w, _ in WORKS])
def test_a_vm_without_a_place_is_left_alone_while_a_process_works_on_it(tmp_path, what, work):
    host, halted = begun(tmp_path, what, work)
    later = reopen(host)
    before = picture(later)
    assert run_reconcile(later.ports).data.findings == ()
    assert picture(later) == before
    assert halted.finish() == 0
    assert later.ports.claims.vms_in_progress() == ()
    assert run_reconcile(reopen(host).ports).data.findings == ()


@pytest.mark.parametrize(("what", "work"), WORKS, ids=[w for w, _ in WORKS])
def test_it_is_fixed_once_that_process_is_dead(tmp_path, what, work):
    host, halted = begun(tmp_path, what, work)
    halted.die()
    later = reopen(host)
    assert run_reconcile(later.ports).changed
    assert len(picture(later).domains) == (what == "refresh")
    assert run_reconcile(later.ports).data.findings == ()
    assert later.ports.claims.vms_in_progress() == ()


def test_a_delete_in_flight_is_left_alone_too(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    create_off(host.ports)
    halted = Halted(host, "hypervisor", "undefine", lambda ports: delete(ports, "vm"))
    assert run_reconcile(reopen(host).ports).data.findings == ()
    assert halted.finish() == 0
    assert picture(reopen(host)).domains == {}


def test_nothing_is_made_when_the_work_cannot_be_noted(tmp_path):
    host = open_sim_host(tmp_path, "t4")
    before = picture(host)
    (host.ports.claims._run_dir / "working").write_text("does not exist")
    with pytest.raises(Failed, match="cannot record"):
        create_off(host.ports)
    assert picture(host) == before
