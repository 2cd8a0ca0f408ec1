# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl sim reboot|reset|list-scenarios`."""

from __future__ import annotations

from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, TypeVar

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import CONTEXT_SETTINGS, LazyGroup, make_command
from vgpuctl.cli.command_table import COMMANDS, SIM_COMMANDS
from vgpuctl.cli.global_options import Settings, global_options
from vgpuctl.cli.shown import Column, Listing, Page
from vgpuctl.errors import Interrupted, VgpuctlError
from vgpuctl.model.numbers import count_text

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.host import RebootedResult, SimResult

Entry = TypeVar("Entry")


def _reboot_page(data: RebootedResult) -> Page:
    """What the boot unit did; why something failed is in the warnings."""
    if data.boot_unit == "not-enabled":
        hint = "vgpuctl install-host installs the boot unit that creates them again"
        return Page([f"{data.host}: booted again; its VMs are off, its vGPUs are gone", f"  {hint}"])
    gpus = sum(entry.kind == "gpu" for entry in data.restored)
    vgpus = sum(len(entry.carriers) for entry in data.restored)
    setup = f"set up {count_text(gpus, 'GPU')} and " if gpus else ""
    created = f"{setup}created {count_text(vgpus, 'vGPU')} again"
    failures = " and failed" if data.boot_unit == "failed" else ""
    failures += f" for {len(data.failed)}" if data.failed else ""
    return Page([f"{data.host}: booted again; its VMs are off, the boot unit {created}{failures}"])


@make_command(
    "reboot",
    table=SIM_COMMANDS,
    page=_reboot_page,
    examples=(("vgpuctl --host sim:a100-40 sim reboot", "start-vm or restore-host then creates the vGPUs again"),),
)
@click.pass_obj
def reboot(settings: Settings) -> int:
    """Reboot the simulated host, as after a power loss: its devices and /run are empty, its VMs are off.

    If install-host installed the boot unit there, it runs as at a real boot: restore-host creates the vGPUs again.
    """
    from vgpuctl import library, simulated
    from vgpuctl.library import audit
    from vgpuctl.model import outcome
    from vgpuctl.model.results import host as host_results

    def work(guard: SignalGuard) -> run.CommandOutput:
        scenario = simulated.scenario_of(settings.host, root=settings.root, connect=settings.connect)
        ports, rebooted = library.open_ports(settings.host), outcome.Subjects()
        with suppress(VgpuctlError):  # a host whose libvirt does not answer is rebooted all the same
            rebooted.add_vms([vm.name for vm in ports.hypervisor.domains()])
        entry = audit.Call("sim-reboot", audit.join(("vgpuctl", *settings.args)), rebooted)
        runs_boot_unit = simulated.reboot(scenario)
        entry.succeeded(ports, outcome.Outcome(True, None))
        if runs_boot_unit:
            return run.CommandOutput(_run_boot_unit(settings, guard))
        data = host_results.RebootedResult(settings.host, "not-enabled")
        return run.CommandOutput(outcome.QueryResult(data, changed=True))

    return run.perform(settings, "sim-reboot", work)


def _run_boot_unit(settings: Settings, guard: SignalGuard) -> QueryResult[RebootedResult]:
    """Do what the boot unit does. As on a real host, a unit that fails does not stop the boot: it is a warning."""
    from vgpuctl.model import outcome
    from vgpuctl.model.results import host as host_results

    try:
        unit_settings = copy(settings)
        unit_settings.args = ("restore-host",)  # the audit journal has the unit's command
        result = run.open_host(unit_settings, cancelled=guard.check).restore_host()
    except Interrupted:
        raise
    except VgpuctlError as error:
        hint = f"; {error.hint}" if error.hint else ""
        data = host_results.RebootedResult(
            settings.host,
            "failed",
            _listed(error, "restored", host_results.RestoredResult),
            _listed(error, "failed", host_results.NotRestoredResult),
        )
        return outcome.QueryResult(data, (f"the boot unit failed: {error.message}{hint}",), changed=True)
    data = host_results.RebootedResult(settings.host, "done", result.data.restored)
    return outcome.QueryResult(data, result.warnings, changed=True)


def _listed(error: VgpuctlError, fact: str, kind: type[Entry]) -> tuple[Entry, ...]:
    entries = error.facts.get(fact)
    return tuple(e for e in entries if isinstance(e, kind)) if isinstance(entries, (list, tuple)) else ()


def _reset_page(data: SimResult) -> Page:
    return Page([f"{data.host}: as new"])


@make_command(
    "reset",
    table=SIM_COMMANDS,
    page=_reset_page,
    shown_by="list-gpus",
    examples=(("vgpuctl --host sim:a100-40 sim reset --yes", "the host is as if never used"),),
)
@click.pass_obj
def reset(settings: Settings) -> int:
    """Forget everything that happened on the simulated host: VMs, vGPUs and disks. Asks first."""
    from vgpuctl import simulated
    from vgpuctl.cli import progress
    from vgpuctl.model import outcome
    from vgpuctl.model.results import host as host_results

    def work(guard: SignalGuard) -> run.CommandOutput:
        scenario = simulated.scenario_of(settings.host, root=settings.root, connect=settings.connect)
        progress.ConfirmationPrompt(settings)(f"Forget everything on {settings.host}?", ())
        simulated.reset(scenario)
        return run.CommandOutput(outcome.QueryResult(host_results.SimResult(settings.host), changed=True))

    return run.perform(settings, "sim-reset", work)


SCENARIOS = Listing(
    "simulated hosts",
    (
        Column("host", "HOST", lambda row: row.host),
        Column("description", "DESCRIPTION", lambda row: row.description, free_text=True),
    ),
    lambda row: str(row.host),
)


@make_command(
    "list-scenarios",
    table=SIM_COMMANDS,
    listing=SCENARIOS,
    examples=(("vgpuctl sim list-scenarios", "the hosts for --host sim:NAME"),),
)
@click.pass_obj
def list_scenarios(settings: Settings) -> int:
    """List the built-in simulated hosts.

    --host sim:FILE uses your own scenario, a YAML file such as {version: 1, gpus: [{model: A40}, {model: A40}]}.
    """
    from vgpuctl import simulated
    from vgpuctl.model import outcome
    from vgpuctl.model.results import host as host_results

    def work(guard: SignalGuard) -> run.CommandOutput:
        rows = (host_results.ScenarioResult(f"sim:{name}", text) for name, text in simulated.list_scenarios())
        return run.CommandOutput(outcome.QueryResult(tuple(rows)))

    return run.perform(settings, "sim-list-scenarios", work)


_COMMANDS: dict[str, click.Command] = {
    "reboot": reboot,
    "reset": reset,
    "list-scenarios": list_scenarios,
}

command = LazyGroup(
    "sim",
    headings={"Commands": {name: entry.summary for name, entry in SIM_COMMANDS.items()}},
    load=_COMMANDS.__getitem__,
    help="Reboot or reset the simulated host that --host names, or list the built-in ones.",
    short_help=COMMANDS["sim"].summary,
    examples=(("vgpuctl --host sim:a100-40 sim reboot", "what a reboot removes is gone"),),
    params=global_options(),
    context_settings=CONTEXT_SETTINGS,
    subcommand_metavar="COMMAND",
)
