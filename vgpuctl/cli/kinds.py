# SPDX-License-Identifier: Apache-2.0
"""The kinds of documents, and the type of each one's result: what the library's call of that name returns.

Schemas and replies of other hosts need the types; a local command does not. `Outcome`: JSON has the fields of
`WorkResult` too.
"""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import Any, get_args, get_origin, get_type_hints

from vgpuctl.cli import command_table
from vgpuctl.cli.command import find_command
from vgpuctl.library import GpuHost
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results import gpus, host, moves, vgpus, vms
from vgpuctl.model.results.program import CompletionResult, HostsResult, RebootedResult, ScenarioResult, SimResult
from vgpuctl.model.results.targets import TargetsResult
from vgpuctl.model.results.vms import ChangedVmResult, ManyVmsResult, PlannedVmResult, VmResult, XmlResult

HOSTS = "hosts"
"""The kind of what any command has on several other hosts."""
_OTHERS: dict[str, object] = {
    "create-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult] | QueryResult[XmlResult],
    "ensure-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult | TargetsResult[VmResult | PlannedVmResult]],
    "completion": QueryResult[CompletionResult],
    "sim-reboot": QueryResult[RebootedResult],
    "sim-reset": QueryResult[SimResult],
    "sim-list-scenarios": QueryResult[tuple[ScenarioResult, ...]],
    HOSTS: QueryResult[HostsResult],
}
"""The results of commands that make several calls, or none."""


def all_kinds() -> tuple[str, ...]:
    """Return every kind: each command, and `hosts`."""
    names = (name for name in command_table.COMMANDS if name != "sim")
    return (*names, *(f"sim-{name}" for name in command_table.SIM_COMMANDS), HOSTS)


@functools.cache
def result_type(kind: str) -> Any:
    """Return the type of a kind's result."""
    if kind in _OTHERS:
        return _OTHERS[kind]
    name = kind.replace("-", "_")
    call = getattr(GpuHost, name, None) or getattr(GpuHost, f"{name}_host")
    records = {name: value for module in (gpus, host, moves, vgpus, vms) for name, value in vars(module).items()}
    returned = SimpleNamespace(__annotations__={"result": call.__annotations__["return"]})
    single = get_type_hints(returned, {**records, "Outcome": Outcome, "QueryResult": QueryResult})["result"]
    if not _takes_several(kind, call):
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
