# SPDX-License-Identifier: Apache-2.0
"""The commands that give whole GPUs to VMs that exist, and take them back."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.settings import Settings
from vgpuctl.cli.targets import Targets, change


@make_command(
    "attach-gpu",
    shown_by="show-vm",
    examples=(
        ("vgpuctl --host sim:h100-pcie-x8 attach-gpu train-1 --gpus 2", "the two free GPUs that are nearest"),
        ("vgpuctl attach-gpu train-1 --gpu 0000:3b:00.0 --dry-run", "what adding this GPU would do"),
    ),
)
@targets.vms()
@field_options.fields("gpu", "gpus", "not_gpu", "numa_node", "force_console")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def attach_gpu(settings: Settings, /, targets: Targets, dry_run: bool, **explicit: Any) -> int:
    """Add whole GPUs (passthrough) to VMs that are off: every address of --gpu, or --gpus N, all of them or none.

    GPUs near those that the VM has are preferred. The guest's PCI window grows if the GPUs need more room. A VM that
    has vGPUs or plain VFs is refused, and so is one that runs. A VM that vgpuctl did not create stays unmanaged:
    delete-vm refuses it, and detach-gpu removes the GPUs again.
    """
    return change(
        settings,
        "attach-gpu",
        targets,
        lambda host, name: host.attach_gpu(name, dry_run=dry_run, **explicit),
        dry_run=dry_run,
    )


@make_command(
    "detach-gpu",
    shown_by="show-vm",
    examples=(
        ("vgpuctl --host sim:h100-pcie-x8 detach-gpu train-1 --gpu 0000:1a:00.0", "one of the GPUs that it has"),
        ("vgpuctl detach-gpu train-1 --gpu 0000:1a:00.0 --dry-run", "what removing it would do"),
    ),
)
@targets.vms()
@click.option(
    "--gpu",
    multiple=True,
    required=True,
    metavar="ADDRESS",
    shell_complete=complete.gpus,
    help="Remove this GPU with the other functions of its slot; repeatable.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def detach_gpu(settings: Settings, targets: Targets, gpu: tuple[str, ...], dry_run: bool) -> int:
    """Remove whole GPUs from VMs, and let other VMs have them. The VM keeps its other GPUs.

    vgpuctl asks the guest of a running VM, which releases the GPU when nothing uses it. If the guest does not release
    it within --wait seconds, the exit status is 75 and the VM keeps the GPU.
    """
    return change(
        settings,
        "detach-gpu",
        targets,
        lambda host, name: host.detach_gpu(name, gpu, dry_run=dry_run),
        dry_run=dry_run,
    )
