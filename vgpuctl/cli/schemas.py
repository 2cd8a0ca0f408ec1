# SPDX-License-Identifier: Apache-2.0
"""The kinds of documents, the type of each one's result, and JSON Schemas made from these types.

The type is what the library's call of that name returns. Schemas and replies of other hosts need it; a local command
does not. One schema per kind describes whole documents: success with that kind's data, or failure. Unknown fields are
allowed, because fields are added without a new schema version.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, get_args, get_origin

from vgpuctl.cli import command_table
from vgpuctl.cli.command import find_command
from vgpuctl.library.call_table import CALLS
from vgpuctl.model import json_schema
from vgpuctl.model.event import Event
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results import TargetsResult
from vgpuctl.model.results.advice import AdviceResult
from vgpuctl.model.results.fleet import (
    AppliedFleetResult,
    BackupResult,
    DatabaseResult,
    DemoResult,
    FleetFileResult,
    RestoredDatabaseResult,
)
from vgpuctl.model.results.host import (
    AgentResult,
    CompletionResult,
    DoctorResult,
    GuestHelperFileResult,
    HostsResult,
    RebootedResult,
    ScenarioResult,
    SimResult,
)
from vgpuctl.model.results.migration import (
    FinishedMigrationResult,
    MigrationOfferResult,
    MigrationPlaceResult,
    MigrationStateResult,
    SentVmResult,
)
from vgpuctl.model.results.techniques import WorkloadAdviceResult
from vgpuctl.model.results.vms import ChangedVmResult, ManyVmsResult, PlannedVmResult, VmResult, XmlResult

HOSTS = "hosts"
"""The kind of what any command has on several other hosts."""

DIAL = "agent-dial"
"""A command that prints no document: it carries the bytes of others."""

_OTHERS: dict[str, object] = {
    "advise": QueryResult[WorkloadAdviceResult] | QueryResult[AdviceResult],
    "agent-run": QueryResult[AgentResult],
    "controller-backup": QueryResult[BackupResult],
    "controller-demo": QueryResult[DemoResult],
    "controller-doctor": Outcome[DoctorResult],
    "controller-apply-fleet": Outcome[AppliedFleetResult],
    "controller-export-fleet": QueryResult[FleetFileResult],
    "controller-restore": QueryResult[RestoredDatabaseResult],
    "controller-run": QueryResult[AgentResult],
    "controller-upgrade-db": QueryResult[DatabaseResult],
    "events": QueryResult[tuple[Event, ...]],
    "create-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult] | QueryResult[XmlResult],
    "ensure-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult | TargetsResult[VmResult | PlannedVmResult]],
    "migration-call": QueryResult[MigrationOfferResult]
    | QueryResult[MigrationStateResult]
    | Outcome[MigrationPlaceResult]
    | Outcome[SentVmResult]
    | Outcome[FinishedMigrationResult]
    | Outcome[VmResult | PlannedVmResult],
    "completion": QueryResult[CompletionResult],
    "print-helper": QueryResult[GuestHelperFileResult],
    "sim-reboot": QueryResult[RebootedResult],
    "sim-reset": QueryResult[SimResult],
    "sim-list-scenarios": QueryResult[tuple[ScenarioResult, ...]],
    HOSTS: QueryResult[HostsResult],
}
"""The results of commands that make several calls, or none."""


def all_kinds() -> tuple[str, ...]:
    """Return every kind: each command, and `hosts`."""
    names = (name for name in command_table.COMMANDS if name not in command_table.GROUPS)
    parts = (f"{group}-{name}" for group, commands in command_table.GROUPS.items() for name in commands)
    return (*names, *(kind for kind in parts if kind != DIAL), HOSTS)


@functools.cache
def result_type(kind: str) -> Any:
    """Return the type of a kind's result."""
    if kind in _OTHERS:
        return _OTHERS[kind]
    if kind.startswith("controller-"):
        from vgpuctl.controller import routes

        return routes.CALLS[kind.removeprefix("controller-")].result_type
    call = CALLS.get(kind) or CALLS[f"{kind}-host"]
    single = call.result_type
    if not _takes_several(kind, call.method):
        return single
    record: Any = get_args(single)[0]
    several: Any = TargetsResult[record]
    return get_origin(single)[record | several]


def _takes_several(kind: str, call: Any) -> bool:
    """Say whether a command is for several VMs, vGPUs or GPUs, and calls the library for one after the other."""
    command = find_command(kind)
    has_all = command is not None and any(param.name == "everything" for param in command.params)
    first = [*inspect.signature(call).parameters.values()][1:2]
    return has_all and any(param.kind is param.POSITIONAL_OR_KEYWORD for param in first)


def document_schema(kind: str) -> dict[str, Any]:
    """Return the schema of one kind's documents."""
    return json_schema.document_schema(kind, result_type(kind), f"vgpuctl {_spoken(kind)} --json")


def _spoken(kind: str) -> str:
    """Return the words of a command: `sim-reset` is typed `sim reset`."""
    group, _, rest = kind.partition("-")
    return f"{group} {rest}" if group in command_table.GROUPS else kind
