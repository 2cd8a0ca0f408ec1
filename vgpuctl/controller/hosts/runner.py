# SPDX-License-Identifier: Apache-2.0
"""The loop of one host: what is wanted there against what its agent lists, and the calls that follow.

A turn takes the host's lease, looks, plans, stores what the host said, and begins calls in threads of their own. A
call that ends, an event of the agent, and a change of the database begin the next turn at once. Nothing is remembered
between turns but which calls run: whatever happened meanwhile, the next look decides.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from vgpuctl.agent.protocol import Fenced, FenceLost
from vgpuctl.controller.database.host_view import HostView
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.calls import MAX_CALLS, DesktopCalls
from vgpuctl.controller.hosts.desktop_moves import DesktopMoves
from vgpuctl.controller.hosts.guests import GuestProbes, GuestQuestion, ask_guest, disks_of, vm_of
from vgpuctl.controller.hosts.image_keeper import ImageKeeper
from vgpuctl.controller.hosts.image_sender import ImageSender
from vgpuctl.controller.hosts.link import HostLink, facts_of
from vgpuctl.controller.hosts.share import FREE_SECONDS, HostShare
from vgpuctl.controller.hosts.use_meter import UseMeter
from vgpuctl.controller.model import Desktop, FleetHost, FleetHostState, HostLease, Image, Pool, Restored
from vgpuctl.controller.planning.host_look import HostVm, has_new
from vgpuctl.controller.planning.host_plan import HostPlan, plan_host, strays
from vgpuctl.controller.planning.moves import needs_disks
from vgpuctl.controller.planning.phase import NEWER_CODE, is_in_motion
from vgpuctl.controller.planning.restored import how_to_go_on
from vgpuctl.errors import HostKeyRefused, VgpuctlError, explain_exception
from vgpuctl.model.desktop import Fence, FleetStatus
from vgpuctl.model.host_room import HostRoom
from vgpuctl.value import replace

log = logging.getLogger("vgpuctl.controller")

LEASE_SECONDS = 30.0
"""A controller that says nothing for so long has lost its hosts."""
OTHERS_SECONDS = 30.0
"""A host that another controller has is looked up this often; the engine wakes the loop of one that nobody has."""
IDLE_SECONDS = 20.0
"""Without an event a host is looked at this often."""
BUSY_SECONDS = 2.0
"""The same while desktops start, or wait for a next try."""
RETRY_SECONDS = 5.0
SETTLE_SECONDS = 0.1
"""Events that follow each other this quickly begin one turn."""
ROOM_SECONDS = 10.0
"""So often a host is asked what it has room for; and whenever a new desktop is there."""


class HostRunner(threading.Thread):
    """The thread of one host. `connect` makes the link to its agent; `sender` sends images to all."""

    def __init__(
        self,
        store: Store,
        host: FleetHost,
        connect: Callable[[FleetHost], HostLink],
        sender: ImageSender,
        share: HostShare,
    ) -> None:
        super().__init__(name=f"host-{host.name}", daemon=True)
        self.host_id = host.id
        self._name = host.name
        self._store = store
        self._connect = connect
        self._share = share
        self._began = store.clock.monotonic()
        self._images = ImageKeeper(store, sender, self.wake)
        self._link: HostLink | None = None
        self._lease: HostLease | None = None
        self.is_own = False
        """Whether this controller had the host when it looked last."""
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._calls = DesktopCalls(store, host, DesktopMoves(store, connect), self._note_end)
        self._guests = GuestProbes(host.name, store)
        self._meter = UseMeter(store)
        self._events: threading.Thread | None = None
        self._room_read_at = 0.0
        self._seen: FleetStatus | None = None

    def wake(self) -> None:
        """Begin the next turn now."""
        self._wake.set()

    def stop(self) -> None:
        """Begin nothing more; the thread ends soon, and another controller can have the host at once."""
        self._stopping.set()
        self._wake.set()

    @property
    def can_leave(self) -> bool:
        """Whether nothing is done there now, so that another controller can have the host."""
        return not self._calls.running and not self._images.is_busy

    def run(self) -> None:
        """Take turns until the host is removed or the controller stops."""
        wait, took = 0.0, 0.0
        self._store.database.wait_in_line()
        while not self._stopping.is_set():
            self._store.clock.wait(self._wake.wait, wait)
            self._store.clock.wait(self._stopping.wait, min(max(SETTLE_SECONDS, took), BUSY_SECONDS))
            self._wake.clear()
            if self._stopping.is_set():
                break
            begin = self._store.clock.monotonic()
            try:
                next_wait = self._turn()
                if next_wait is None:
                    break
                wait = next_wait
            except Exception as exc:  # noqa: BLE001 - the loop of a host never ends by itself
                wait = self._note_failure(exc)
            took = self._store.clock.monotonic() - begin  # a busy controller takes more events together
        self._close()

    def _turn(self) -> float | None:
        """Look, plan, begin; return how long the next turn can wait; None: the host was removed."""
        view = self._store.view_host(self.host_id)
        if view is None:
            return None
        lease = view.own_lease(self._store.holder)
        self.is_own = lease is not None
        if lease is None or view.own_lease(self._store.holder, LEASE_SECONDS / 2) is None:
            return self._take(view)
        self._share.keep(self.host_id)
        if self._share.is_leaving(self.host_id):
            if self.can_leave:
                return self._leave()
            self._share.stay(self.host_id)
        link = self._open(view.host)
        if self._meet(view.host, link, lease, view.restored):
            return 0.0  # the host may be held now
        return self._look_and_act(view, link, lease)

    def _take(self, view: HostView) -> float:
        """Take a host that nobody has, if this controller reaches it and should have it; return when to look again."""
        if not self.is_own and not view.is_free:
            self._share.lose(self.host_id)
            self._drop_link()
            return OTHERS_SECONDS
        if not self.is_own:
            now, last = self._store.clock.monotonic(), view.lease
            free_seconds = view.now - last.expires_at if last is not None else now - self._began
            was_own = last is not None and last.holder == self._store.holder
            if not self._share.take(self.host_id, free_seconds, was_own=was_own):
                self._drop_link()
                return max(SETTLE_SECONDS, FREE_SECONDS - free_seconds)
            self._open(view.host).read_fleet()  # who cannot reach it leaves it to others
        if self._store.hosts.take_lease(self.host_id, self._store.holder, LEASE_SECONDS) is None:
            self._share.lose(self.host_id)
            self._drop_link()
            return OTHERS_SECONDS
        self._share.keep(self.host_id)
        return 0.0

    def _leave(self) -> float:
        """Let another controller have the host: this one has more than its share."""
        self._drop_link()
        self._store.hosts.drop_lease(self.host_id, self._store.holder)
        self._share.let_go(self.host_id)
        return FREE_SECONDS

    def _look_and_act(self, view: HostView, link: HostLink, lease: HostLease) -> float:
        """Compare what is wanted on a host that obeys this controller with what is there, and begin calls."""
        host, former, desktops = view.host, view.restored.former, view.desktops
        waits = view.restored.begun_at is not None
        running = self._calls.running  # before the look: of one that ends meanwhile, the list may not have what it did
        vms = self._look(link, desktops, view.pools)
        room = self._read_room(link, host, is_new=has_new(desktops, vms))
        if view.room is None:  # a new host: which images it needs follows from what it has room for
            view = replace(view, room=room)
        fence = Fence(self._store.incarnation, lease.epoch, lease.holder)
        plan = plan_host(
            host, desktops, vms, view.pools, view.images if waits else self._keep_images(link, fence, view), view.now,
            self._store.incarnation, running, MAX_CALLS, former, view.stop_at, self._elsewhere(desktops, vms, former),
        )  # fmt: skip
        if waits:
            plan = HostPlan(reports=plan.reports)
        reports = {name: replace(report, boot_id=host.boot_id) for name, report in plan.reports.items()}
        if not self._store.desktops.report(host.id, lease.holder, lease.epoch, reports, desktops):
            self._lease = None
            return 0.0
        self._note_seen(view, link)  # after its reports, so that they are those of a host that answers
        self._meter.read(link, desktops)
        if self._hold_if_newer(host, desktops, plan):
            return 0.0
        self._store_plan(plan)
        for action in plan.actions:
            image = view.images.get(action.desktop.image_id)
            pool = view.pools.get(action.desktop.pool_id)
            if image is not None and pool is not None:
                self._calls.begin(link, fence, action, pool, image)
        return (
            BUSY_SECONDS
            if plan.actions or running or self._images.is_busy or is_in_motion(desktops, plan.reports)
            else IDLE_SECONDS
        )

    def _note_seen(self, view: HostView, link: HostLink) -> None:
        """Note that the host answered, and what it said of itself; of one that is held that does not count yet."""
        if self._seen is None:
            return
        known = facts_of(self._seen) if view.host.held is None else None
        if known is not None and view.host.state is FleetHostState.MAINTENANCE:
            known = replace(known, driver=view.host.driver)  # a new one counts when uncordon-host has checked it
        self._store.hosts.note_seen(view.host, known, view.now, link.host_key)

    def _keep_images(self, link: HostLink, fence: Fence, view: HostView) -> Mapping[str, Image]:
        """Have the host get and lose copies of images; return those that desktops there can be made of."""
        ready = self._images.keep(link.images(fence), view)
        for desktop in view.desktops if self._images.failed else ():
            if desktop.image_id in self._images.failed and not desktop.absent:
                self._store.desktops.unplace(desktop.id)  # unless it was made: another host may have the image
        return {one: image for one, image in view.images.items() if one in ready}

    def _elsewhere(
        self, desktops: Sequence[Desktop], vms: Sequence[HostVm], former: tuple[str, ...]
    ) -> Sequence[Desktop]:
        """Return the rows of VMs here whose desktops are on other hosts."""
        copies = strays(desktops, vms, (self._store.incarnation, *former))
        ids = tuple(vm.mark.id for vm in copies if vm.mark is not None)
        return self._store.moves.of_ids(ids) if ids else ()

    def _store_plan(self, plan: HostPlan) -> None:
        """Store what a plan says of rows."""
        for desktop_id in plan.powered_off:
            self._store.desktops.note_off(desktop_id)
        for desktop_id, generation in plan.raised.items():
            self._store.desktops.raise_generation(desktop_id, generation)
        if plan.raised:
            self._wake.set()

    def _hold_if_newer(self, host: FleetHost, desktops: Sequence[Desktop], plan: HostPlan) -> bool:
        """Hold a host that has newer records than the database: only an older copy of it is behind its hosts."""
        for desktop in desktops:
            report, before = plan.reports.get(desktop.id), desktop.report
            is_newer = report is not None and report.code == NEWER_CODE
            if is_newer and (before is None or before.code != NEWER_CODE):
                text = f"the record of {desktop.name} on {host.name} is newer than the database"
                self._store.hosts.hold(host.id, f"{text}: {how_to_go_on(host.name)}")
                return True
        return False

    def _open(self, host: FleetHost) -> HostLink:
        if self._link is None:
            self._link = self._connect(host)
            self._lease = None
        return self._link

    def _meet(self, host: FleetHost, link: HostLink, lease: HostLease, restored: Restored) -> bool:
        """Have the host obey this controller, unless it does; return whether that was new.

        Before a restore is confirmed, nothing is announced: the host obeys whom it obeyed, and is only looked at.
        """
        if restored.begun_at is not None:
            self._lease, self._seen = None, link.read_fleet()
            return False
        if self._lease is not None and self._lease.epoch == lease.epoch:
            return False
        self._announce(host, link, lease, restored)
        return True

    def _announce(self, host: FleetHost, link: HostLink, lease: HostLease, restored: Restored) -> None:
        """Check that the host is the machine that it was, and have it obey this controller.

        One that obeys a former incarnation of the database is adopted: an admin has confirmed the restore.

        Raises:
            VgpuctlError: it cannot be reached, or obeys another one; an admin decides then.
        """
        seen = self._seen = link.read_fleet()
        if host.machine_id is not None and seen.machine_id != host.machine_id:
            text = f"it is another machine: its id is {seen.machine_id}, not {host.machine_id}"
            self._store.hosts.hold(host.id, text)
        elif (
            host.state is not FleetHostState.MAINTENANCE
            and host.driver is not None
            and seen.driver is not None
            and seen.driver != host.driver
        ):
            text = f"its GPU driver is {seen.driver}, not {host.driver}: check it against the images' guest drivers"
            self._store.hosts.hold(host.id, text)
        adopt = seen.incarnation in restored.former and seen.machine_id == host.machine_id
        try:
            link.host().announce_fleet(Fence(self._store.incarnation, lease.epoch, lease.holder), adopt=adopt)
        except (Fenced, FenceLost) as error:
            if self._is_for_admin(error, lease):
                self._store.hosts.hold(host.id, f"{error.message}: {how_to_go_on(host.name)}")
            raise
        if adopt:
            self._store.hosts.hold(host.id, None)
        self._lease = lease
        self._follow(link)

    def _is_for_admin(self, error: Fenced | FenceLost, lease: HostLease) -> bool:
        """Return whether a refusal does not end by itself, as that of a lease does which another controller took.

        A host whose epoch is above that of the database's own lease obeys a copy of the database, or the database is
        an older copy.
        """
        if isinstance(error, FenceLost) or error.facts.get("reason") in ("incarnation", "former"):
            return True
        own = self._store.hosts.take_lease(self.host_id, lease.holder, LEASE_SECONDS)
        epoch = error.facts.get("epoch")
        return own is not None and own.epoch == lease.epoch and isinstance(epoch, int) and epoch >= own.epoch

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

    def _look(self, link: HostLink, desktops: Sequence[Desktop], pools: Mapping[str, Pool]) -> tuple[HostVm, ...]:
        """Return all VMs of the host, with what is asked of the guests of desktops."""
        rows = {desktop.id: desktop for desktop in desktops if desktop.moving_to is None}
        vms: dict[str, HostVm] = {}
        questions: list[GuestQuestion] = []
        for row in link.host().list_vms().data:
            vm, desktop = vm_of(row), rows.get(row.uuid)
            pool = None if desktop is None else pools.get(desktop.pool_id)
            if desktop is not None and pool is not None and needs_disks(desktop, pool, vm.generation):
                vm = replace(vm, disks=disks_of(link, vm.uuid))
            if desktop is not None and pool is not None and vm.state == "running":
                question = ask_guest(desktop, pool, vm)
                vm = question.vm
                questions += [question] if question.is_open or question.checks_address else []
            vms[vm.uuid] = vm
        return tuple((vms | {vm.uuid: vm for vm in self._guests.ask(link, questions)}).values())

    def _read_room(self, link: HostLink, host: FleetHost, *, is_new: bool) -> HostRoom | None:
        """Store what the host has room for, and return it; not after each look, since it takes a while on large hosts.

        `is_new`: a desktop is there that counts as on its way until its report is stored: it must be in the room first.
        A host that cannot say it is looked at all the same: what it said before counts, and it may refuse.
        """
        if not is_new and self._store.clock.monotonic() < self._room_read_at + ROOM_SECONDS:
            return None
        self._room_read_at = self._store.clock.monotonic()
        try:
            room = link.host().read_room()
        except VgpuctlError as error:
            log.warning("%s does not say what it has room for: %s", self._name, error.message)
            return None
        self._store.rooms.set(host.id, room)
        return room

    def _note_end(self, is_fenced: bool) -> None:
        """Begin the next turn after a call has ended."""
        if is_fenced:
            self._lease = None
        self._room_read_at = 0.0
        self._wake.set()

    def _note_failure(self, exc: Exception) -> float:
        """Store why a turn failed; return how long the next one waits."""
        error = explain_exception(exc)
        if not isinstance(error, VgpuctlError):
            log.exception("the loop of host %s failed with a bug", self._name, exc_info=exc)
            error = VgpuctlError(f"unexpected {type(exc).__name__}: {exc}")
        is_own = self.is_own or self._share.is_alone
        self._drop_link()
        with suppress(VgpuctlError):
            if isinstance(error, HostKeyRefused):
                self._store.hosts.hold(self.host_id, error.message)
            self._store.hosts.note_problem(self.host_id, error.message, is_own=is_own)
        if not self.is_own:
            self._share.lose(self.host_id)
        return RETRY_SECONDS if is_own else FREE_SECONDS

    def _drop_link(self) -> None:
        link, self._link, self._lease, self._seen = self._link, None, None, None
        if link is not None:
            link.close()

    def _close(self) -> None:
        self._calls.stop()
        self._guests.stop()
        with suppress(VgpuctlError):
            self._meter.store()
            self._store.hosts.drop_lease(self.host_id, self._store.holder)
        self._share.forget(self.host_id)
        self._drop_link()
