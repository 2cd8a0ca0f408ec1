# SPDX-License-Identifier: Apache-2.0
"""What people and programs ask of the controller: one method for each call of its API and its command line.

The arguments and results are those that `routes` publishes. Clients read them from here too, so this module needs no
database.

Size: one short method for each call.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any

from vgpuctl.agent.protocol import Fenced
from vgpuctl.config import labels as label_rules
from vgpuctl.controller.capacity import CapacityCalls
from vgpuctl.controller.consoles import ConsoleCalls
from vgpuctl.controller.database.rows import check_generation
from vgpuctl.controller.desktop_ports import DesktopPortCalls
from vgpuctl.controller.hosts.link import KEY_OPTIONS, check_address, facts_of
from vgpuctl.controller.maintenance import MaintenanceCalls
from vgpuctl.controller.messages import MOST_SENDING, MessageCalls
from vgpuctl.controller.model import (
    Desktop,
    FleetCaller,
    FleetHost,
    FleetHostState,
    HostImage,
    Image,
    Logon,
    Pool,
    PoolKind,
    PoolState,
    Role,
)
from vgpuctl.controller.my_desktops import MyDesktopCalls, refuse_loss, shown_to
from vgpuctl.controller.my_tokens import MyTokenCalls
from vgpuctl.controller.overview import OverviewCalls, event_result
from vgpuctl.controller.passwords import OneTimePasswords
from vgpuctl.controller.people import PeopleCalls, nobody_yet
from vgpuctl.controller.planning import pool_rules
from vgpuctl.controller.planning.fleet_room import room_of_fleet
from vgpuctl.controller.planning.image_plan import image_wait, rows_by_key, slow_copy_warning, state_text
from vgpuctl.controller.planning.phase import MOVE_CODE, Phase, PhaseWord, is_running, phase_of
from vgpuctl.controller.planning.pool_change import desktop_changes
from vgpuctl.controller.planning.pool_spec import MAX_SPEC_BYTES, dump_pool, parse_pool
from vgpuctl.controller.planning.restarts import restart_problem
from vgpuctl.controller.policy import FleetTarget, has_role, no_desktop, no_pool, refuse_of_manager, sees_pool
from vgpuctl.controller.quotas import QuotaCalls
from vgpuctl.controller.recovery import RecoveryCalls
from vgpuctl.controller.times import time_text as _time_text
from vgpuctl.controller.use import UseCalls
from vgpuctl.errors import Busy, InvalidInput, NotAllowed, VgpuctlError
from vgpuctl.model.desktop import Fence
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.fleet import (
    AssignedDesktopResult,
    DesktopResult,
    FleetEventResult,
    FleetHostResult,
    FleetImageResult,
    FleetResult,
    PoolResult,
)
from vgpuctl.value import extend, replace
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.hosts.link import HostLink
    from vgpuctl.controller.rdp_signing import RdpSigner

DAY_SECONDS = 86400.0
LEASE_SECONDS = 30.0
"""So long an admin's decision about a host keeps other controllers away."""
_READY = frozenset({PhaseWord.READY})


class FleetService(
    RecoveryCalls,
    MaintenanceCalls,
    CapacityCalls,
    PeopleCalls,
    QuotaCalls,
    MessageCalls,
    MyDesktopCalls,
    MyTokenCalls,
    DesktopPortCalls,
    ConsoleCalls,
    OverviewCalls,
    UseCalls,
):
    """The controller's calls. `connect`: makes the link to a host's agent; `signer`: signs RDP files."""

    def __init__(self, store: Store, connect: Callable[[FleetHost], HostLink], signer: RdpSigner | None = None) -> None:
        self._signer = signer
        self._sending = BoundedSemaphore(MOST_SENDING)
        self._store = store
        self._connect = connect
        self._passwords = OneTimePasswords(store, connect)

    def made_by(self, caller: FleetCaller) -> AbstractContextManager[None]:
        """Have the journal say of what this thread changes who asked, and from where."""
        return self._store.changes.made_by(caller)

    def show_fleet(self, caller: FleetCaller) -> QueryResult[FleetResult]:
        """Return which controller this is, and what the caller may do."""
        return QueryResult(
            FleetResult(
                __version__, caller.name, str(caller.role), self._store.incarnation, self._store.holder,
                len(self._store.pools.list()), len(self._store.hosts.list()), self._store.desktops.count(),
            )
        )  # fmt: skip

    def find_target(self, desktop: str) -> FleetTarget:
        """Return what a call about a desktop is about.

        Raises:
            NotFound: there is none of this name.
        """
        return self._store.desktops.target(desktop)

    def dry_run(self) -> AbstractContextManager[None]:
        """Have the calls of this thread checked, and nothing stored."""
        return self._store.changes.dry_run()

    # Pools

    def list_pools(self, caller: FleetCaller) -> QueryResult[tuple[PoolResult, ...]]:
        """Return all pools that the caller works with."""
        seen = (pool for pool in self._store.pools.list() if sees_pool(caller, pool.name))
        return QueryResult(tuple(map(self._pool_result, seen)))

    def show_pool(self, caller: FleetCaller, name: str) -> QueryResult[PoolResult]:
        """Return one pool with its spec."""
        return QueryResult(self._pool_result(self._store.pools.find(name)))

    def ensure_pool(
        self,
        caller: FleetCaller,
        name: str,
        spec: Mapping[str, Any] | None = None,
        text: str | None = None,
        file: str = "spec",
        if_generation: int | None = None,
    ) -> Outcome[PoolResult]:
        """Create a pool, or change it to match a spec: an object, or the `text` of a spec file, `file` by name."""
        pool_rules.checked_name(name)
        if (spec is None) is (text is None):
            raise InvalidInput("ensure-pool: give either spec or text")
        if text is not None and len(text) > MAX_SPEC_BYTES:
            raise InvalidInput(f"{file}: a pool spec has at most {MAX_SPEC_BYTES} bytes")
        if spec is not None and len(json.dumps(spec)) > MAX_SPEC_BYTES:
            raise InvalidInput(f"spec: a pool spec has at most {MAX_SPEC_BYTES} bytes")
        checked = parse_pool(text if text is not None else dict(spec or {}), file)
        if not has_role(caller, Role.OPERATOR):
            before = self._store.pools.find(name)
            refuse_of_manager(before.spec, checked)
            if_generation = before.generation if if_generation is None else if_generation
        self.refuse_nat(name, checked)
        pool, change = self._store.pools.put(name, checked, caller.name, if_generation)
        steps = self._pool_steps(pool) if change.changed else ()
        return Outcome(change.changed, self._pool_result(pool), steps, self.profile_warnings(checked))

    def _pool_steps(self, pool: Pool) -> tuple[str, ...]:
        """Return what follows for a pool's desktops from its spec."""
        desktops = () if pool.generation == 1 else self._store.desktops.of_pool(pool.id)
        image = next(one for one in self._store.images.list() if one.id == pool.image_id)
        hosts = {host.id: host for host in self._store.hosts.list()}
        return desktop_changes(pool, desktops, image, self._store.now(), hosts)

    def pause_pool(self, caller: FleetCaller, name: str, reason: str | None = None) -> Outcome[PoolResult]:
        """Make, start and refresh nothing for a pool; its users keep their desktops."""
        return self._set_pool_state(caller, name, PoolState.PAUSED, reason)

    def resume_pool(self, caller: FleetCaller, name: str) -> Outcome[PoolResult]:
        """Let a paused pool go on."""
        return self._set_pool_state(caller, name, PoolState.ACTIVE, None)

    def delete_pool(self, caller: FleetCaller, name: str) -> Outcome[PoolResult]:
        """Delete a pool with all its desktops and their disks; it goes with the last one."""
        is_going = self._store.pools.find(name).state is PoolState.DRAINING
        return Outcome(not is_going, self._pool_result(self._store.pools.delete(name, caller.name)))

    # Desktops

    def list_desktops(
        self,
        caller: FleetCaller,
        pool: str | None = None,
        host: str | None = None,
        user: str | None = None,
        after: str | None = None,
        limit: int = 1000,
    ) -> QueryResult[tuple[DesktopResult, ...]]:
        """Return desktops by name: of a pool, of a host, of a user; at most `limit`, those `after` a name."""
        if not 1 <= limit <= 1000:
            raise InvalidInput(f"limit: {limit} is not a number from 1 to 1000")
        if pool is not None:
            if not sees_pool(caller, pool):
                raise no_pool(pool)  # whether it exists or not
            self._store.pools.find(pool)
        if host is not None and caller.role is not None:
            self._store.hosts.find(host)
        pools = None if caller.role is not None else [name for name in caller.rights if sees_pool(caller, name)]
        rows = self._store.desktops.list(pool=pool, host=host, user=user, after=after, limit=limit, pools=pools)
        return QueryResult(self._desktop_results(rows))

    def show_desktop(self, caller: FleetCaller, name: str) -> QueryResult[DesktopResult]:
        """Return one desktop."""
        return QueryResult(self._shown(caller, self._store.desktops.find(name)))

    def assign(
        self, caller: FleetCaller, pool: str, user: str, new_password: bool = False, have: int | None = None
    ) -> Outcome[AssignedDesktopResult]:
        """Give a user a desktop of a pool, his own if he has one; its address is shown once its host confirmed it.

        `new_password`: also set a new one-time password of his account in it, and show it this once. `have`: so many he
        has of the pool; asked twice with the same number, he gets one more and no second one.
        """
        try:
            pool_rules.user(user)
        except ValueError as error:
            raise InvalidInput(str(error)) from error
        is_local = self._store.pools.find(pool).spec.logon is Logon.LOCAL
        if new_password and not is_local:
            raise InvalidInput(
                f"users of pool {pool} have no accounts in their desktops",
                hint="its spec needs logon: local",
                pool=pool,
            )
        known = self._store.entitlements.count_members(user) if has_role(caller, Role.OPERATOR) else None
        desktop, is_new = self._store.desktops.assign(pool, user, caller.name, None if have is None else have + 1)
        password: str | None = None
        warnings = nobody_yet(user, known)
        if is_local and (is_new or new_password) and not self._store.changes.is_dry_run:
            try:
                desktop, password = self._passwords.give(desktop, caller.name)
            except VgpuctlError as error:
                again = f"vgpuctl controller assign {pool} {user} --new-password"
                if not is_new:
                    error.hint = error.hint or f"try again: {again}"
                    raise
                warnings += (f"{user} has no password yet: {error.message}; later: {again}",)
        shown = self._desktop_results((desktop,))[0]
        result = extend(AssignedDesktopResult, shown, password=password)
        return Outcome(is_new or password is not None, result, warnings=warnings)

    def release(self, caller: FleetCaller, name: str, if_generation: int | None = None) -> Outcome[DesktopResult]:
        """Take a desktop away from its user; it is refreshed before anybody else gets it.

        Its user himself gives back a floating one alone: what he saved in a dedicated one would be lost.
        `if_generation`: as the caller knows it; each user has another one.
        """
        refuse_loss(caller, self._store.desktops.find(name), self._store.pools.list())
        desktop, changed = self._store.desktops.release(name, caller.name, self._owner_of(caller, name), if_generation)
        return Outcome(changed, self._shown(caller, desktop))

    def start_desktop(self, caller: FleetCaller, name: str, if_generation: int | None = None) -> Outcome[DesktopResult]:
        """Have a desktop run."""
        desktop, changed = self._store.desktops.set_power(
            name, caller.name, self._owner_of(caller, name), if_generation, on=True
        )
        return Outcome(changed, self._shown(caller, desktop))

    def stop_desktop(self, caller: FleetCaller, name: str, if_generation: int | None = None) -> Outcome[DesktopResult]:
        """Have a desktop be off until it is started or assigned again."""
        desktop, changed = self._store.desktops.set_power(
            name, caller.name, self._owner_of(caller, name), if_generation, on=False
        )
        return Outcome(changed, self._shown(caller, desktop))

    def restart_desktop(
        self, caller: FleetCaller, name: str, at_once: bool = False, if_generation: int | None = None
    ) -> Outcome[DesktopResult]:
        """Have the guest of a desktop that runs boot again; one that ignores the request for two minutes is reset.

        `at_once`: it is reset without being asked, which its pool's operators alone may.
        """
        owner = self._owner_of(caller, name)
        if at_once and owner is not None:
            raise NotAllowed(
                "at_once is for the operators of a pool: what you have not saved would be lost",
                hint="leave it out: a guest that ignores the request is reset after two minutes",
                rule="operate",
            )
        desktop, changed = self._store.restarts.want(name, caller.name, owner, if_generation, at_once=at_once)
        return Outcome(changed, self._shown(caller, desktop))

    def delete_desktop(
        self, caller: FleetCaller, name: str, if_generation: int | None = None
    ) -> Outcome[DesktopResult]:
        """Delete a desktop with its disks; its pool makes another one if it needs one."""
        return Outcome(True, self._desktop_results((self._store.desktops.delete(name, caller.name, if_generation),))[0])

    # Hosts

    def list_hosts(self, caller: FleetCaller) -> QueryResult[tuple[FleetHostResult, ...]]:
        """Return all hosts."""
        return QueryResult(self._host_results(self._store.hosts.list()))

    def show_host(self, caller: FleetCaller, name: str) -> QueryResult[FleetHostResult]:
        """Return one host."""
        return QueryResult(self._host_results((self._store.hosts.find(name),))[0])

    def add_host(
        self,
        caller: FleetCaller,
        name: str,
        address: str,
        host_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        lost_controller: bool = False,
    ) -> Outcome[FleetHostResult]:
        """Add a host: `local`, or ssh://USER@HOST[:PORT]. `host_key`: SHA256:...; without: of known_hosts.

        `lost_controller`: it obeys a controller whose database is lost, and is held until an import is confirmed.
        """
        pool_rules.checked_name(name)
        checked_labels = _check_labels(labels or {})
        link = self._connect(FleetHost(id="", name=name, address=check_address(address), host_key=host_key))
        try:
            seen, warnings = link.read_fleet(), _key_warnings(link)
            is_others = seen.incarnation not in (None, self._store.incarnation)
            if is_others and not lost_controller:
                raise Fenced(
                    f"{name} belongs to another database of controllers: {seen.incarnation}",
                    hint="an admin of that one removes it first; if that one is lost: add --lost-controller, then "
                    "vgpuctl controller import-desktops",
                )
            held = f"it obeys a controller that is lost, {seen.incarnation}: vgpuctl controller import-desktops"
            host = self._store.hosts.add(
                name, address, link.host_key, checked_labels, facts_of(seen), caller.name, held if is_others else None
            )
        finally:
            link.close()
        return Outcome(True, self._host_results((host,))[0], warnings=warnings)

    def accept_host(self, caller: FleetCaller, name: str, host_key: str | None = None) -> Outcome[FleetHostResult]:
        """Let a held host go on as it is now: another machine or driver, another SSH key, another controller's."""
        host = self._store.hosts.find(name)
        link = self._connect(host if host_key is None else replace(host, host_key=host_key))
        try:
            seen, warnings = link.read_fleet(), _key_warnings(link)
            above = seen.epoch or 0 if seen.incarnation == self._store.incarnation else 0
            held = self._store.hosts.holders().get(host.id, self._store.holder)  # for it, if another controller has it
            above -= seen.holder == held
            if held == self._store.holder:
                lease = self._store.hosts.take_lease(host.id, held, LEASE_SECONDS, above)
            else:
                lease = self._store.hosts.raise_epoch(host.id, above)
            if lease is None or lease.holder != held:
                raise Busy(f"another controller takes {name} just now", hint="try again in 30 seconds")
            link.host().announce_fleet(Fence(self._store.incarnation, lease.epoch, lease.holder), adopt=True)
            host = self._store.hosts.take_over_machine(name, facts_of(seen), link.host_key, caller.name)
        finally:
            link.close()
        return Outcome(True, self._host_results((host,))[0], warnings=warnings)

    def cordon_host(self, caller: FleetCaller, name: str) -> Outcome[FleetHostResult]:
        """Make no new desktops on a host."""
        before = self._store.hosts.find(name)
        host = self._store.hosts.change(name, caller.name, state=FleetHostState.CORDONED)
        return Outcome(host.generation != before.generation, self._host_results((host,))[0])

    def label_host(
        self, caller: FleetCaller, name: str, labels: Mapping[str, str], if_generation: int | None = None
    ) -> Outcome[FleetHostResult]:
        """Set all labels of a host; pools choose hosts by them."""
        before, checked = self._store.hosts.find(name), _check_labels(labels)
        host = self._store.hosts.change(name, caller.name, labels=checked, if_generation=if_generation)
        return Outcome(host.generation != before.generation, self._host_results((host,))[0])

    def remove_host(self, caller: FleetCaller, name: str) -> Outcome[FleetHostResult]:
        """Remove a host without desktops from the fleet."""
        result = self._host_results((self._store.hosts.find(name),))[0]
        self._store.hosts.remove(name, caller.name)
        return Outcome(True, result)

    # Images

    def list_images(self, caller: FleetCaller) -> QueryResult[tuple[FleetImageResult, ...]]:
        """Return all images, and which hosts have them."""
        return QueryResult(tuple(_for_manager(caller, one) for one in self._image_results(self._store.images.list())))

    def show_image(self, caller: FleetCaller, name: str) -> QueryResult[FleetImageResult]:
        """Return one image, and which hosts have it."""
        return QueryResult(_for_manager(caller, self._image_results((self._store.images.find(name),))[0]))

    def ensure_image(
        self,
        caller: FleetCaller,
        name: str,
        path: str | None = None,
        file: str | None = None,
        url: str | None = None,
        folder: str | None = None,
        version: str = "1",
        os: str = "linux",
        sha256: str | None = None,
        size: int | None = None,
        retired: bool = False,
        if_generation: int | None = None,
    ) -> Outcome[FleetImageResult]:
        """Add an image: a `file` of the controller or a `url`, for copies in `folder` on hosts; or their `path`."""
        from vgpuctl.controller.image_source import image_source

        pool_rules.checked_name(name)
        source = image_source(
            name, caller.is_local, path=path, file=file, url=url, folder=folder, sha256=sha256, size=size
        )
        image = replace(source, version=_check_text("version", version), os=_check_text("os", os), retired=retired)
        stored, change = self._store.images.put(image, caller.name, if_generation)
        self._store.host_images.retry(stored.id)
        slow = slow_copy_warning(stored, len(self._store.hosts.list())) if change.changed else None
        return Outcome(change.changed, self._image_results((stored,))[0], warnings=() if slow is None else (slow,))

    def delete_image(self, caller: FleetCaller, name: str) -> Outcome[FleetImageResult]:
        """Delete an image that nothing uses: hosts delete their copies; a file that nobody copied stays."""
        result = self._image_results((self._store.images.find(name),))[0]
        self._store.images.delete(name, caller.name)
        return Outcome(True, result)

    # The journal

    def list_events(
        self, caller: FleetCaller, after: int = 0, limit: int = 200
    ) -> QueryResult[tuple[FleetEventResult, ...]]:
        """Return entries of the fleet's journal: the last ones, or those after an id."""
        if not 1 <= limit <= 1000:
            raise InvalidInput(f"limit: {limit} is not a number from 1 to 1000")
        return QueryResult(tuple(map(event_result, self._store.journal.list(after, limit))))

    def _set_pool_state(
        self, caller: FleetCaller, name: str, state: PoolState, reason: str | None
    ) -> Outcome[PoolResult]:
        before = self._store.pools.find(name)
        pool = self._store.pools.set_state(name, state, reason, caller.name)
        return Outcome(pool.generation != before.generation, self._pool_result(pool))

    def _pool_result(self, pool: Pool) -> PoolResult:
        spec, now = pool.spec, self._store.now()
        hosts = {host.id: host for host in self._store.hosts.list()}
        desktops = self._store.desktops.of_pool(pool.id)
        rows = rows_by_key(self._store.host_images.list())
        words = Counter(_phase(one, pool, _host_of(one, hosts), rows, now).word for one in desktops)
        return PoolResult(
            name=pool.name, kind=str(spec.kind), state=str(pool.state), reason=pool.reason, image=spec.image,
            profiles=spec.profiles, maximum=spec.maximum, spare=spec.spare, desktops=len(desktops),
            ready=sum(words[word] for word in _READY), assigned=sum(one.user is not None for one in desktops),
            counts={str(word): count for word, count in sorted(words.items())}, generation=pool.generation,
            spec=dump_pool(spec),
        )  # fmt: skip

    def _desktop_results(self, desktops: tuple[Desktop, ...]) -> tuple[DesktopResult, ...]:
        now = self._store.now()
        pools = {pool.id: pool for pool in self._store.pools.list()}
        hosts = {host.id: host for host in self._store.hosts.list()}
        images = {image.id: image.name for image in self._store.images.list()}
        rows = rows_by_key(self._store.host_images.list())
        return tuple(
            _desktop_result(one, pools[one.pool_id], hosts, images.get(one.image_id, "?"), rows, now)
            for one in desktops
            if one.pool_id in pools
        )

    def _owner_of(self, caller: FleetCaller, name: str) -> str | None:
        """Return whose a desktop must still be when it is changed; None: its pool is the caller's to operate."""
        pool = self.find_target(name).pool
        return None if pool is not None and sees_pool(caller, pool) else caller.name

    def new_password(
        self, caller: FleetCaller, name: str, if_generation: int | None = None
    ) -> Outcome[AssignedDesktopResult]:
        """Set a new one-time password of a desktop's user, and show it this once; its pool has `logon: local`."""
        desktop, owner = self._store.desktops.find(name), self._owner_of(caller, name)
        pools = {pool.id: pool for pool in self._store.pools.list()}
        if owner is not None and desktop.user != owner:
            raise no_desktop(name)
        check_generation(f"desktop {name}", desktop.generation, if_generation)
        if desktop.user is None or pools[desktop.pool_id].spec.logon is not Logon.LOCAL:
            raise InvalidInput(f"nobody has an account in {name}", hint="its pool needs logon: local", desktop=name)
        desktop, password = self._passwords.give(desktop, caller.name)
        return Outcome(True, extend(AssignedDesktopResult, self._shown(caller, desktop), password=password))

    def _shown(self, caller: FleetCaller, desktop: Desktop) -> DesktopResult:
        """Return a desktop as its caller may see it."""
        return shown_to(caller, self._desktop_results((desktop,))[0])

    def _host_results(self, hosts: tuple[FleetHost, ...]) -> tuple[FleetHostResult, ...]:
        leases, counts, now = self._store.hosts.leases(), self._store.hosts.desktop_counts(), self._store.now()
        room = room_of_fleet(*self._store.rooms.list(), {pool.id: pool for pool in self._store.pools.list()})
        names = {image.id: image.name for image in self._store.images.list()}
        images: dict[str, dict[str, str]] = {}
        for row in self._store.host_images.list():
            images.setdefault(row.host_id, {})[names.get(row.image_id, row.path)] = state_text(row)
        results = []
        for host in hosts:
            lease = leases.get(host.id)
            results.append(
                FleetHostResult(
                    name=host.name, address=host.address, state=str(host.state), held=host.held, problem=host.problem,
                    labels=host.labels, desktops=counts.get(host.id, 0), machine_id=host.machine_id,
                    host_key=host.host_key, agent_version=host.agent_version, driver=host.driver,
                    holder=lease.holder if lease is not None and lease.expires_at > now else None,
                    seen=_time_text(host.seen_at),
                    running=self._running_on(host), offers=room.profiles(host.id), generation=host.generation,
                    images=images.get(host.id, {}), moves_live=host.moves_live,
                )
            )  # fmt: skip
        return tuple(results)

    def _running_on(self, host: FleetHost) -> int | None:
        if host.state is not FleetHostState.MAINTENANCE:
            return None
        reports = (desktop.report for desktop in self._store.desktops.of_host(host.id))
        return sum(report is not None and report.exists and is_running(report.state) for report in reports)

    def _image_results(self, images: tuple[Image, ...]) -> tuple[FleetImageResult, ...]:
        hosts = {host.id: host.name for host in self._store.hosts.list()}
        states: dict[str, dict[str, str]] = {}
        for row in self._store.host_images.list():
            if row.host_id in hosts:
                states.setdefault(row.image_id, {})[hosts[row.host_id]] = state_text(row)
        pools = self._store.pools.list()
        return tuple(
            FleetImageResult(
                image.name, image.version, image.path, image.os, image.sha256, image.retired,
                tuple(pool.name for pool in pools if pool.image_id == image.id), image.generation,
                image.file, image.url, image.bytes, states.get(image.id, {}),
            )
            for image in images
        )  # fmt: skip


def _for_manager(caller: FleetCaller, image: FleetImageResult) -> FleetImageResult:
    """Return an image as its caller may see it: a pool's manager sees no hosts, and no pools of others."""
    if caller.role is not None:
        return image
    return replace(image, hosts={}, pools=tuple(pool for pool in image.pools if sees_pool(caller, pool)))


def _key_warnings(link: HostLink) -> tuple[str, ...]:
    if not link.opens_shell():
        return ()
    where = f"put {KEY_OPTIONS} before it in authorized_keys there"
    return (f"the controller's key runs any command on {link.name}: {where}",)


def _host_of(desktop: Desktop, hosts: Mapping[str, FleetHost]) -> FleetHost | None:
    return None if desktop.host_id is None else hosts.get(desktop.host_id)


def _phase(
    desktop: Desktop, pool: Pool, host: FleetHost | None, rows: Mapping[tuple[str, str], HostImage], now: float
) -> Phase:
    return phase_of(desktop, pool, host, now, "" if host is None else image_wait(desktop, rows, host.name))


def _desktop_result(
    desktop: Desktop,
    pool: Pool,
    hosts: Mapping[str, FleetHost],
    image: str,
    rows: Mapping[tuple[str, str], HostImage],
    now: float,
) -> DesktopResult:
    report, host, target = desktop.report, _host_of(desktop, hosts), hosts.get(desktop.moving_to or "")
    phase = _phase(desktop, pool, host, rows, now)
    cannot_move = report is not None and report.code == MOVE_CODE
    why = phase.why or (report.error if report is not None and (host is None or cannot_move) else None)
    if target is not None:
        why = f"moving to {target.name}" + (f"; {why}" if why else "")
    shows_address = desktop.handed_out or pool.spec.kind is PoolKind.FIXED
    if not why and shows_address and report is not None and report.address is None and is_running(report.state):
        why = report.address_problem
    return DesktopResult(
        name=desktop.name, id=desktop.id, pool=pool.name, phase=str(phase.word), why=why or None, user=desktop.user,
        host=None if host is None else host.name, profile=desktop.profile, image=image, mac=desktop.mac,
        address=report.address if report is not None and shows_address else None,
        power="on" if desktop.power_on else "off", assigned=_time_text(desktop.assigned_at),
        lease_until=_time_text(desktop.lease_until),
        seen=_time_text(None if report is None else report.seen_at or None),
        code=None if report is None else report.code, error=None if report is None else report.error,
        hint=None if report is None else report.hint, generation=desktop.generation,
        logon=None if pool.spec.logon is None else str(pool.spec.logon), restart_error=restart_problem(desktop, now),
        moving_to=None if target is None else target.name,
    )  # fmt: skip


def _check_labels(labels: Mapping[str, str]) -> dict[str, str]:
    try:
        return label_rules.labels(dict(labels))
    except ValueError as error:
        raise InvalidInput(f"labels: {error}") from error


def _check_text(name: str, text: str) -> str:
    if not 0 < len(text) <= 100 or not text.isprintable():
        raise InvalidInput(f"{name}: 1 to 100 printable characters")
    return text
