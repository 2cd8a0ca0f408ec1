# SPDX-License-Identifier: Apache-2.0
"""What a running controller does by itself: a loop for each host, the pools' needs, hosts for new desktops.

Any number of controllers run on one database of PostgreSQL: a host's lease says whose turn it is there, a pool's row is
locked while its needs are decided.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Set
from contextlib import suppress

from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.image_sender import ImageSender
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.hosts.runner import LEASE_SECONDS, HostRunner
from vgpuctl.controller.hosts.share import HostShare
from vgpuctl.controller.leaving import begin_moves
from vgpuctl.controller.model import Desktop, FleetHost, Image, JournalLimits, Pool, PoolChanges, PoolState
from vgpuctl.controller.placing import Placing
from vgpuctl.controller.planning.pool_plan import plan_pool
from vgpuctl.errors import Refused, VgpuctlError
from vgpuctl.model.image_copy import CopyState

log = logging.getLogger("vgpuctl.controller")

RENEW_SECONDS = 5.0
"""The leases of this controller are looked at this often, and how many other controllers live."""
TICK_SECONDS = 5.0
"""What the pools need is looked at this often, and after each change in this process."""
SETTLE_SECONDS = 0.2
"""Changes that follow each other this quickly are looked at together."""
PRUNE_SECONDS = 3600.0
STOP_SECONDS = 60.0
"""So long calls of hosts may go on when the controller stops; the hosts finish or undo them."""
PLACED_AT_A_TIME = 500
"""So many desktops get hosts in one tick: the next one goes on, and the pools do not wait meanwhile."""
QEMU_MAC_PREFIX = (0x52, 0x54, 0x00)


def make_mac() -> str:
    """Return a random MAC address of those that libvirt gives to VMs."""
    return ":".join(f"{part:02x}" for part in (*QEMU_MAC_PREFIX, *secrets.token_bytes(3)))


def unused_mac(taken: set[str], make: Callable[[], str] = make_mac) -> str:
    """Return an address that is not taken, and take it: of 20,000 random ones a dozen are there twice."""
    while (mac := make()) in taken:
        pass
    taken.add(mac)
    return mac


def connect_host(host: FleetHost) -> HostLink:
    """Return a link to a host's agent."""
    return HostLink(host.name, host.address, host.host_key)


class Engine:
    """All that runs by itself.

    `connect`: makes the link to a host's agent; `on_failure`: ends this controller. `limits`: of the journal.
    """

    def __init__(
        self,
        store: Store,
        connect: Callable[[FleetHost], HostLink] = connect_host,
        on_failure: Callable[[], object] = lambda: None,
        limits: JournalLimits = JournalLimits(),  # noqa: B008 - values do not change
    ) -> None:
        self._store = store
        self._limits = limits
        self._clock = store.clock
        self._on_failure = on_failure
        self._connect = connect
        self._sender = ImageSender()
        self._share = HostShare(store.clock)
        self._joined = threading.Event()
        self._runners: dict[str, HostRunner] = {}
        self._macs: set[str] | None = None
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._keep(work), name=work.__name__, daemon=True)
            for work in (self._tick, self._renew, self._prune, self._hear)
        ]
        self.ticked_at = self._clock.monotonic()
        self.failure: VgpuctlError | None = None
        """Why this controller cannot go on; then `on_failure` was called."""

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin nothing more, let running calls end for a while, and give all hosts back."""
        self._stopping.set()
        self._store.changes.note()
        for runner in self._runners.values():
            runner.stop()
        self._sender.close()
        end = time.monotonic() + STOP_SECONDS
        for thread in (*self._runners.values(), *self._threads):
            thread.join(max(0.0, end - time.monotonic()))
        with suppress(VgpuctlError):
            self._store.hosts.store_seen()
            self._store.controllers.leave(self._store.holder)

    @property
    def is_alive(self) -> bool:
        """Whether the pools were looked at a short time ago."""
        return self._clock.monotonic() < self.ticked_at + 12 * TICK_SECONDS

    def _pause(self, seconds: float) -> None:
        """Wait, but not when the controller stops."""
        self._clock.wait(self._stopping.wait, seconds)

    def wake_hosts(self) -> None:
        """Have each host's loop look now."""
        for runner in list(self._runners.values()):
            runner.wake()

    def _keep(self, work: Callable[[], None]) -> Callable[[], None]:
        """Return a thread's function that does some work again and again, whatever fails."""

        def run() -> None:
            while not self._stopping.is_set():
                try:
                    work()
                except VgpuctlError as error:
                    log.error("%s: %s", work.__name__.strip("_"), error)
                    self._pause(TICK_SECONDS)
                except Exception:
                    log.exception("%s failed with a bug", work.__name__.strip("_"))
                    self._pause(TICK_SECONDS)

        return run

    def _renew(self) -> None:
        """Keep the leases of this controller, as long as the database is the one that it knows, and share the hosts."""
        try:
            self._store.check()
        except Refused as error:
            self.failure = error
            self._stopping.set()
            self._on_failure()
            return
        self._store.hosts.renew_leases(self._store.holder, LEASE_SECONDS)
        self._store.hosts.store_seen()
        self._share.set_controllers(self._store.controllers.renew(self._store.holder, LEASE_SECONDS))
        self._joined.set()
        self._share_hosts()
        self._pause(RENEW_SECONDS)

    def _share_hosts(self) -> None:
        """Wake the loops of the hosts that this controller lost, should take, or should let go."""
        runners, holders = dict(self._runners), self._store.hosts.holders()
        lost = self._share.compare({host_id for host_id, holder in holders.items() if holder == self._store.holder})
        free = runners.keys() - holders.keys()
        idle = [host_id for host_id, runner in runners.items() if runner.can_leave]
        for host_id in (lost | free | self._share.choose_leaving(idle, free)) & runners.keys():
            runners[host_id].wake()

    def _hear(self) -> None:
        """Have the loops of this controller's hosts look that a change in another process was about."""
        for host_ids in self._store.database.notices(self._stopping.is_set):
            for host_id in host_ids or list(self._runners):  # at its beginning all: what was sent before is lost
                runner = self._runners.get(host_id)
                if runner is not None and runner.is_own:
                    runner.wake()
        self._pause(TICK_SECONDS)

    def _prune(self) -> None:
        """Delete what is old: entries of the journal, places of sign-ins, spans of use."""
        while not self._stopping.is_set() and self._store.journal.prune(self._limits):
            pass
        self._store.places.prune()
        while not self._stopping.is_set() and self._store.use.prune():
            pass
        self._store.use.repair()
        self._pause(PRUNE_SECONDS)

    def _tick(self) -> None:
        """Give each pool what it needs, find hosts for new desktops, and have each host's loop look."""
        begin = self._clock.monotonic()
        number = self._store.changes.wait(-1, 0.0)
        self._watch_hosts()
        if self._store.restored.state().begun_at is None:
            self._tick_pools()
            self._place()
            begin_moves(self._store)
        hosts = self._store.changes.take_hosts()
        for host_id, runner in self._runners.items():
            if host_id in hosts:
                runner.wake()
        self.ticked_at = self._clock.monotonic()
        if not self._stopping.is_set():  # else its own note may be in the number already, and none follows
            self._store.changes.wait(number, TICK_SECONDS)
        self._pause(min(max(SETTLE_SECONDS, self.ticked_at - begin), TICK_SECONDS))  # the rest is for hosts' loops

    def _watch_hosts(self) -> None:
        if not self._joined.wait(TICK_SECONDS):
            return  # how many hosts are this controller's share is not known yet
        hosts = {host.id: host for host in self._store.hosts.list()}
        self._share.set_hosts(len(hosts))
        for host_id, runner in list(self._runners.items()):
            if host_id not in hosts or not runner.is_alive():
                runner.stop()
                del self._runners[host_id]
        for host_id, host in hosts.items():
            if host_id not in self._runners:
                runner = HostRunner(self._store, host, self._connect, self._sender, self._share)
                self._runners[host_id] = runner
                runner.start()

    def _unused_mac(self) -> str:
        """Return a random MAC address that no desktop has."""
        if self._macs is None:
            self._macs = self._store.desktops.macs()
        return unused_mac(self._macs)

    def _tick_pools(self) -> None:
        self._macs = None
        images = {image.id: image for image in self._store.images.list()}
        hosts = {host.id: host for host in self._store.hosts.list()}
        with_images: dict[str, set[str]] = {}
        for row in self._store.host_images.list():
            if row.state is CopyState.READY:
                with_images.setdefault(row.image_id, set()).add(row.host_id)
        for pool in self._store.pools.list():
            self._tick_pool(pool, images, hosts, with_images.get(pool.image_id, set()))

    def _tick_pool(
        self, pool: Pool, images: Mapping[str, Image], hosts: Mapping[str, FleetHost], with_image: Set[str]
    ) -> None:

        def plan(now_pool: Pool, desktops: tuple[Desktop, ...], now: float) -> PoolChanges:
            return plan_pool(
                now_pool, desktops, images.get(now_pool.image_id), now, self._unused_mac, hosts, with_image
            )

        self._store.desktops.tick(pool.id, plan)
        if pool.state is PoolState.DRAINING:
            self._store.pools.forget(pool.id)

    def _place(self) -> None:
        """Choose hosts for the desktops that have none."""
        pools = {pool.id: pool for pool in self._store.pools.list()}
        active = {pool.id for pool in pools.values() if pool.state is PoolState.ACTIVE}
        waiting = [desktop for desktop in self._store.desktops.unplaced() if desktop.pool_id in active]
        if not waiting:
            return
        hosts, images = self._store.hosts.list(), self._store.host_images.list()
        counts: dict[str, Counter[str]] = {}
        for pool_id in {desktop.pool_id for desktop in waiting}:
            of_pool = self._store.desktops.of_pool(pool_id)
            counts[pool_id] = Counter(one.host_id for one in of_pool if one.host_id is not None)
        placing = Placing(self._store, pools, hosts, images, counts)
        first = 0
        while first < len(waiting) and placing.count < PLACED_AT_A_TIME:
            first += placing.place_some(waiting[first:])
        placing.note_unplaced()
