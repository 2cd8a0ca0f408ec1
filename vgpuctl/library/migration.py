# SPDX-License-Identifier: Apache-2.0
"""The calls of a VM's move to another host: each of the two hosts makes its own. `move_between` makes them in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from vgpuctl.errors import InvalidInput
from vgpuctl.library.call import change, query
from vgpuctl.library.vms import VmCalls
from vgpuctl.model.outcome import Outcome, QueryResult, never_cancelled
from vgpuctl.value import replace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vgpuctl.model.results.migration import (
        EndedMigrationResult,
        FinishedMigrationResult,
        MigratedVmResult,
        MigrationOfferResult,
        MigrationPlaceResult,
        MigrationStateResult,
        SentVmResult,
    )


class MigrationCalls(VmCalls):
    """Calls of a move. All of them can be repeated: what is done already is not done again."""

    def uninterrupted(self) -> Self:
        """Return this host for calls that go on although the user has stopped their caller: they end what it began."""
        return self.with_settings(replace(self._settings, cancelled=never_cancelled))

    @query
    def offer_vm(self, name: str, *, offline: bool = False) -> QueryResult[MigrationOfferResult]:
        """Return a VM as another host needs to know it, and why it cannot leave. `offline`: it is off meanwhile."""
        from vgpuctl.operations import migration_offer

        return migration_offer.offer_vm(self._ports, self._context(), name, offline=offline)

    @change("prepare-incoming")
    def prepare_incoming(
        self,
        offer: MigrationOfferResult,
        *,
        copies_disks: bool = False,
        offline: bool = False,
        needs_tls: bool = True,
        dry_run: bool = False,
    ) -> Outcome[MigrationPlaceResult]:
        """Make this host ready for a VM that another one offers: its vGPUs, definition and disks."""
        from vgpuctl.operations import arrive

        return arrive.prepare_incoming(
            self._ports,
            self._context(dry_run=dry_run),
            offer,
            copies_disks=copies_disks,
            offline=offline,
            needs_tls=needs_tls,
        )

    @change("migrate-out", "vm")
    def migrate_out(
        self,
        name: str,
        place: MigrationPlaceResult,
        *,
        target_uri: str,
        peer: str | None = None,
        migrate_uri: str | None = None,
        tls: bool = True,
        limits_ms: Sequence[int] = (),
        bandwidth_mib_s: int | None = None,
        parallel: int | None = None,
        dry_run: bool = False,
    ) -> Outcome[SentVmResult]:
        """Send a running VM to the place that its target has made ready; it is paused there, and off here.

        `target_uri`: the target's libvirt; for an account, a name of `agent: allow: migrate_to`. `peer`: how errors and
        the record name the target, None: as it names itself.
        """
        from vgpuctl.operations import leave

        place = place if peer is None else replace(place, host=replace(place.host, name=peer))
        route = leave.Route(target_uri, migrate_uri, tls, tuple(limits_ms), bandwidth_mib_s, parallel)
        return leave.migrate_out(self._ports, self._context(dry_run=dry_run), name, place, route)

    @query
    def show_migration(self, name: str) -> QueryResult[MigrationStateResult]:
        """Return what this host has of a VM that moves."""
        from vgpuctl.operations import migration_end

        return migration_end.show_migration(self._ports, self._context(), name)

    @change("finish-migration", "vm")
    def finish_migration(
        self, name: str, *, migration_id: str, outcome: str, seen: str | None = None, dry_run: bool = False
    ) -> Outcome[FinishedMigrationResult]:
        """End a move on this host: its VM `runs-here` from now on, or `runs-there`, and nothing of it is left here.

        `seen`: what `show_migration` said when that was decided; if it is not so any more, nothing is done.
        """
        from vgpuctl.operations import migration_end

        return migration_end.finish_migration(
            self._ports, self._context(dry_run=dry_run), name, migration_id=migration_id, outcome=outcome, seen=seen
        )

    @change("migrate-vm", "vm")
    def migrate_vm(
        self,
        name: str,
        *,
        to: str,
        offline: bool = False,
        copy_storage: bool = False,
        max_downtime: float | None = None,
        bandwidth: int | None = None,
        connections: int | None = None,
        address: str | None = None,
        libvirt_uri: str | None = None,
        insecure_network: bool = False,
        dry_run: bool = False,
    ) -> Outcome[MigratedVmResult]:
        """Move a VM to another host (`ssh://HOST`), alive or, with `offline`, while it is off.

        `max_downtime`: for how many seconds it may stand still. `bandwidth`: MiB a second. `connections`: at once.
        `address`: of the target, for memory and disks. `libvirt_uri`: how this host's libvirt reaches the target's.
        """
        from vgpuctl.library import move_between
        from vgpuctl.library.peers import check_address, open_peer, peer_name
        from vgpuctl.operations import guards

        guards.require_writable(self._ports, self._context(dry_run=dry_run))
        check_address(address, libvirt_uri)
        peer = open_peer(to, "--to", self._settings, libvirt_uri=libvirt_uri)
        request = move_between.MoveRequest(
            peer.libvirt_uri,
            offline=offline,
            copies_disks=copy_storage,
            insecure=insecure_network,
            max_downtime_ms=None if max_downtime is None else round(1000 * max_downtime),
            bandwidth_mib_s=bandwidth,
            parallel=None if connections == 1 else connections,
            address=address,
            peer=peer_name(to),
        )
        try:
            if dry_run:
                return _moved(move_between.check_move(self, peer.host, name, request), dry_run=True)
            return _moved(move_between.move_vm(self, peer.host, name, request, confirm=self._confirm))
        finally:
            peer.close()

    @change("end-migration", "vm")
    def end_migration(
        self, name: str, *, peer: str | None = None, outcome: str | None = None, dry_run: bool = False
    ) -> Outcome[EndedMigrationResult]:
        """End a move that was interrupted, by what this host and the other one (`peer`) have of it.

        `outcome`: without the other host, `runs-here` or `runs-there`: the caller knows that it is so.
        """
        from vgpuctl.library import move_end
        from vgpuctl.library.peers import open_peer
        from vgpuctl.operations import guards
        from vgpuctl.operations.plans.migration_end import RUNS_HERE, RUNS_THERE

        if (peer is None) is (outcome is None) or outcome not in (None, RUNS_HERE, RUNS_THERE):
            raise InvalidInput("specify one of --with HOST, --runs-here and --runs-there", hint=self._end_hint(name))
        if peer is None:
            return move_end.settle_alone(self, name, str(outcome), confirm=self._confirm, dry_run=dry_run)
        guards.require_writable(self._ports, self._context(dry_run=dry_run))
        other = open_peer(peer, "--with", self._settings)
        try:
            return move_end.settle_with(self, other.host, name, confirm=self._confirm, dry_run=dry_run)
        finally:
            other.close()

    def _end_hint(self, name: str) -> str | None:
        """Return the command that ends a VM's move with the host that its record names; None: it is in no move."""
        from vgpuctl.model.hint_commands import end_migration_command

        peer = self.show_migration(name).data.peer
        return None if peer is None else end_migration_command(name, peer)


def _moved(data: MigratedVmResult, *, dry_run: bool = False) -> Outcome[MigratedVmResult]:
    """Return the outcome of a move: one step, and what may surprise as notes."""
    how = "alive" if data.is_live else "while off"
    places = "".join(f"; {vgpu.profile or vgpu.from_carrier} to {vgpu.function}" for vgpu in data.vgpus)
    step = f"move VM {data.name} from {data.source} to {data.target} {how}{places}"
    notes = tuple(dict.fromkeys(f"{data.name}: {one.host}: {one.what}" for one in data.cautions))
    return Outcome(True, data, (step,), notes=notes, dry_run=dry_run)
