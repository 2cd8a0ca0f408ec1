# SPDX-License-Identifier: Apache-2.0
"""Advice about a host: which technique of sharing a GPU fits a workload, and which GPUs can do it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.techniques import WorkloadAdviceResult
from vgpuctl.monitoring.technique_choice import advise
from vgpuctl.observe import ReadScope, observe

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

NOTE = "you choose: vgpuctl never turns MIG, or anything else, on because a GPU can do it"


def advise_workload(host: Host, workload: str) -> QueryResult[WorkloadAdviceResult]:
    """Return the techniques for a workload, best first, with the GPUs of this host. Changes nothing."""
    snapshot = observe(host, ReadScope(types=True))
    return QueryResult(advise(snapshot, workload), snapshot.warnings, notes=(NOTE,))
