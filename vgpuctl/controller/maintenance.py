# SPDX-License-Identifier: Apache-2.0
"""The calls that empty a host, let it go on, and take its desktops where it is lost.

`FleetService` has them with all other calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.controller.hosts.link import facts_of
from vgpuctl.controller.model import Desktop, FleetCaller, FleetHost, FleetHostState
from vgpuctl.controller.planning.driver_check import check_drivers
from vgpuctl.controller.planning.phase import is_silent
from vgpuctl.errors import InvalidInput, Refused
from vgpuctl.model.outcome import Outcome
from vgpuctl.model.results.fleet import DesktopResult, FleetHostResult

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.hosts.link import HostLink
    from vgpuctl.model.desktop import FleetStatus

MAX_MINUTES = 7 * 24 * 60
MIN_EVIDENCE, MAX_EVIDENCE = 8, 500


class MaintenanceCalls:
    """The calls. `FleetService` says which store and which hosts they are about."""

    _store: Store
    _connect: Callable[[FleetHost], HostLink]
    _host_results: Callable[[tuple[FleetHost, ...]], tuple[FleetHostResult, ...]]
    _desktop_results: Callable[[tuple[Desktop, ...]], tuple[DesktopResult, ...]]

    def drain_host(
        self,
        caller: FleetCaller,
        name: str,
        maintenance: bool = False,
        force: bool = False,
        deadline_minutes: int | None = None,
        live: bool = False,
    ) -> Outcome[FleetHostResult]:
        """Make no new desktops on a host; those without a user are made on other hosts.

        `live`: those with a user, and all of fixed pools, move to other hosts while they run. `maintenance`: instead
        all are stopped there, and stay. One that has a user waits until nobody is logged on; with `force` it does not,
        with `deadline_minutes` so long at most.
        """
        if live and maintenance:
            raise InvalidInput("drain-host: specify live or maintenance: with maintenance desktops stay on the host")
        if not maintenance and (force or deadline_minutes is not None):
            raise InvalidInput("drain-host: force and deadline_minutes need maintenance")
        if force and deadline_minutes is not None:
            raise InvalidInput("drain-host: specify force or deadline_minutes")
        if deadline_minutes is not None and not 1 <= deadline_minutes <= MAX_MINUTES:
            raise InvalidInput(f"deadline_minutes: {deadline_minutes} is not a number from 1 to {MAX_MINUTES}")
        before = self._store.hosts.find(name)
        if not maintenance:
            host = self._store.hosts.change(name, caller.name, state=FleetHostState.DRAINING, moves_live=live)
            return Outcome(host.generation != before.generation, self._host_results((host,))[0])
        minutes = 0 if force else deadline_minutes
        host, changed = self._store.hosts.begin_maintenance(name, minutes, caller.name)
        return Outcome(changed, self._host_results((host,))[0])

    def uncordon_host(self, caller: FleetCaller, name: str, unchecked: bool = False) -> Outcome[FleetHostResult]:
        """Make desktops on a host again; after maintenance those there are started.

        Then its driver must work with the guests' drivers. `unchecked`: an admin knows that it does.
        """
        before = self._store.hosts.find(name)
        if before.state is FleetHostState.MAINTENANCE:
            self._check_machine(before, unchecked=unchecked)
        host = self._store.hosts.change(name, caller.name, state=FleetHostState.ACTIVE)
        return Outcome(host.generation != before.generation, self._host_results((host,))[0])

    def move_desktop(self, caller: FleetCaller, name: str, fenced: str) -> Outcome[DesktopResult]:
        """Make a desktop of a lost host on another one, with the files of its disks, which are on shared storage.

        `fenced`: how the caller knows that the lost host cannot write to them any more; it is kept in the journal.
        """
        if not MIN_EVIDENCE <= len(fenced.strip()) <= MAX_EVIDENCE or not fenced.isprintable():
            raise InvalidInput(
                f"fenced: say in {MIN_EVIDENCE} to {MAX_EVIDENCE} characters how you know that the host is cut off",
                hint="for instance: power off at its BMC, seen at 14:05",
            )
        before = self._store.desktops.find(name)
        lost, target = (self._store.hosts.find_id(one or "") for one in (before.host_id, before.moving_to))
        if target is not None and not (is_silent(lost, self._store.now()) and self._has_come(before, target)):
            target = None
        desktop = self._store.moves.move(name, fenced.strip(), caller.name, target)
        return Outcome(True, self._desktop_results((desktop,))[0])

    def _has_come(self, desktop: Desktop, target: FleetHost) -> bool:
        """Return whether a host has the VM of a desktop that was moving to it when its own host was lost.

        Raises:
            Refused: a person has to say where it goes on. Unreachable: no answer.
        """
        link = self._connect(target)
        try:
            there = link.host().show_migration(desktop.id).data
        finally:
            link.close()
        if there.role is not None or there.is_removing:
            raise Refused(
                f"{desktop.name} was moving to {target.name} when its host was lost, and that has not ended there",
                hint=f"as root, on {target.name}: vgpuctl end-migration {desktop.name} --runs-here, or --runs-there if "
                "not all of it has come; then again",
                desktop=desktop.name,
            )
        return there.exists and not there.is_copy

    def _check_machine(self, host: FleetHost, *, unchecked: bool) -> None:
        """Refuse a host whose driver the guests cannot have; else store what it says of itself.

        Raises:
            Refused: it does not fit, is not known to fit, or the host is another machine. Unreachable: no answer.
        """
        link = self._connect(host)
        try:
            seen = link.read_fleet()
            key = link.host_key
        finally:
            link.close()
        if host.held is not None or seen.machine_id != host.machine_id:
            raise Refused(
                f"{host.name} is held: {host.held or 'it is another machine'}",
                hint=f"look, then vgpuctl controller accept-host {host.name}",
                host=host.name,
            )
        if not unchecked:
            self._refuse_misfits(host, seen)
        self._store.hosts.note_seen(host, facts_of(seen), self._store.now(), key)

    def _refuse_misfits(self, host: FleetHost, seen: FleetStatus) -> None:
        if seen.driver is None:
            return
        pools = {pool.id: pool for pool in self._store.pools.list()}
        images = {image.id: image for image in self._store.images.list()}
        desktops = [one for pool_id in pools for one in self._store.desktops.of_pool(pool_id)]
        check = check_drivers(seen.driver, desktops, pools, images)
        hint = (
            f"change the driver or the images; if you know that it works: vgpuctl controller uncordon-host {host.name}"
        )
        hint += " --unchecked"
        facts = {"driver": seen.driver, "too_new": list(check.too_new), "unknown": list(check.unknown)}
        if check.too_new:
            text = f"{host.name} has the driver {seen.driver}, too old for guests: image {', '.join(check.too_new)}"
            raise Refused(text, hint=hint, host=host.name, **facts)
        if check.unknown and host.driver is not None and host.driver != seen.driver:
            text = f"{host.name} had the driver {host.driver} and has {seen.driver}; not known to work with it: image "
            raise Refused(text + ", ".join(check.unknown), hint=hint, host=host.name, **facts)
