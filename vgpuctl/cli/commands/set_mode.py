# SPDX-License-Identifier: Apache-2.0
"""`vgpuctl set-mode`."""

from __future__ import annotations

import click

from vgpuctl.cli import complete, run
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.config.vm_fields import GPU_MODES


@make_command(
    "set-mode",
    examples=(
        ("vgpuctl --host sim:mixed set-mode 0000:17:00.0 vgpu", "turns the VFs of an NVIDIA GPU on"),
        (
            "vgpuctl --host sim:mixed set-mode 0000:86:00.0 sriov --vfs 4 --dry-run",
            "what would be done for 4 plain VFs",
        ),
        (
            "vgpuctl --host sim:a100-40 set-mode 0000:3b:00.0 passthrough",
            "turns VFs off and keeps all of it for one VM",
        ),
    ),
)
@click.argument("gpu", shell_complete=complete.gpus)
@click.argument("mode", type=click.Choice(GPU_MODES))
@click.option(
    "--vfs", type=click.IntRange(min=1), metavar="N", help="How many plain virtual functions. [all there can be]"
)
@click.option(
    "--drain", is_flag=True, help="Shut running VMs down first, at most --wait seconds, and start them again."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.pass_obj
def command(settings: Settings, gpu: str, mode: str, vfs: int | None, drain: bool, dry_run: bool) -> int:
    """Set a GPU up: for vGPUs, for plain virtual functions (sriov), for one VM (passthrough), or not at all.

    The virtual functions are turned on or off as the mode wants them, and the mode is written to
    /etc/vgpuctl/host.yaml, so that it can be set again after a boot and nothing of another mode is placed there.
    Nothing changes while a VM uses the GPU, or has a vGPU there that would be lost. unmanaged changes no device:
    vgpuctl then places nothing there.
    """
    return run.call(settings, "set-mode", lambda host: host.set_mode(gpu, mode, vfs=vfs, drain=drain, dry_run=dry_run))
