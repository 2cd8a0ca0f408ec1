# SPDX-License-Identifier: Apache-2.0
"""The commands that look after the whole host, and that install vgpuctl on it and in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import command, complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.run import CommandOutput
from vgpuctl.cli.shown import Block, Page, Table, dry_run
from vgpuctl.model import outcome
from vgpuctl.model.results import host as host_results

if TYPE_CHECKING:
    from vgpuctl.cli.entry import SignalGuard
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.host import DoctorResult, ReconcileResult

CHECK_FAILED_STATUS = 6


def doctor_page(result: Outcome[DoctorResult]) -> Page:
    """List every check in one line, then each problem with its evidence and fix; of a single check, all that it saw."""
    rows = tuple((check.verdict, check.id, check.title) for check in result.data.checks)
    blocks: list[Block] = [
        Table(("VERDICT", "ID", "CHECK"), rows, free_text=frozenset({"CHECK"}), states=frozenset({"VERDICT"}))
    ]
    for check in result.data.checks:
        is_shown = check.verdict in ("fail", "warn", "unknown") or len(rows) == 1
        if is_shown and (check.evidence or check.fix):
            blocks += ["", f"{check.id} ({check.verdict}):", *(f"  {line}" for line in check.evidence)]
            blocks += [f"  fix: {check.fix}"] if check.fix else []
    if result.dry_run:
        blocks += ["", *dry_run(result).blocks]
    return Page(blocks)


@make_command(
    "doctor",
    page=doctor_page,
    examples=(
        ("vgpuctl --host sim:a100-40 doctor", "all checks"),
        ("vgpuctl --host sim:a100-40 doctor iommu libvirt vfs", "these checks alone"),
        ("vgpuctl --host sim:a100-40 doctor --fix --dry-run", "what --fix would change"),
        ("vgpuctl doctor --root /srv/captured --json", "a captured tree, for a program"),
    ),
)
@click.argument("ids", metavar="[CHECK]...", nargs=-1, shell_complete=complete.checks)
@click.option(
    "--fix",
    is_flag=True,
    help="Fix what is safe to fix: what reconcile-host and restore-host fix, and the mode of /run/vgpuctl. Asks first.",
)
@click.option("--dry-run", is_flag=True, help="With --fix: only show what would be done.")
@click.pass_obj
def doctor(settings: Settings, ids: tuple[str, ...], fix: bool, dry_run: bool) -> int:
    """Check this host: firmware, kernel, drivers, libvirt, GPUs and leftovers.

    Each check shows what it saw and how to fix a problem. The exit status is 6 if a check fails, otherwise 0. A check
    that cannot read what it needs, for example without root, is unknown, not failed. The last column of the table
    has each check's name.
    """
    if dry_run and not fix:
        raise click.UsageError("--dry-run requires --fix: without --fix doctor changes nothing")

    return run.call(
        settings,
        "doctor",
        lambda host: host.fix_problems(*ids, dry_run=dry_run) if fix else host.doctor(*ids),
        lambda result: CommandOutput(result, status=CHECK_FAILED_STATUS if result.data.verdict == "fail" else 0),
    )


def _reconcile_page(result: Outcome[ReconcileResult]) -> Page:
    """The findings, each with its action, and in a dry run every step."""
    if not result.data.findings:
        return Page(["nothing to do"])
    blocks: list[Block] = []
    for finding in result.data.findings:
        blocks += [finding.what, f"  {finding.action}"]
    if result.dry_run and result.steps:
        blocks += ["", *dry_run(result).blocks]
    return Page(blocks)


@make_command(
    "reconcile-host",
    page=_reconcile_page,
    examples=(
        ("vgpuctl --host sim:a100-40 reconcile-host --dry-run", "what is unfinished, and how it would be resolved"),
        ("vgpuctl --host sim:a100-40 reconcile-host", "do it"),
    ),
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def reconcile(settings: Settings, dry_run: bool) -> int:
    """Finish or undo what a crash, a kill or a reboot interrupted.

    It undoes partly created VMs, completes the removal of partly removed ones, and removes devices without an owner
    if nothing uses them. It writes lost records and claims again and removes half-written files. It repeats this
    until nothing is left to do, at most five times. It does not touch unmanaged devices. vGPUs that are missing after
    a reboot are created by start-vm, those of host.yaml by restore-host.
    """
    return run.call(settings, "reconcile-host", lambda host: host.reconcile_host(dry_run=dry_run))


@make_command(
    "restore-host",
    examples=(
        ("vgpuctl --host sim:a100-40 restore-host --dry-run", "what is missing and would be created"),
        ("vgpuctl --host sim:a100-40 restore-host", "create it"),
    ),
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def restore_host(settings: Settings, dry_run: bool) -> int:
    """Recreate every missing vGPU, for example after a boot: those of host.yaml, then those of every VM.

    vgpuctl-restore.service runs this before libvirt starts, so it reads the VMs from libvirt's files. It waits for
    drivers and virtual functions, at most 'boot: deadline_seconds:' of /etc/vgpuctl/host.yaml (300). It continues
    after a vGPU that cannot be created and lists all failures at the end. After a boot, GPUs that are not ready delay
    libvirt's start by at most 'boot: hold_libvirt_seconds:' (30). Autostart VMs on later GPUs start when these are
    ready.
    """
    return run.call(settings, "restore-host", lambda host: host.restore_host(dry_run=dry_run))


@make_command(
    "install-host",
    shown_by="doctor",
    examples=(
        ("vgpuctl --host sim:a100-40 install-host --dry-run", "which files would be installed"),
        (
            "vgpuctl --host sim:a100-40 install-host --restart-libvirt",
            "install them, and restart libvirt so that it loads the hook",
        ),
        ("vgpuctl --host sim:a100-40 install-host --agent", "also the host agent, enabled and started"),
        ("vgpuctl --host sim:a100-40 install-host --controller", "also a controller of pools of desktops"),
    ),
)
@click.option("--restart-libvirt", is_flag=True, help="Also restart libvirt's daemon; running VMs keep running.")
@click.option(
    "--agent",
    is_flag=True,
    help="Also install, enable and start the host agent, and create the groups vgpuctl and vgpuctl-view.",
)
@click.option(
    "--controller",
    is_flag=True,
    help="Also install, enable and start a controller of pools, and create its user vgpuctl-controller.",
)
@click.option(
    "--deb",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="By ssh: copy vgpuctl itself to the host first, as the Debian package in a local file.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def install_host(
    settings: Settings, restart_libvirt: bool, agent: bool, controller: bool, deb: str | None, dry_run: bool
) -> int:
    """Install what restores vGPUs after a boot and creates them when virsh starts a VM.

    It installs vgpuctl-restore.service, a libvirt hook (/etc/libvirt/hooks/qemu.d/vgpuctl), completion for those of
    bash, zsh and fish that the host has, and /etc/vgpuctl. The Debian package contains all of these but the hook. It
    keeps files that were changed by hand and hooks of other programs. A second run changes nothing. libvirt loads a
    new hook only after its daemon was restarted once.

    With --agent it also installs vgpuctl-agent.service and its socket, for those who use vgpuctl without being root,
    with --controller vgpuctl-controller.service. Later runs without them keep what is installed up to date.
    """
    if deb is not None:
        raise click.UsageError("--deb requires --host ssh://HOST")
    return run.call(
        settings,
        "install-host",
        lambda host: host.install_host(
            completions=_completion_scripts(),
            restart_libvirt=restart_libvirt,
            agent=agent,
            controller=controller,
            dry_run=dry_run,
        ),
    )


def _completion_scripts() -> dict[str, str]:
    """Return the completion script of each shell."""
    from vgpuctl.cli import shells

    return {
        shell: shells.script(command.cli, shell, command.PROGRAM, command.COMPLETE_VARIABLE)
        for shell in ("bash", "zsh", "fish")
    }


@make_command(
    "uninstall-host",
    shown_by="doctor",
    examples=(
        ("vgpuctl --host sim:a100-40 uninstall-host --dry-run", "what would be removed"),
        (
            "vgpuctl --host sim:a100-40 uninstall-host --restart-libvirt",
            "remove it",
        ),
    ),
)
@click.option("--restart-libvirt", is_flag=True, help="Also restart libvirt's daemon; running VMs keep running.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def uninstall_host(settings: Settings, restart_libvirt: bool, dry_run: bool) -> int:
    """Remove what install-host installed. VMs, their vGPUs and host.yaml stay.

    It keeps and lists files that were changed by hand. It removes /etc/vgpuctl only if it is empty. The host agent is
    stopped after its running operations, and a controller; their accounts and directories in /var/lib stay.
    """
    return run.call(
        settings,
        "uninstall-host",
        lambda host: host.uninstall_host(restart_libvirt=restart_libvirt, dry_run=dry_run),
    )


@make_command(
    "completion",
    examples=(
        ("vgpuctl completion bash > /etc/bash_completion.d/vgpuctl", "for every user of this host"),
        ("vgpuctl completion zsh > ~/.zfunc/_vgpuctl", "for one user, where fpath has ~/.zfunc"),
        ("vgpuctl completion fish > ~/.config/fish/completions/vgpuctl.fish", "for one user"),
    ),
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_obj
def completion(settings: Settings, shell: str) -> int:
    """Print a completion script for commands, options, and this host's profiles, GPUs and VMs."""
    from vgpuctl.cli import shells

    def work(guard: SignalGuard) -> run.CommandOutput:
        script = shells.script(command.cli, shell, command.PROGRAM, command.COMPLETE_VARIABLE)
        return run.CommandOutput(outcome.QueryResult(host_results.CompletionResult(shell, script)), raw=script)

    return run.perform(settings, "completion", work)
