# SPDX-License-Identifier: Apache-2.0
"""Quotas, on each kind of database: nobody gets more than his, however many ask for him at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from sqlalchemy import insert

from tests.controller.conftest import SPEC, add_host, add_image, add_pool, opened
from tests.controller.test_store import ROOM, report_all
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.store import Store, upgrade
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import (
    Desktop,
    DesktopReport,
    DesktopVgpu,
    FleetCaller,
    NewDesktop,
    PoolChanges,
    Quota,
    QuotaUse,
    Role,
)
from vgpuctl.controller.planning.pool_spec import parse_pool
from vgpuctl.controller.planning.quotas import LIMITS, QuotaReached, gpu_mib_of, limits_of
from vgpuctl.errors import InvalidInput, NotFound, Stale
from vgpuctl.model.host_room import DivisionRule, GpuRoom, HostRoom
from vgpuctl.value import replace

ADMIN = FleetCaller("root", Role.ADMIN)
VGPU = DesktopVgpu("0000:01:00.0", "A100-4C", 4096)


def with_pools(store: Store, count: int = 2, *pools: str) -> None:
    """Make pools of ready desktops of 4 GiB on one host."""
    add_image(store)
    host, version = add_host(store), 1
    store.rooms.set(host.id, ROOM)
    lease = store.hosts.take_lease(host.id, store.holder, 600.0)
    assert lease is not None
    for place, name in enumerate(pools or ("office", "lab")):
        pool = add_pool(store, name, names=f"{name}-{{:03}}", per_user=count)
        new = [NewDesktop(f"{name}-{n:03}", f"52:54:00:00:{place:02x}:{n:02x}") for n in range(1, count + 1)]
        store.desktops.tick(pool.id, lambda *_, new=new: PoolChanges(tuple(new)))
    for desktop in store.desktops.unplaced():
        assert store.desktops.place(desktop.id, host.id, "A100-4C", version)
        version += 1
    assert report_all(store, host.id, lease.epoch, vgpus=(VGPU,))


def set_quota(store: Store, who: str, **limits: int) -> None:
    store.quotas.put(Quota(who, **limits), "root")


def test_the_most_specific_quota_decides() -> None:
    everybody, staff, cad = Quota("everybody", 1, 1, 4096), Quota("@staff", 2, 1), Quota("@cad", 1, 3, 8192)

    def numbers(*quotas: Quota) -> dict[str, tuple[int, str]]:
        return {name: (one.most, one.quota.who) for name, one in limits_of(quotas, "ada").items()}

    assert numbers() == {}
    assert numbers(everybody) == {
        "desktops": (1, "everybody"), "running": (1, "everybody"), "gpu_mib": (4096, "everybody"),
    }  # fmt: skip
    assert numbers(everybody, staff, cad) == {"desktops": (2, "@staff"), "running": (3, "@cad")}, (
        "@staff has no such limit"
    )
    assert numbers(everybody, staff, Quota("ada", running=5)) == {"running": (5, "ada")}
    assert numbers(everybody, Quota("ada", 0, 0, 0)) == {name: (0, "ada") for name in LIMITS}


def test_who_saw_a_former_quota_does_not_change_a_new_one(store: Store) -> None:
    former, _ = store.quotas.put(Quota("@staff", 1), "test")
    store.quotas.delete("@staff", "test")
    new, _ = store.quotas.put(Quota("@staff", 5), "test", 0)
    with pytest.raises(Stale):
        store.quotas.put(Quota("@staff", 9), "test", former.generation)
    assert store.quotas.put(Quota("@staff", 6), "test", new.generation)[1]


def test_a_quota_counts_desktops_of_all_pools(store: Store) -> None:
    with_pools(store, 4)
    set_quota(store, "everybody", desktops=2)
    store.desktops.assign("office", "ada", "test")
    second, _ = store.desktops.assign("lab", "ada", "test")
    with pytest.raises(QuotaReached) as error:
        store.desktops.assign("office", "ada", "test")
    assert error.value.message == "ada has 2 of 2 desktops: the quota of everybody, which root set"
    assert (error.value.hint or "").endswith("vgpuctl controller ensure-quota ada --desktops 3")
    assert len(store.desktops.list(user="ada")) == 2
    store.desktops.assign("office", "bob", "test")
    set_quota(store, "everybody", desktops=1)
    assert len(store.desktops.list(user="ada")) == 2, "nobody loses what he has"
    store.desktops.release(second.name, "test")
    with pytest.raises(QuotaReached, match="ada has 1 of 1 desktops"):
        store.desktops.assign("lab", "ada", "test")
    store.people.put("ada", "test", groups=["staff"])
    set_quota(store, "@staff", desktops=2, gpu_mib=65536)
    assert store.desktops.assign("office", "ada", "test")[1]
    store.quotas.delete("@staff", "root")
    store.quotas.delete("everybody", "root")
    assert store.desktops.assign("office", "ada", "test")[1]
    with pytest.raises(NotFound, match="no quota of everybody"):
        store.quotas.delete("everybody", "root")


def test_a_quota_of_gpu_memory(store: Store) -> None:
    with_pools(store, 3)
    set_quota(store, "ada", gpu_mib=10 * 1024)
    store.desktops.assign("office", "ada", "test")
    store.desktops.assign("lab", "ada", "test")
    with pytest.raises(QuotaReached) as error:
        store.desktops.assign("lab", "ada", "test")
    assert error.value.message.startswith("ada has 8 of 10 GiB of GPU memory, and 4 GiB more are asked for")
    assert "ensure-quota ada --gpu 12288MiB" in (error.value.hint or "")
    use, limits = store.quotas.of_person("ada")
    assert (use, {name: one.most for name, one in limits.items()}) == (QuotaUse(2, 2, 8192), {"gpu_mib": 10240})


def test_a_quota_of_those_that_run(store: Store) -> None:
    with_pools(store, 3)
    set_quota(store, "ada", running=1)
    first, _ = store.desktops.assign("office", "ada", "test")
    with pytest.raises(QuotaReached, match="ada has 1 of 1 running desktops"):
        store.desktops.assign("lab", "ada", "test")
    store.desktops.set_power(first.name, "test", on=False)
    second, _ = store.desktops.assign("lab", "ada", "test")
    with pytest.raises(QuotaReached):
        store.desktops.set_power(first.name, "test", on=True)
    assert not store.desktops.find(first.name).power_on
    set_quota(store, "ada", running=1, desktops=2)
    store.desktops.set_power(second.name, "test", on=False)
    assert store.desktops.set_power(first.name, "test", on=True)[1]
    with pytest.raises(QuotaReached):
        store.desktops.set_power(second.name, "test", on=True)
    assert not store.desktops.set_power(first.name, "test", on=True)[1], "it runs already"


def test_opening_ones_own_desktop_that_is_off_is_a_start(store: Store) -> None:
    with_pools(store, 1)
    first, _ = store.desktops.assign("office", "ada", "test")
    store.desktops.set_power(first.name, "test", on=False)
    store.desktops.assign("lab", "ada", "test")
    set_quota(store, "ada", running=1)
    with pytest.raises(QuotaReached):
        store.desktops.assign("office", "ada", "test")
    assert store.desktops.assign("lab", "ada", "test")[1] is False, "what runs is opened"


def test_a_user_whom_nobody_knows_yet_is_held_to_it(store: Store) -> None:
    """An import knows users of desktops, and no people."""
    with_pools(store, 1)
    with store.database.write() as connection:
        connection.execute(schema.desktop.update().values(user="eve", power_on=False))
    set_quota(store, "eve", running=1)
    assert store.desktops.set_power("office-001", "test", on=True)[1]
    with pytest.raises(QuotaReached):
        store.desktops.set_power("lab-001", "test", on=True)
    assert store.people.find("eve").realm is None


def test_many_at_once_never_exceed_a_quota_together(url: str) -> None:
    """Two controllers on PostgreSQL, two connections on SQLite; each of five people asks from many tabs."""
    upgrade(url)
    with opened(url) as store, opened(url) as other:
        with_pools(store, 20, "office", "lab", "class")
        set_quota(store, "everybody", desktops=3, running=2)

        def ask(number: int) -> None:
            one, user = (store if number % 2 else other), f"user{number % 5}"
            with suppress(QuotaReached):
                one.desktops.assign(("office", "lab", "class")[number % 3], user, "test")
            for own in one.desktops.list(user=user):
                with suppress(QuotaReached):
                    one.desktops.set_power(own.name, "test", on=number % 4 > 0)

        with ThreadPoolExecutor(12) as threads:
            list(threads.map(ask, range(120)))
        for number in range(5):
            own = store.desktops.list(user=f"user{number}")
            assert 2 <= len(own) <= 3
            assert sum(one.power_on for one in own) <= 2


def test_the_memory_of_desktops_that_say_nothing_of_it() -> None:
    off = Desktop("i", "p", "office-001", "m", "image", host_id="h", profile="A100-4C", report=DesktopReport(True))
    spec = parse_pool(SPEC, "spec")
    assert gpu_mib_of(off, spec, ROOM) == 4096
    assert gpu_mib_of(off, spec, None) == 0
    on = replace(off, report=DesktopReport(True, vgpus=(VGPU, VGPU)))
    assert gpu_mib_of(on, spec, None) == 8192
    gpu = GpuRoom("A100", None, 0, (), 0, whole=True, free=False, address=VGPU.gpu)
    room = HostRoom((DivisionRule("one-size", "A100", 40960, ()),), (gpu,), None, None, {})
    without = {key: value for key, value in SPEC.items() if key != "profile"}
    whole = parse_pool({**without, "vm": {"mode": "passthrough", "gpu": "A100", "gpus": 2}}, "spec")
    assert gpu_mib_of(replace(on, report=DesktopReport(True, vgpus=(DesktopVgpu(VGPU.gpu),))), whole, room) == 40960
    assert gpu_mib_of(replace(off, profile=None), whole, room) == 2 * 40960, "while it is off, and has none"
    undivided = replace(room, rules=(), gpus=(replace(gpu, rule=None, framebuffer_mib=46068),))
    assert (
        gpu_mib_of(replace(on, report=DesktopReport(True, vgpus=(DesktopVgpu(VGPU.gpu),))), whole, undivided) == 46068
    )
    assert gpu_mib_of(replace(off, profile=None), whole, undivided) == 2 * 46068, "no rule divides it"


def test_a_quota_that_is_none(own_store: Store) -> None:
    fleet = FleetService(own_store, lambda host: pytest.fail(str(host)))
    for given in ({}, {"desktops": -1}, {"gpu_mib": 1 << 41}):
        with pytest.raises(InvalidInput):
            fleet.ensure_quota(ADMIN, "ada", **given)
    for who in ("@", "@ x", "<b>", "", "a" * 300):
        with pytest.raises(InvalidInput):
            fleet.ensure_quota(ADMIN, who, desktops=1)
    assert fleet.ensure_quota(ADMIN, "@staff", desktops=1).changed
    assert not fleet.ensure_quota(ADMIN, "@staff", desktops=1).changed
    (entry,) = own_store.journal.find(kind="quota-set")
    assert {(one.field, one.before, one.after) for one in entry.changed} >= {("desktops", None, "1")}
    own_store.people.put("ada", "root")
    fleet.ensure_quota(ADMIN, "ada", desktops=3)
    assert [(one.name, one.used, one.most, one.who) for one in fleet.show_person(ADMIN, "ada").data.limits] == [
        ("desktops", 0, 3, "ada")
    ]
    fleet.delete_person(ADMIN, "ada")
    assert [one.who for one in fleet.list_quotas(ADMIN).data] == ["@staff"]


def test_two_who_set_a_first_quota_at_once(url: str) -> None:
    upgrade(url)
    with opened(url) as store, opened(url) as other, ThreadPoolExecutor(1) as threads:
        with store.database.write() as connection:
            row = {"who": "ada", "desktops": 1, "set_by": "grace"}
            connection.execute(insert(schema.quota).values(**row))
            second = threads.submit(other.quotas.put, Quota("ada", 2), "edsger", 0)
        with pytest.raises(Stale, match="the quota of ada was"):
            second.result(60)
        assert [(one.desktops, one.set_by) for one in store.quotas.list()] == [(1, "grace")]
