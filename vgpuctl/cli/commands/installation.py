# SPDX-License-Identifier: Apache-2.0
"""The commands that install vgpuctl on a host and in a shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from vgpuctl.cli import app, run, shells
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.model import outcome
from vgpuctl.model.results import host as program_results

if TYPE_CHECKING:
    from vgpuctl.cli.signals import SignalGuard


@make_command(
    "install-host",
    shown_by="doctor",
    examples=(
        ("vgpuctl --host sim:a100-40 install-host --dry-run", "which files would be installed"),
        (
            "vgpuctl --host sim:a100-40 install-host --restart-libvirt",
            "install them, and restart libvirt so that it loads the hook",
        ),
    ),
)
@click.option("--restart-libvirt", is_flag=True, help="Also restart libvirt's daemon; running VMs keep running.")
@click.option(
    "--deb",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="By ssh: copy vgpuctl itself to the host first, as the Debian package in a local file.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def install_host(settings: Settings, restart_libvirt: bool, deb: str | None, dry_run: bool) -> int:
    """Install what restores vGPUs after a boot and creates them when virsh starts a VM.

    It installs vgpuctl-restore.service, a libvirt hook (/etc/libvirt/hooks/qemu.d/vgpuctl), completion for those of
    bash, zsh and fish that the host has, and /etc/vgpuctl. The Debian package contains all of these but the hook. It
    keeps files that were changed by hand and hooks of other programs. A second run changes nothing. libvirt loads a
    new hook only after its daemon was restarted once.
    """
    if deb is not None:
        raise click.UsageError("--deb requires --host ssh://HOST")
    return run.call(
        settings,
        "install-host",
        lambda host: host.install_host(
            completions=_completion_scripts(), restart_libvirt=restart_libvirt, dry_run=dry_run
        ),
    )


def _completion_scripts() -> dict[str, str]:
    """Return the completion script of each shell."""
    return {
        shell: shells.script(app.cli, shell, app.PROGRAM, app.COMPLETE_VARIABLE) for shell in ("bash", "zsh", "fish")
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

    It keeps and lists files that were changed by hand. It removes /etc/vgpuctl only if it is empty.
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

    def work(guard: SignalGuard) -> run.CommandOutput:
        script = shells.script(app.cli, shell, app.PROGRAM, app.COMPLETE_VARIABLE)
        return run.CommandOutput(outcome.QueryResult(program_results.CompletionResult(shell, script)), raw=script)

    return run.perform(settings, "completion", work)
