# SPDX-License-Identifier: Apache-2.0
"""The loop of one host: what is wanted there against what its agent lists, and the calls that follow.

A turn takes the host's lease, looks, plans, stores what the host said, and begins calls in threads of their own. A
call that ends, an event of the agent, and a change of the database begin the next turn at once. Nothing is remembered
between turns but which calls run: whatever happened meanwhile, the next look decides.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from vgpuctl.agent.protocol import Fenced
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.actions import carry_out
from vgpuctl.controller.hosts.link import HostLink, facts_of
from vgpuctl.controller.model import Desktop, FleetHost, HostLease, Offer, Pool, ReadyWhen
from vgpuctl.controller.planning.host_plan import (
    Action,
    ActionKind,
    HostLook,
    HostPlan,
    Probe,
    WantedOnHost,
    plan_host,
)
from vgpuctl.controller.planning.pool_plan import BOOT_TIMEOUT
from vgpuctl.errors import HostKeyRefused, NoCapacity, Temporary, VgpuctlError, explain_exception
from vgpuctl.model.desktop import Fence, FleetStatus
from vgpuctl.model.results.vms import VmRowResult

log = logging.getLogger("vgpuctl.controller")

LEASE_SECONDS = 30.0
"""A controller that says nothing for so long has lost its hosts."""
OTHERS_SECONDS = 10.0
"""So often it is tried to take a host that another controller has."""
IDLE_SECONDS = 20.0
"""Without an event a host is looked at this often."""
BUSY_SECONDS = 2.0
"""The same while desktops start, or wait for a next try."""
RETRY_SECONDS = 5.0
MAX_CALLS = 4
"""So many calls of one host run at a time."""
MAX_PROBES = 16
BACKOFF_SECONDS, MAX_BACKOFF_SECONDS = 5.0, 300.0
OFFER_SECONDS = 10.0
CONNECT_SECONDS = 1.0


class HostRunner(threading.Thread):
    """The thread of one host. `connect` makes the link to its agent."""

    def __init__(self, store: Store, host: FleetHost, connect: Callable[[FleetHost], HostLink]) -> None:
        super().__init__(name=f"host-{host.name}", daemon=True)
        self.host_id = host.id
        self._name = host.name
        self._store = store
        self._connect = connect
        self._link: HostLink | None = None
        self._lease: HostLease | None = None
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._calls = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix=f"call-{host.name}")
        self._running: dict[str, str] = {}
        self._lock = threading.Lock()
        self._events: threading.Thread | None = None
        self._offered_at = 0.0
        self._seen: FleetStatus | None = None

    def wake(self) -> None:
        """Begin the next turn now."""
        self._wake.set()

    def stop(self) -> None:
        """Begin nothing more; the thread ends soon, and another controller can have the host at once."""
        self._stopping.set()
        self._wake.set()

    @property
    def is_idle(self) -> bool:
        """Whether no call runs."""
        with self._lock:
            return not self._running

    def run(self) -> None:
        """Take turns until the host is removed or the controller stops."""
        wait = 0.0
        while not self._stopping.is_set():
            self._wake.wait(wait)
            self._wake.clear()
            if self._stopping.is_set():
                break
            try:
                host = self._store.hosts.find_id(self.host_id)
                if host is None:
                    break
                wait = self._turn(host)
            except Exception as exc:  # noqa: BLE001 - the loop of a host never ends by itself
                wait = self._note_failure(exc)
        self._close()

    def _turn(self, host: FleetHost) -> float:
        """Look, plan, begin; return how long the next turn can wait."""
        lease = self._store.hosts.take_lease(host.id, self._store.holder, LEASE_SECONDS)
        if lease is None:
            self._drop_link()
            return OTHERS_SECONDS
        link = self._open(host)
        if self._lease is None or self._lease.epoch != lease.epoch:
            self._announce(host, link, lease)
            host = self._store.hosts.find_id(host.id) or host
        fence = Fence(self._store.incarnation, lease.epoch, lease.holder)
        wanted = self._wanted(host)
        look = self._look(link, wanted)
        if self._seen is not None and host.held is None:
            self._store.hosts.note_facts(host.id, facts_of(self._seen), link.host_key)
        self._offer(link, host)
        with self._lock:
            running = dict(self._running)
        plan = plan_host(wanted, look, self._store.now(), in_flight=running, room=MAX_CALLS - len(running))
        if not self._store.desktops.report(host.id, self._store.holder, lease.epoch, plan.reports):
            self._lease = None
            return 0.0
        self._note_timeouts(wanted, plan)
        for desktop_id in plan.leave:
            self._store.desktops.retire(desktop_id, f"{host.name} is drained")
        for desktop_id in plan.unmade:
            self._store.desktops.unplace(desktop_id)
        for action in plan.actions:
            self._begin(link, fence, action, wanted.pools[action.desktop.pool_id])
        return BUSY_SECONDS if plan.actions or running or _in_motion(wanted, plan) else IDLE_SECONDS

    def _open(self, host: FleetHost) -> HostLink:
        if self._link is None:
            self._link = self._connect(host)
            self._lease = None
        return self._link

    def _announce(self, host: FleetHost, link: HostLink, lease: HostLease) -> None:
        """Check that the host is the machine that it was, and have it obey this controller.

        Raises:
            VgpuctlError: it cannot be reached, or obeys another one; an admin decides then.
        """
        seen = self._seen = link.host().read_fleet()
        if host.machine_id is not None and seen.machine_id != host.machine_id:
            text = f"it is another machine: its id is {seen.machine_id}, not {host.machine_id}"
            self._store.hosts.hold(host.id, text)
        elif host.driver is not None and seen.driver is not None and seen.driver != host.driver:
            text = f"its GPU driver is {seen.driver}, not {host.driver}: check it against the images' guest drivers"
            self._store.hosts.hold(host.id, text)
        try:
            link.host().announce_fleet(Fence(self._store.incarnation, lease.epoch, lease.holder))
        except Fenced as error:
            self._store.hosts.hold(host.id, error.message)
            raise
        self._lease = lease
        self._follow(link)

    def _follow(self, link: HostLink) -> None:
        """Follow the agent's events in a thread; each begins a turn."""
        if self._events is not None and self._events.is_alive():
            return

        def follow() -> None:
            with suppress(VgpuctlError, OSError):
                for _ in link.host(cancelled=self._stopping.is_set).follow_events():
                    self._wake.set()
            self._wake.set()

        self._events = threading.Thread(target=follow, name=f"events-{self._name}", daemon=True)
        self._events.start()

    def _wanted(self, host: FleetHost) -> WantedOnHost:
        return WantedOnHost(
            host=host,
            desktops=self._store.desktops.of_host(host.id),
            pools={pool.id: pool for pool in self._store.pools.list()},
            images={image.id: image for image in self._store.images.list()},
            incarnation=self._store.incarnation,
        )

    def _look(self, link: HostLink, wanted: WantedOnHost) -> HostLook:
        vms = link.host().list_vms().data
        by_uuid = {vm.uuid: vm for vm in vms}
        probes: dict[str, Probe] = {}
        for desktop in wanted.desktops:
            vm = by_uuid.get(desktop.id)
            pool = wanted.pools.get(desktop.pool_id)
            if vm is None or pool is None or vm.state != "running" or len(probes) >= MAX_PROBES:
                continue
            probes[desktop.id] = self._probe(link, desktop, pool, vm)
        return HostLook(vms, probes)

    def _probe(self, link: HostLink, desktop: Desktop, pool: Pool, vm: VmRowResult) -> Probe:
        """Return what a running guest answers, as far as anybody needs to know it and does not know it yet."""
        report = desktop.report
        known = Probe() if report is None else Probe(report.ready, report.address, report.ready)
        is_ready = report is not None and report.ready
        host = link.host()
        address, answers, is_open = known.address, known.answers, known.port_is_open
        needs_address = desktop.user is not None or pool.spec.ready_when is ReadyWhen.PORT
        if needs_address and address is None:
            with suppress(VgpuctlError):
                addresses = host.show_address(vm.uuid).data.addresses
                address = addresses[0].address if addresses else None
        if not is_ready and pool.spec.ready_when is ReadyWhen.GUEST:
            with suppress(VgpuctlError):
                host.wait(vm.uuid, event="guest", timeout_seconds=CONNECT_SECONDS)
                answers = True
        if not is_ready and pool.spec.ready_when is ReadyWhen.PORT and address is not None:
            with suppress(OSError), socket.create_connection((address, pool.spec.port), CONNECT_SECONDS):
                is_open = True
        return Probe(answers, address, is_open)

    def _offer(self, link: HostLink, host: FleetHost) -> None:
        """Store what the host has room for; not after each look, since that takes a while on large hosts."""
        if time.monotonic() < self._offered_at + OFFER_SECONDS:
            return
        rows = link.host().list_profiles(everything=True).data
        offers = [
            Offer(host.id, row.profile, row.free_at_least if row.free is None else row.free, row.max_per_gpu or 0)
            for row in rows
        ]
        self._store.hosts.set_offers(host.id, tuple(offers))
        self._offered_at = time.monotonic()

    def _begin(self, link: HostLink, fence: Fence, action: Action, pool: Pool) -> None:
        with self._lock:
            self._running[action.desktop.id] = pool.id
        self._calls.submit(self._perform, link, fence, action, pool)

    def _perform(self, link: HostLink, fence: Fence, action: Action, pool: Pool) -> None:
        """Carry an action out, in a thread of its own; an error is stored, and tried again later."""
        desktop = action.desktop
        try:
            carry_out(link, fence, action, pool.spec)
            self._store.desktops.note_success(desktop.id)
        except Exception as exc:
            error = explain_exception(exc)
            if not isinstance(error, VgpuctlError):
                log.exception("%s of %s failed with a bug", action.kind, desktop.name, exc_info=exc)
                error = VgpuctlError(f"unexpected {type(exc).__name__}: {exc}")
            self._note_error(action, error)
        finally:
            with self._lock:
                self._running.pop(desktop.id, None)
            self._offered_at = 0.0
            self._wake.set()

    def _note_error(self, action: Action, error: VgpuctlError) -> None:
        desktop = action.desktop
        if isinstance(error, NoCapacity) and action.kind is ActionKind.MAKE:
            if desktop.profile is not None:
                self._store.hosts.use_up_offer(self.host_id, desktop.profile)
            self._store.desktops.unplace(desktop.id)
            return
        if isinstance(error, Fenced):
            self._lease = None
            return
        wait = min(MAX_BACKOFF_SECONDS, BACKOFF_SECONDS * 2 ** min(desktop.errors, 10))
        text = f"{action.kind} on {self._name}: {error.message}"
        counts = not isinstance(error, Temporary)
        self._store.desktops.note_error(desktop.id, error.code, text, error.hint, wait_seconds=wait, counts=counts)

    def _note_timeouts(self, wanted: WantedOnHost, plan: HostPlan) -> None:
        """Count desktops that do not become ready as errors of their pool, each once."""
        for desktop in wanted.desktops:
            report = plan.reports.get(desktop.id)
            was = None if desktop.report is None else desktop.report.code
            if report is not None and report.code == BOOT_TIMEOUT and was != BOOT_TIMEOUT and report.error is not None:
                self._store.desktops.note_error(desktop.id, BOOT_TIMEOUT, report.error, report.hint, wait_seconds=0.0)

    def _note_failure(self, exc: Exception) -> float:
        """Store why a turn failed; return how long the next one waits."""
        error = explain_exception(exc)
        if not isinstance(error, VgpuctlError):
            log.exception("the loop of host %s failed with a bug", self._name, exc_info=exc)
            error = VgpuctlError(f"unexpected {type(exc).__name__}: {exc}")
        self._drop_link()
        with suppress(VgpuctlError):
            if isinstance(error, HostKeyRefused):
                self._store.hosts.hold(self.host_id, error.message)
            self._store.hosts.note_problem(self.host_id, error.message)
        return RETRY_SECONDS

    def _drop_link(self) -> None:
        link, self._link, self._lease, self._seen = self._link, None, None, None
        if link is not None:
            link.close()

    def _close(self) -> None:
        self._calls.shutdown(wait=True, cancel_futures=True)
        with suppress(VgpuctlError):
            self._store.hosts.drop_lease(self.host_id, self._store.holder)
        self._drop_link()


def _in_motion(wanted: WantedOnHost, plan: HostPlan) -> bool:
    """Return whether a desktop starts, waits for its next try, or its guest may be empty."""
    for desktop in wanted.desktops:
        report = plan.reports[desktop.id]
        if desktop.errors or report.empty_since is not None or (report.state == "running" and not report.ready):
            return True
    return False
