# SPDX-License-Identifier: Apache-2.0
"""Where desktops go, by what the agents of real (simulated) hosts say that they have room for."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import event

from tests.agent.conftest import RunningAgent, running
from tests.controller.conftest import add_host, add_image, add_pool, wait_until
from tests.controller.test_engine import ADMIN, ready, working
from tests.controller.thin_host import KIND
from tests.rooms import room_of
from vgpuctl.agent.client import connect
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import Engine
from vgpuctl.controller.model import NewDesktop, PoolChanges

GPU_MODES = [
    ("h100-pcie-x8", {"mode": "passthrough", "gpus": 2}, "passthrough", 4),
    ("mixed", {"mode": "sriov", "gpu": "V710"}, "VF", 4),
]


@pytest.mark.parametrize(("scenario", "vm", "profile", "most"), GPU_MODES, ids=["whole GPUs", "plain VFs"])
def test_desktops_without_a_profile(
    own_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: str, vm: dict[str, object],
    profile: str, most: int,
) -> None:  # fmt: skip
    """As many as the host has room for; the others wait, with the reason."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    add_image(own_store)
    add_pool(own_store, kind="fixed", maximum=most + 1, spare=None, profile=None, vm={"memory": "1GiB", **vm})
    with running(f"sim:{scenario}", tmp_path) as agent, working(own_store) as service:
        service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
        wait_until(lambda: len(ready(own_store)) == most, "all that fit")
        assert {one.profile for one in ready(own_store)} == {profile}
        (waiting,) = own_store.desktops.unplaced()
        wait_until(lambda: "gpu01: " in (service.show_desktop(ADMIN, waiting.name).data.why or ""), "the reason")
        why = service.show_desktop(ADMIN, waiting.name).data.why or ""
        assert f"{profile} free" in why or f"no free {profile}" in why


def test_memory_is_counted_before_a_host_is_asked(own_store: Store, agent: RunningAgent) -> None:
    """A simulated host has 512 GiB; desktops that are off keep theirs."""
    add_image(own_store)
    add_pool(own_store, kind="fixed", maximum=3, spare=None, vm={"memory": "200GiB"})
    with working(own_store) as service:
        service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
        wait_until(lambda: len(ready(own_store)) == 2, "those that fit")
        (waiting,) = own_store.desktops.unplaced()
        reason = "112 GiB of memory left, 200 GiB needed"
        wait_until(lambda: reason in (service.show_desktop(ADMIN, waiting.name).data.why or ""), reason)
        assert service.fits(ADMIN, "office").data.free == 0
        own_store.desktops.delete(ready(own_store)[0].name, "test")
        wait_until(lambda: waiting.name in {one.name for one in ready(own_store)}, "its memory is another one's")


def test_a_gpu_that_is_reserved_for_a_pool(own_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    add_image(own_store)
    add_pool(own_store, "office", kind="fixed", maximum=1, spare=None)
    add_pool(own_store, "lab", kind="fixed", maximum=1, spare=None, names="lab-{:03}")
    with running("sim:a100-40", tmp_path) as agent, working(own_store) as service:
        connect(f"agent:{agent.path}").apply(sets=("gpus[all].reserved_for=lab-*",))
        service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
        wait_until(lambda: [one.name for one in ready(own_store)] == ["lab-001"], "the pool that may")
        wait_until(lambda: service.show_desktop(ADMIN, "office-001").data.why is not None, "the reason")
        assert "gpu01: offers no A100-4C" in (service.show_desktop(ADMIN, "office-001").data.why or "")
        fits = service.fits(ADMIN, "lab").data
        assert fits.free > 0
        assert service.fits(ADMIN, "office").data.hosts[0].why == "offers no A100-4C"


def test_a_pool_that_fits_nowhere_is_not_in_the_way_of_others(own_store: Store) -> None:
    """All its desktops say why, and the choice is not made for each of them again and again."""
    add_image(own_store)
    large = add_pool(own_store, "large", kind="fixed", maximum=300, spare=None, names="large-{:03}", profile="A100-40C")
    small = add_pool(own_store, "small", kind="fixed", maximum=1, spare=None, names="small-{:03}")
    new = tuple(NewDesktop(f"large-{n:03}", f"52:54:00:00:{n >> 8:02x}:{n & 255:02x}") for n in range(300))
    own_store.desktops.tick(large.id, lambda *_: PoolChanges(new))
    own_store.desktops.tick(small.id, lambda *_: PoolChanges((NewDesktop("small-001", "52:54:00:01:00:00"),)))
    host = add_host(own_store)
    own_store.rooms.set(host.id, room_of((KIND, KIND.empty)))
    engine, counts = Engine(own_store), []
    statements: list[str] = []
    event.listen(own_store.database.engine, "before_cursor_execute", lambda c, cur, text, *_: statements.append(text))
    for _ in range(2):
        statements.clear()
        engine._place()
        counts.append(len(statements))
    assert own_store.desktops.find("small-001").host_id == host.id
    waiting = own_store.desktops.unplaced()
    assert len(waiting) == 300
    assert {one.report.error.split(": ", 1)[1] for one in waiting if one.report and one.report.error} == {
        "gpu01: offers no A100-40C"
    }
    assert max(counts) < 30, counts


def test_the_first_of_equal_hosts_by_its_number(own_store: Store) -> None:
    add_image(own_store)
    pool = add_pool(own_store, kind="fixed", maximum=1, spare=None)
    hosts = {name: add_host(own_store, name) for name in ("gpu10", "gpu9")}
    for host in hosts.values():
        own_store.rooms.set(host.id, room_of((KIND, KIND.empty)))
    own_store.desktops.tick(pool.id, lambda *_: PoolChanges((NewDesktop("office-001", "52:54:00:01:00:00"),)))
    Engine(own_store)._place()
    assert own_store.desktops.find("office-001").host_id == hosts["gpu9"].id


def test_several_desktops_get_one_host_in_one_pass(own_store: Store) -> None:
    add_image(own_store)
    pool, host = add_pool(own_store, kind="fixed", maximum=3, spare=None), add_host(own_store)
    new = tuple(NewDesktop(f"office-{n:03}", f"52:54:00:00:00:{n:02x}") for n in range(3))
    own_store.desktops.tick(pool.id, lambda *_: PoolChanges(new))
    own_store.rooms.set(host.id, room_of((KIND, KIND.empty)))
    Engine(own_store)._place()
    assert own_store.desktops.unplaced() == ()
