# SPDX-License-Identifier: Apache-2.0
"""The calls about a lost database: a restore that waits for an admin, and an import from hosts' records.

`FleetService` has them with all other calls. Hosts are only looked at here: that needs no fence.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from vgpuctl.controller.model import Desktop, FleetCaller, FleetHost, Restored
from vgpuctl.controller.planning.host_look import HostVm
from vgpuctl.controller.planning.import_plan import RecordedVm, plan_import
from vgpuctl.controller.planning.restored import RecordOfDesktop, compare
from vgpuctl.controller.times import time_text
from vgpuctl.errors import Refused, VgpuctlError
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.fleet import (
    DesktopResult,
    FleetRestoreResult,
    ImportedDesktopsResult,
    UnsettledDesktopResult,
)

if TYPE_CHECKING:
    from vgpuctl.agent.client import AgentHost
    from vgpuctl.controller.database.store import Store
    from vgpuctl.controller.hosts.link import HostLink
    from vgpuctl.model.results.vms import VmResult, VmRowResult

T = TypeVar("T")
ASKED_AT_ONCE = 16
UNCONFIRMED_CALLS = frozenset(
    (
        "import-desktops", "confirm-restore", "add-host", "label-host", "cordon-host", "remove-host", "ensure-image",
        "delete-image", "ensure-pool", "pause-pool", "add-token", "delete-token", "accept-desktop",
        "ensure-person", "set-password", "delete-person", "entitle", "revoke",
    )
)  # fmt: skip
"""The changes that can be made before a restore is confirmed: none of them has an effect on a host."""


class RestoreUnconfirmed(Refused):
    """The database was restored or imported, and no admin has confirmed that yet."""

    code = "restore-unconfirmed"


class _Answer(NamedTuple, Generic[T]):
    """What a host answered, or why it did not."""

    host: FleetHost
    value: T | None = None
    problem: str | None = None


class RecoveryCalls:
    """The calls. `FleetService` says which store and which hosts they are about."""

    _store: Store
    _connect: Callable[[FleetHost], HostLink]
    _desktop_results: Callable[[tuple[Desktop, ...]], tuple[DesktopResult, ...]]

    def refuse_unconfirmed(self, call: str) -> None:
        """Refuse a change that must wait until a restore is confirmed.

        Raises:
            RestoreUnconfirmed: it must.
        """
        if call not in UNCONFIRMED_CALLS and self._store.restored.state().begun_at is not None:
            raise RestoreUnconfirmed(
                f"{call}: the database was restored, and nothing is changed on hosts until that is confirmed",
                hint="vgpuctl controller show-restore; then vgpuctl controller confirm-restore",
            )

    def show_restore(self, caller: FleetCaller) -> QueryResult[FleetRestoreResult]:
        """Compare a restored database with what the hosts have."""
        return QueryResult(self._restore_result(self._store.restored.state()))

    def confirm_restore(self, caller: FleetCaller) -> Outcome[FleetRestoreResult]:
        """Let the fleet go on after a restore or an import; hosts of the former incarnations are adopted."""
        restored = self._store.restored.confirm(caller.name)
        return Outcome(True, self._restore_result(restored))

    def import_desktops(self, caller: FleetCaller) -> Outcome[ImportedDesktopsResult]:
        """Add desktops that only records of VMs on the hosts say; there nothing is changed until confirm-restore."""
        from vgpuctl.controller.engine import make_mac

        desktops = self._all_desktops()
        known = frozenset(desktop.id for desktop in desktops)

        def read(host: FleetHost, agent: AgentHost) -> tuple[RecordedVm, ...]:
            marked = [row for row in agent.list_vms().data if row.desktop is not None and row.desktop.id not in known]
            return tuple(_imported(host, agent.show_vm(row.uuid).data, make_mac()) for row in marked)

        answers = self._ask(read)
        plan = plan_import(
            [vm for answer in answers for vm in answer.value or ()],
            self._store.pools.list(),
            self._store.images.list(),
            desktops,
            self._store.incarnation,
            lambda: str(uuid.uuid4()),
        )
        if plan.desktops:
            self._store.restored.add_import(plan, caller.name)
        problems = (*(f"{answer.host.name}: {answer.problem}" for answer in answers if answer.problem), *plan.problems)
        names = tuple(sorted(desktop.name for desktop in plan.desktops))
        pools, images = tuple(pool.name for pool in plan.pools), tuple(image.name for image in plan.images)
        return Outcome(bool(plan.desktops), ImportedDesktopsResult(names, pools, images, problems))

    def accept_desktop(self, caller: FleetCaller, name: str) -> Outcome[DesktopResult]:
        """Let a desktop be what its VM's record says, where that contradicts the database."""
        desktop = self._store.desktops.accept_record(name, caller.name)
        return Outcome(True, self._desktop_results((desktop,))[0])

    def _all_desktops(self) -> tuple[Desktop, ...]:
        return tuple(one for pool in self._store.pools.list() for one in self._store.desktops.of_pool(pool.id))

    def _restore_result(self, restored: Restored) -> FleetRestoreResult:
        answers = self._ask(lambda host, agent: tuple((host, vm) for vm in map(_host_vm, agent.list_vms().data)))
        rows = {one.id: one for one in self._all_desktops()}
        marked = [pair for answer in answers for pair in answer.value or ()]
        compared = compare(rows, marked, {self._store.incarnation, *restored.former})
        pools = {pool.id: pool.name for pool in self._store.pools.list()}
        return FleetRestoreResult(
            waits=restored.begun_at is not None,
            source=restored.source or None,
            taken=time_text(restored.taken_at),
            begun=time_text(restored.begun_at),
            incarnation=self._store.incarnation,
            former=restored.former,
            kept=tuple(map(_unsettled, compared.kept)),
            unknown=tuple(map(_unsettled, compared.unknown)),
            silent={answer.host.name: answer.problem for answer in answers if answer.problem},
            pools_without_spec=tuple(sorted(pools[one] for one in restored.imported_pools if one in pools)),
        )

    def _ask(self, act: Callable[[FleetHost, AgentHost], T]) -> tuple[_Answer[T], ...]:
        """Ask the agents of all hosts, several at a time."""

        def ask(host: FleetHost) -> _Answer[T]:
            link = self._connect(host)
            try:
                return _Answer(host, act(host, link.host()))
            except VgpuctlError as error:
                return _Answer(host, problem=error.message)
            finally:
                link.close()

        with ThreadPoolExecutor(ASKED_AT_ONCE, thread_name_prefix="ask") as threads:
            return tuple(threads.map(ask, self._store.hosts.list()))


def _host_vm(row: VmRowResult) -> HostVm:
    return HostVm(row.name, row.uuid, str(row.state), row.generation, row.desktop, row.image)


def _imported(host: FleetHost, shown: VmResult, unused_mac: str) -> RecordedVm:
    assert shown.desktop is not None
    vm = HostVm(shown.name, shown.uuid, str(shown.state), shown.generation, shown.desktop, shown.image)
    profile = next((vgpu.profile for vgpu in shown.vgpus if vgpu.profile is not None), None)
    mac = next((card.mac for card in shown.networks if card.mac is not None), unused_mac)
    return RecordedVm(host, vm, shown.desktop, profile, mac, shown.memory_mib, shown.vcpus)


def _unsettled(record: RecordOfDesktop) -> UnsettledDesktopResult:
    return UnsettledDesktopResult(record.vm, record.host, record.mark.user, record.why)
