# SPDX-License-Identifier: Apache-2.0
"""Changing a VM that reserves its places only while it runs: nothing is taken or freed while it is off."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import context, create, delete, open_sim_host, picture, request, run_reconcile, set_vm, start, stop
from tests.reserving_vms import SMALL, carriers, reserving_request, small, taken, vm_of
from tests.unit.operations.test_change import ensure
from vgpuctl.errors import NoCapacity
from vgpuctl.model.vm import VmState
from vgpuctl.operations.attach import attach, detach
from vgpuctl.value import replace


@pytest.mark.parametrize("kind", SMALL)
def test_always_becomes_running_and_frees_its_place(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, request(profile, name="vm"), start=False)
    assert len(picture(host).claims) == 1
    wanted = replace(request(profile, name="vm", reserve="running"), sources={"reserve": "command-line"})
    planned = ensure(host, wanted, dry_run=True)
    assert planned.data.after.reserve == "running"
    assert len(picture(host).claims) == 1
    done = ensure(host, wanted)
    assert done.data.reserve == "running"
    assert taken(host) == set()
    assert not ensure(host, wanted).changed
    start(host.ports, "vm")
    assert len(picture(host).claims) == 1


@pytest.mark.parametrize("kind", SMALL)
def test_running_becomes_always_and_takes_a_place_or_says_that_none_is_free(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "vm"), start=False)
    for name in ("kept-1", "kept-2"):
        create(host.ports, request(profile, name=name))
    wanted = replace(request(profile, name="vm"), sources={"reserve": "command-line"})
    before = picture(host)
    with pytest.raises(NoCapacity) as refused:
        ensure(host, wanted)
    assert refused.value.status == 4
    assert picture(host) == before
    delete(host.ports, "kept-2")
    done = ensure(host, wanted)
    assert done.data.reserve == "always"
    assert [v.present for v in done.data.vgpus] == [True]
    assert taken(host) == {*carriers(host, "kept-1"), *carriers(host, "vm")}
    host = host.again()
    assert run_reconcile(host.ports).data.findings == ()
    start(host.ports, "vm")


@pytest.mark.parametrize(("scenario", "first", "second"), [("a100-40", "A100-4C", "A100-5C"), ("t4", "T4-2Q", "T4-4Q")])
def test_its_profile_changes_without_taking_a_place(tmp_path: Path, scenario: str, first: str, second: str) -> None:
    host = open_sim_host(tmp_path, scenario)
    create(host.ports, reserving_request(first, "vm"), start=False)
    create(host.ports, request(first, name="kept"))
    before = taken(host)
    set_vm(host.ports, request(second, name="vm"))
    assert taken(host) == before
    record = vm_of(host, "vm").record
    assert record is not None
    assert [v.profile for v in record.vgpus] == [second]
    assert record.reserve == "running"
    delete(host.ports, "kept")
    start(host.ports, "vm")
    assert taken(host) == set(carriers(host, "vm"))


@pytest.mark.parametrize("kind", ["vendor-vf", "mdev-pf"])
def test_attach_and_detach_of_one_that_is_off_take_and_free_nothing(tmp_path: Path, kind: str) -> None:
    host, profile = small(tmp_path, kind)
    create(host.ports, reserving_request(profile, "vm"), start=False)
    old = carriers(host, "vm")
    create(host.ports, request(profile, name="kept"))
    before = taken(host)
    attach(host.ports, context(wait_seconds=5), request(profile, name="vm"))
    assert len(carriers(host, "vm")) == 2
    assert taken(host) == before
    detach(host.ports, context(wait_seconds=5), "vm", old)
    assert len(carriers(host, "vm")) == 1
    assert taken(host) == before
    assert vm_of(host, "kept").state is VmState.RUNNING
    start(host.ports, "vm")
    stop(host.ports, "vm")
    assert taken(host) == before


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", SMALL)
def test_what_a_vm_that_is_off_gets_is_not_where_it_is_already(tmp_path: Path, kind: str, full: bool) -> None:
    host, profile = small(tmp_path, kind)
    for name in ("attached", "changed"):
        create(host.ports, reserving_request(profile, name), start=False)
    for name in ("a", "b") if full else ():
        create(host.ports, request(profile, name=name))
    before = taken(host)
    attach(host.ports, context(wait_seconds=5), request(profile, name="attached"))
    set_vm(host.ports, request(profile, count=2, name="changed"))
    for name in ("attached", "changed"):
        assert len(set(carriers(host, name))) == 2
    assert taken(host) == before
    for name in ("a", "b") if full else ():
        delete(host.ports, name)
    start(host.ports, "attached")
    assert taken(host) == set(carriers(host, "attached"))
