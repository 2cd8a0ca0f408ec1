# SPDX-License-Identifier: Apache-2.0
"""The commands that use a running VM: its serial console, a reboot, and waiting for it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from vgpuctl.cli import complete, run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Seconds, Settings
from vgpuctl.cli.targets import Targets, change, select
from vgpuctl.config.arguments import DEFAULT_TIMEOUT_SECONDS, WAIT_TARGETS
from vgpuctl.lazy_module import LazyModule

if TYPE_CHECKING:
    from vgpuctl.cli import console_session, hosts, streams
    from vgpuctl.cli.signals import SignalGuard
    from vgpuctl.library import GpuHost
    from vgpuctl.model import outcome
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.vms import WaitedVmResult
else:
    console_session = LazyModule("vgpuctl.cli.console_session")
    hosts = LazyModule("vgpuctl.cli.hosts")
    outcome = LazyModule("vgpuctl.model.outcome")
    streams = LazyModule("vgpuctl.cli.streams")


@make_command(
    "wait",
    examples=(
        ("vgpuctl --host sim:a100-40 wait vdi-001 --for running", "returns at once if it runs"),
        ("vgpuctl wait vdi-001 vdi-002 --for off --timeout 600", "both are off, or the exit status is 75"),
        ("vgpuctl wait 'vdi-{001..030}' --for guest", "thirty desktops can be reached"),
        ("vgpuctl wait vdi-001 --for address && vgpuctl show-address vdi-001", "its address, as soon as there is one"),
    ),
)
@targets.vms(parallel=False)
@click.option("--for", "event", type=click.Choice(WAIT_TARGETS), required=True, help="What to wait for.")
@click.option(
    "--timeout",
    type=Seconds(),
    metavar="SECONDS",
    default=DEFAULT_TIMEOUT_SECONDS,
    help=f"How long to wait ({DEFAULT_TIMEOUT_SECONDS:g}).",
)
@click.pass_obj
def wait(settings: Settings, targets: Targets, event: str, timeout: float) -> int:
    """Wait until VMs run or are off, or their guests can be reached. Of several VMs, all must be there.

    guest: the guest agent answers, or an address is known. address: an address is known, by the sources that
    show-address asks. A DHCP lease from before a reboot counts.

    When the time is over the exit status is 75, and the error shows the state of each VM. A VM that is deleted, or
    that is off while its guest is waited for, ends the command at once. Nothing is changed.
    """

    def wait_for_all(host: GpuHost) -> QueryResult[tuple[WaitedVmResult, ...]]:
        name = targets.single
        names = [row.name for row in select(host, targets, managed_only=False).data] if name is None else [name]
        return host.wait(*names, event=event, timeout_seconds=timeout)

    return run.call(settings, "wait", wait_for_all)


@make_command(
    "reboot-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 reboot-vm vdi-001", "asks the guest to reboot"),
        ("vgpuctl --host sim:a100-40 reboot-vm vdi-001 --force", "resets the VM; unsaved work is lost"),
        ("vgpuctl reboot-vm --label team=cad --parallel 4", "the CAD team's desktops, four at a time"),
    ),
)
@targets.vms()
@click.option("--force", is_flag=True, help="Reset the VM at once, without asking the guest.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def reboot_vm(settings: Settings, targets: Targets, force: bool, dry_run: bool) -> int:
    """Reboot running VMs and wait until they have, at most --wait seconds each. They keep their vGPUs.

    vgpuctl asks the guest agent, or presses the ACPI power button. libvirt reports when the VM is reset. If the guest
    agent answered before, vgpuctl waits for it again. If the guest does not reboot in time, the exit status is 75; it
    may still reboot later.
    """
    return change(
        settings,
        "reboot-vm",
        targets,
        lambda host, name: host.reboot_vm(name, force=force, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "console",
    examples=(
        ("vgpuctl console vdi-001", "log in at its serial console; Ctrl-] leaves"),
        ("vgpuctl console vdi-001 --force", "take the console over from another session"),
        ("vgpuctl console vdi-001 </dev/null >boot.log", "record what the guest prints until it is off"),
    ),
)
@click.argument("name", shell_complete=complete.vms)
@click.option("--force", is_flag=True, help="Take the console over from another session.")
@click.pass_obj
def console(settings: Settings, name: str, force: bool) -> int:
    """Open the serial console of a running VM in this terminal. Ctrl-] leaves; the VM runs on.

    One session at a time has a console. VMs that vgpuctl did not create have one, too, if they have a serial port.

    If stdin is not a terminal, stdin and stdout are copied as they are until the VM is off. On another host, run it
    there: ssh -t HOST vgpuctl console NAME.
    """
    if settings.json:
        raise click.UsageError("--json does not go with console: it connects a terminal and prints no document")

    if sys.stdout is None:
        raise click.UsageError("console prints what the guest writes, and stdout is closed")

    def work(guard: SignalGuard) -> run.CommandOutput:
        host = hosts.open_host(settings, cancelled=guard.check)
        with host.open_console(name, force=force) as stream:
            stdin = None if sys.stdin is None else sys.stdin.fileno()
            session = console_session.ConsoleSession(stream, stdin, sys.stdout.fileno())
            if session.is_terminal:
                streams.write_err(f"connected to {streams.sanitize(name)}; Enter shows its prompt, Ctrl-] leaves")
            left = session.run()
        if session.is_terminal:
            streams.write_err("")
        if session.received_signal is not None:
            guard.handle(session.received_signal, None)
        notes = () if left else (_why_ended(host, name),)
        return run.CommandOutput(outcome.QueryResult(None, notes=notes), raw="")

    return run.perform(settings, "console", work)


def _why_ended(host: GpuHost, name: str) -> str:
    """Return why a console ended that the user did not leave.

    Raises:
        InUse: the VM runs: another session took the console over.
    """
    import shlex

    from vgpuctl.errors import InUse, NotFound

    try:
        state = host.show_console(name).data.state
    except NotFound:
        return f"{name} is off, and has no definition"
    if state in ("running", "paused"):
        hint = f"take it back: vgpuctl console {shlex.quote(name)} --force"
        raise InUse(f"another session took over the console of {name}", hint=hint, vm=name)
    return f"{name} is {state}"
