# SPDX-License-Identifier: Apache-2.0
"""The commands about vGPUs, those without a VM too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vgpuctl.cli import complete, field_options, run, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.shown import Column, Listing, Page, dry_run, location, mib, or_unknown, vgpu_line, vgpu_users
from vgpuctl.cli.targets import Targets, change, count_rows
from vgpuctl.config.arguments import VGPU_STATES

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results.gpus import (
        AbsentVgpuResult,
        EnsuredVgpuResult,
        ListedVgpuResult,
        NamedVgpuResult,
        VgpuResult,
    )


def _vgpu_owner(vgpu: ListedVgpuResult) -> str:
    return "host.yaml" if vgpu.name else str(vgpu.ownership)


VGPUS = Listing(
    "vGPUs",
    (
        Column("name", "NAME", lambda vgpu: vgpu.name, optional=True),
        Column("profile", "PROFILE", lambda vgpu: vgpu.profile, lambda vgpu: or_unknown(vgpu.profile)),
        Column("gpu", "GPU", lambda vgpu: vgpu.gpu),
        Column("exists", "EXISTS", lambda vgpu: vgpu.present),
        Column("vm", "VM", lambda vgpu: vgpu.vm, lambda vgpu: vgpu_users(vgpu) or "-"),
        Column("ownership", "OWNERSHIP", _vgpu_owner, is_state=True),
        Column(
            "memory", "MEMORY", lambda vgpu: vgpu.framebuffer_mib, lambda vgpu: mib(vgpu.framebuffer_mib), "wide",
            numeric=True, unit="mib",
        ),
        Column("location", "WHERE", lambda vgpu: location(vgpu) or None, level="wide"),
        Column(
            "carrier", "CARRIER", lambda vgpu: vgpu.carrier, lambda vgpu: ", ".join((vgpu.carrier, *vgpu.companions)),
            "wide",
        ),
        Column("reason", "REASON", lambda vgpu: vgpu.reason, level="named", free_text=True),
        Column("backend", "BACKEND", lambda vgpu: vgpu.backend and str(vgpu.backend), level="named"),
    ),
    lambda vgpu: str(vgpu.name or vgpu.carrier),
)  # fmt: skip


def _vgpus(data: tuple[ListedVgpuResult, ...]) -> Page:
    return Page(stderr_lines=[] if data else ["no such vGPU here; create-vgpu makes one without a VM"])


@make_command(
    "list-vgpus",
    page=_vgpus,
    listing=VGPUS,
    examples=(
        ("vgpuctl --host sim:a100-40 list-vgpus", "every vGPU, and which VM has it"),
        ("vgpuctl list-vgpus --unassigned --json", "those that a VM can get, with the XML element of each"),
    ),
)
@click.option("--unassigned", is_flag=True, help="Only vGPUs of host.yaml that no VM has.")
@click.pass_obj
def list_vgpus(settings: Settings, unassigned: bool) -> int:
    """List every vGPU: where it is, whether its device exists, and which VM has it.

    OWNERSHIP is host.yaml for one of create-vgpu, managed for one that vgpuctl gave to a VM, leaked for one that
    reconcile-host removes, and unmanaged for any other.
    """
    return run.call(settings, "list-vgpus", lambda host: host.list_vgpus(unassigned=unassigned))


def _create_vgpu_page(result: Outcome[NamedVgpuResult]) -> Page:
    """Only the <hostdev> element goes to stdout, so that it can go to a file; the vGPU's location goes to stderr."""
    if result.dry_run:
        return dry_run(result)
    data = result.data
    usage = "save the printed element as FILE; then a VM gets the vGPU with:"
    stderr_lines = [f"vGPU {data.name}: {vgpu_line(data)}", usage]
    return Page([data.hostdev], [*stderr_lines, *(f"  {line}" for line in data.usage)])


@make_command(
    "create-vgpu",
    page=_create_vgpu_page,
    shown_by="list-vgpus",
    examples=(
        (
            "vgpuctl --host sim:a100-40 create-vgpu spare --profile A100-4C",
            "a vGPU; '> spare.xml' saves its XML for 'virsh attach-device VM spare.xml --persistent'",
        ),
        ("vgpuctl --host sim:a100-40 create-vgpu other --profile A100-4C --dry-run", "what would be done"),
    ),
)
@click.argument("name", required=False)
@click.option(
    "--profile", required=True, metavar="PROFILE", shell_complete=complete.profiles, help="The vGPU's profile."
)
@field_options.fields(*field_options.CONSTRAINT_FIELDS, "vgpu_params")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def create_vgpu(
    settings: Settings,
    /,
    name: str | None,
    dry_run: bool,
    **explicit: Any,
) -> int:
    """Create a vGPU without a VM, and print the <hostdev> element that adds it to a VM.

    /etc/vgpuctl/host.yaml keeps it, and it is created again after a boot until delete-vgpu removes it. Standard output
    has only the element. Without NAME the vGPU is called vgpu-<8 random digits>.
    """
    return run.call(settings, "create-vgpu", lambda host: host.create_vgpu(name, dry_run=dry_run, **explicit))


def _delete_vgpu_page(result: Outcome[VgpuResult | AbsentVgpuResult]) -> Page:
    return dry_run(result) if result.dry_run else Page([f"vGPU {result.data.name}: absent"])


def _ensure_vgpu_page(result: Outcome[EnsuredVgpuResult | AbsentVgpuResult]) -> Page:
    data: Any = result.data
    if result.dry_run or not getattr(data, "present", False):  # AbsentVgpuResult does not have it
        return _delete_vgpu_page(result)
    return Page([f"vGPU {data.name}: {vgpu_line(data)}"])


@make_command(
    "ensure-vgpu",
    page=_ensure_vgpu_page,
    shown_by="list-vgpus",
    examples=(
        ("vgpuctl --host sim:a100-40 ensure-vgpu spare --profile A100-4C", "create it, unless it exists"),
        ("vgpuctl --host sim:a100-40 ensure-vgpu spare --state absent --yes", "remove it, if it exists"),
    ),
)
@click.argument("name", shell_complete=complete.vgpus)
@click.option("--profile", metavar="PROFILE", shell_complete=complete.profiles, help="The vGPU's profile.")
@field_options.fields(*field_options.CONSTRAINT_FIELDS, "vgpu_params")
@click.option(
    "--state",
    type=click.Choice(VGPU_STATES),
    default="present",
    show_default=True,
    help="present: create it if it is missing; absent: remove it if it exists.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def ensure_vgpu(
    settings: Settings,
    /,
    name: str,
    state: str,
    dry_run: bool,
    **explicit: Any,
) -> int:
    """Ensure that a vGPU without a VM exists, or does not. A second run changes nothing.

    An existing vGPU with another profile, GPU or parameters is refused (exit 3), and the difference is shown. See also
    create-vgpu and delete-vgpu.
    """
    return run.call(
        settings, "ensure-vgpu", lambda host: host.ensure_vgpu(name, state=state, dry_run=dry_run, **explicit)
    )


@make_command(
    "delete-vgpu",
    page=_delete_vgpu_page,
    shown_by="list-vgpus",
    words=("deleted", "unchanged"),
    examples=(
        ("vgpuctl delete-vgpu spare", "shows what will be deleted, and asks"),
        ("vgpuctl delete-vgpu 'spare-*' --yes", "several, without asking"),
    ),
)
@targets.vgpus
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def delete_vgpu(settings: Settings, targets: Targets, dry_run: bool) -> int:
    """Remove vGPUs that create-vgpu created: the device, and its entry in host.yaml.

    A vGPU is refused while the definition of any VM has it, running or not, and while a process holds it.
    """
    return change(
        settings,
        "delete-vgpu",
        targets,
        lambda host, name: host.delete_vgpu(name, dry_run=dry_run),
        question=lambda rows, _: f"Remove {count_rows(rows, 'vGPU')}?",
        dry_run=dry_run,
    )
