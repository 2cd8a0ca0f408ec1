# SPDX-License-Identifier: Apache-2.0
"""The calls about quotas; `FleetService` has them with all other calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.controller.model import EVERYBODY, FleetCaller, Quota
from vgpuctl.controller.people import check_who, nobody_yet
from vgpuctl.errors import InvalidInput
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.people import QuotaResult

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

MOST = {"desktops": 1_000_000, "running": 1_000_000, "gpu_mib": 1 << 40}


class QuotaCalls:
    """The calls."""

    _store: Store

    def list_quotas(self, caller: FleetCaller) -> QueryResult[tuple[QuotaResult, ...]]:
        """Return all quotas."""
        return QueryResult(tuple(map(_result, self._store.quotas.list())))

    def ensure_quota(
        self,
        caller: FleetCaller,
        who: str,
        desktops: int | None = None,
        running: int | None = None,
        gpu_mib: int | None = None,
        if_generation: int | None = None,
    ) -> Outcome[QuotaResult]:
        """Set how much a person, each one of `@GROUP`, or everybody may have; what is not given is not limited.

        Nobody loses what he has.
        """
        numbers = {"desktops": desktops, "running": running, "gpu_mib": gpu_mib}
        if set(numbers.values()) == {None}:
            raise InvalidInput(
                "a quota limits something: desktops, running or gpu_mib", hint="to limit nothing: delete-quota", who=who
            )
        for name, number in numbers.items():
            if number is not None and not 0 <= number <= MOST[name]:
                raise InvalidInput(f"{name}: {number} is not a number from 0 to {MOST[name]}")
        quota, changed = self._store.quotas.put(
            Quota(check_who(who), desktops, running, gpu_mib), caller.name, if_generation
        )
        people = None if who == EVERYBODY else self._store.entitlements.count_members(who)
        return Outcome(changed, _result(quota), warnings=nobody_yet(who, people))

    def delete_quota(self, caller: FleetCaller, who: str) -> Outcome[QuotaResult]:
        """Delete a quota: the next one decides, his groups' or everybody's."""
        return Outcome(True, _result(self._store.quotas.delete(check_who(who), caller.name)))


def _result(quota: Quota) -> QuotaResult:
    return QuotaResult(quota.who, quota.desktops, quota.running, quota.gpu_mib, quota.set_by, quota.generation)
