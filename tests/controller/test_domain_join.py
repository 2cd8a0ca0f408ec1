# SPDX-License-Identifier: Apache-2.0
"""Desktops that join a domain: each has its own blob on its host, waits without one, and the controller sees none."""

from __future__ import annotations

from pathlib import Path

from tests.agent.conftest import RunningAgent
from tests.agent.test_guest_helpers import state_directory
from tests.controller.conftest import IMAGE, add_pool, wait_until
from tests.controller.test_engine import ADMIN, is_ready, working
from tests.domain_joins import MARKER, put_blob
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.engine import connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import Image, PoolState

VM = {"domain_join": "corp", "memory": "4GiB", "vcpus": 2}


def with_windows_pool(store: Store, agent: RunningAgent, **spec: object) -> None:
    FleetService(store, connect_host).add_host(ADMIN, "gpu01", f"agent:{agent.path}")
    store.images.put(Image(id="", name="office", version="1", path=IMAGE, os="windows11"), "test")
    add_pool(store, vm=VM, **spec)


def codes(store: Store) -> dict[str, str | None]:
    return {one.name: one.report.code for one in store.desktops.list() if one.report is not None}


def seeds_with_blob() -> list[Path]:
    return [path for path in (state_directory() / "volumes").glob("*") if MARKER.encode() in path.read_bytes()]


def test_a_desktop_without_a_blob_waits_and_stops_no_pool(own_store: Store, agent: RunningAgent) -> None:
    store = own_store
    etc = state_directory() / "etc/vgpuctl"
    put_blob(etc, "office-002")
    with_windows_pool(store, agent, spare=2, maximum=2)
    with working(store) as service:
        wait_until(lambda: codes(store).get("office-001") == "needs-blob", "the host's answer")
        wait_until(lambda: len(seeds_with_blob()) == 1, "the other desktop")
        shown = service.show_desktop(ADMIN, "office-001").data
        assert "djoin /provision /domain DOMAIN /machine office-001 " in shown.why
        assert (store.desktops.find("office-001").errors, shown.code) == (0, "needs-blob")
        put_blob(etc, "office-001")
        service.start_desktop(ADMIN, "office-001")
        wait_until(is_ready(store, 2), "the desktop with its new blob")
        wait_until(lambda: codes(store) == {"office-001": None, "office-002": None}, "no error any more")
        assert len(seeds_with_blob()) == 2
        assert list((etc / "domain-joins/corp").iterdir()) == [], "each is used once"
    assert store.pools.find("office").state is PoolState.ACTIVE
    everything = f"{store.desktops.list()}{store.pools.list()}{store.journal.list()}"
    assert MARKER not in everything
