# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl install-host`."""

from __future__ import annotations

import click

from vgpuctl.cli import run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings


@make_command(
    "install-host",
    examples=(
        ("vgpuctl --host sim:a100-40 install-host --dry-run", "what would be put where"),
        ("vgpuctl --host sim:a100-40 install-host --restart-libvirt", "put it there, and let libvirt see its hook"),
    ),
)
@click.option("--restart-libvirt", is_flag=True, help="Restart libvirt's daemon as well; running VMs stay.")
@click.option(
    "--wheelhouse",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="By ssh: bring vgpuctl itself there first, from a directory here with its wheels.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, restart_libvirt: bool, wheelhouse: str | None, dry_run: bool) -> int:
    """Put in place what makes vGPUs come back after a boot, and what makes a plain 'virsh start' safe.

    That is vgpuctl-restore.service, a hook of libvirt (/etc/libvirt/hooks/qemu.d/vgpuctl), completion for bash, zsh and
    fish where the host has them, and /etc/vgpuctl. A file that was changed by hand is kept, so is somebody else's
    hook. A second run changes nothing. libvirt sees a new hook only after its daemon was restarted once.
    """
    if wheelhouse is not None:
        raise click.UsageError("--wheelhouse goes with --hosts FILE or --host ssh://HOST")

    return run.call(
        settings,
        "install-host",
        lambda host: host.install_host(
            completions=_completion_scripts(), restart_libvirt=restart_libvirt, dry_run=dry_run
        ),
    )


def _completion_scripts() -> dict[str, str]:
    """Return the completion script of each shell."""
    from vgpuctl.cli import app, shells

    return {
        shell: shells.script(app.cli, shell, app.PROGRAM, app.COMPLETE_VARIABLE) for shell in ("bash", "zsh", "fish")
    }
