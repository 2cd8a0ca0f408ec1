# SPDX-License-Identifier: Apache-2.0
"""The commands that change a VM that exists, also those that give it whole GPUs and take them back."""

from __future__ import annotations

from typing import Any

import click

from vgpuctl.cli import complete, field_options, targets
from vgpuctl.cli.command import make_command
from vgpuctl.cli.global_options import Settings
from vgpuctl.cli.targets import Rows, Targets, change, count_rows, of_them_text, running_text
from vgpuctl.model.numbers import count_text


@make_command(
    "attach-vgpu",
    shown_by="show-vm",
    examples=(
        (
            "vgpuctl --host sim:a100-40 attach-vgpu vdi-001 --profile A100-4C",
            "now if it runs, otherwise at its next start",
        ),
        (
            "vgpuctl attach-vgpu old-desktop --profile A100-4C --gpu A100",
            "a VM that vgpuctl did not create, on this GPU",
        ),
    ),
)
@targets.vms()
@field_options.fields("profile", *field_options.CONSTRAINT_FIELDS, required=("profile",))
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def attach(settings: Settings, /, targets: Targets, dry_run: bool, **explicit: Any) -> int:
    """Add vGPUs to existing VMs: to the definition, and to the guest if it runs.

    A running VM needs a free PCI port for each vGPU (create-vm --hotplug-slots). A VM that vgpuctl did not create stays
    unmanaged: delete-vm refuses it, and detach-vgpu removes the vGPU again. If the VM's memory is bound to NUMA nodes,
    the GPU is on one of these. If the VM is in a spread group, no other VM of the group is on the GPU.
    """
    return change(
        settings,
        "attach-vgpu",
        targets,
        lambda host, name: host.attach_vgpu(name, dry_run=dry_run, **explicit),
        dry_run=dry_run,
    )


@make_command(
    "detach-vgpu",
    shown_by="show-vm",
    examples=(
        ("vgpuctl --host sim:a100-40 detach-vgpu vdi-001", "the only vGPU that it has from vgpuctl"),
        ("vgpuctl detach-vgpu vdi-001 --vgpu 0000:3b:00.5 --dry-run", "what removing one of them would do"),
    ),
)
@targets.vms()
@click.option(
    "--vgpu", multiple=True, metavar="CARRIER", help="This vGPU, as show-vm names it; repeatable. [the only one]"
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def detach(settings: Settings, targets: Targets, vgpu: tuple[str, ...], dry_run: bool) -> int:
    """Remove vGPUs from VMs, and delete them. Of a VM with several, name those to remove.

    vgpuctl asks the guest of a running VM, which releases the device when nothing uses it. If the guest does not
    release it within --wait seconds, the exit status is 75 and the VM keeps the vGPU. Then repeat the command, or run
    reconcile-host.
    """
    return change(
        settings,
        "detach-vgpu",
        targets,
        lambda host, name: host.detach_vgpu(name, vgpu or None, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "set-vm",
    shown_by="show-vm",
    examples=(
        (
            "vgpuctl --host sim:a100-40 set-vm vdi-001 --memory 8GiB --vcpus 4 --drain --yes",
            "shuts it down, if it runs",
        ),
        ("vgpuctl set-vm 'vdi-*' --profile A100-4C:2 --dry-run", "what another profile would do"),
        ("vgpuctl --host sim:a100-40 set-vm vdi-001 --label team=cad --label old- --owner ada", "also while it runs"),
        ("vgpuctl --host sim:a100-40 set-vm vdi-001 --memory 8GiB --when-off", "when its user has shut it down"),
    ),
)
@targets.vms(selectors="--select-")
@field_options.changes
@click.option("--drain", is_flag=True, help="Shut a running VM down first, at most --wait seconds, and start it again.")
@click.option(
    "--when-off", is_flag=True, help="Let the host agent change a running VM when it is next off; alone: plan nothing."
)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def set_vm(settings: Settings, /, targets: Targets, drain: bool, when_off: bool, dry_run: bool, **explicit: Any) -> int:
    """Change VMs: memory, vCPUs, profile, GPU, network cards, labels and more. What is not given stays.

    What is marked [at any time] below changes at any time, everything else while the VM is off: --drain shuts a running
    VM down, changes it and starts it again; --when-off leaves the change to the host agent, which makes it within
    seconds after somebody else has shut the VM down. Either all that is given changes, or nothing.

    vGPUs that already have one of the new profiles stay where they are, unless --gpu or --not-gpu says otherwise. The
    other options that restrict or choose GPUs say where vGPUs go that are new or move; unset ones are as when the VM
    was created. If they have no room, the VM stays as it was.

    Other commands change the rest: refresh-vm the image, resize-disk disks, attach-vgpu and attach-gpu add devices.
    """
    if drain and when_off:
        raise click.UsageError("--drain and --when-off cannot be combined")
    return change(
        settings,
        "set-vm",
        targets,
        lambda host, name: host.set_vm(name, drain=drain, when_off=when_off, dry_run=dry_run, **explicit),
        question=_drain_question if drain else None,
        check=(lambda host: host.check_vm_change(**explicit)) if any(explicit.values()) or not when_off else None,
        dry_run=dry_run,
    )


def _drain_question(rows: Rows, _: Rows) -> str:
    them = "it" if len(rows) == 1 else "them"
    return f"Shut down {count_rows(rows, 'running VM')}, change {them}, and start {them} again?"


@make_command(
    "refresh-vm",
    shown_by="show-vm",
    words=("refreshed", "left alone"),
    examples=(
        (
            "vgpuctl refresh-vm vdi-001 --image /var/lib/libvirt/images/debian-13.qcow2",
            "shows what will be lost, and asks; the VM is off",
        ),
        (
            "vgpuctl --host sim:a100-40 --yes refresh-vm vdi-001 --image /srv/images/ubuntu-24.04.qcow2 --drain",
            "does not ask; a running VM is shut down first and started again",
        ),
        (
            "vgpuctl refresh-vm 'vdi-*' --from /srv/images/a.qcow2 --image /srv/images/b.qcow2 --dry-run",
            "only the VMs that still have the old image, for instance after a failure",
        ),
    ),
)
@targets.vms()
@field_options.fields("image")
@click.option(
    "--from", "from_image", metavar="IMAGE", help="Only VMs whose first disk is a clone or a full copy of IMAGE."
)
@click.option("--drain", is_flag=True, help="Shut a running VM down first, at most --wait seconds, and start it again.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def refresh_vm(
    settings: Settings, targets: Targets, image: str | None, from_image: str | None, drain: bool, dry_run: bool
) -> int:
    """Rebuild VMs: the first disk becomes a new clone, and its old content is lost.

    With --image it is a clone of that base image. Without, of what prepare-vm kept; --image throws that away, too.

    Name, uuid, MAC address, vGPUs, NVRAM, TPM and all other disks stay. The cloud-init seed stays too; after --image
    cloud-init runs again, because the new disk has not seen it. This works only for a VM that was created with --image.
    It is refused for a VM with snapshots or a saved state, and if another disk is a clone of the VM's disk.

    A VM that already has the image is rebuilt as well. With --from only VMs that still have the old image are rebuilt;
    the others are left alone. 'list-vms -o wide' shows each VM's image.
    """
    base = None if image is None else field_options.absolute_path(image) or image
    from_image = field_options.absolute_path(from_image)

    def question(rows: Rows, selected: Rows) -> str:
        asked = {row.name for row in rows}
        others = [row for row in selected if row.name not in asked]
        if base is None:
            source, losses = "what prepare-vm kept", "All that was written since then will be lost."
        else:
            source = base
            losses = (
                f"All data on the first disks will be lost.{of_them_text(_count_image(rows, base), _already(base))}"
                f"{_left_alone_text(others, base) if from_image is not None and others else ''}"
            )
        return f"Rebuild {count_text(len(rows), 'VM')} from {source}? {losses}{running_text(rows)}"

    return change(
        settings,
        "refresh-vm",
        targets,
        lambda host, name: host.refresh_vm(name, base, from_image=from_image, drain=drain, dry_run=dry_run),
        question=question,
        check=None if base is None else lambda host: host.check_image(base),
        preview_notes=lambda rows: (
            ()
            if base is None
            else (f"{_count_image(rows, base)} of {count_text(len(rows), 'VM')} already have {base}",)
        ),
        dry_run=dry_run,
    )


def _prepare_question(rows: Rows, _: Rows) -> str:
    return f"Shut down {count_rows(rows, 'VM')}, keep the first disks, and start them again?{running_text(rows)}"


def _already(image: str) -> str:
    return f"already made from {image}"


@make_command(
    "prepare-vm",
    shown_by="show-vm",
    examples=(
        (
            "vgpuctl --host sim:a100-40 --yes prepare-vm vdi-001 --drain",
            "shuts its guest down, and starts it again; 'vgpuctl refresh-vm vdi-001' then goes back to this disk",
        ),
    ),
)
@targets.vms()
@click.option("--drain", is_flag=True, help="Shut a running VM down first, at most --wait seconds, and start it again.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def prepare_vm(settings: Settings, targets: Targets, drain: bool, dry_run: bool) -> int:
    """Keep the first disk of VMs as it is now; refresh-vm without --image goes back to it.

    So a guest is set up once, by cloud-init or by hand, and each refresh takes seconds and keeps its name, its keys and
    its membership of a domain. The VM must be off because its guest shut down, and its first disk a clone: it was
    created with --image. A license and other secrets leave its seed, because the guest has them.

    With the field off_after_setup a guest shuts down by itself once it has been set up.
    """
    return change(
        settings,
        "prepare-vm",
        targets,
        lambda host, name: host.prepare_vm(name, drain=drain, dry_run=dry_run),
        question=_prepare_question if drain else None,
        dry_run=dry_run,
    )


def _count_image(rows: Rows, image: str) -> int:
    return sum(row.image == image for row in rows)


def _left_alone_text(rows: Rows, image: str) -> str:
    return f" {count_text(len(rows), 'other VM')} stay as they are, {_count_image(rows, image)} of them with {image}."


@make_command(
    "resize-disk",
    shown_by="show-vm",
    words=("grown", "already as large"),
    examples=(
        ("vgpuctl --host sim:a100-40 resize-disk vdi-001 200GiB", "its only disk, also while it runs"),
        (
            "vgpuctl resize-disk vdi-001 500GiB --disk vdb --dry-run",
            "one of several, and only to see what would be done",
        ),
        ("vgpuctl resize-disk 'vdi-*' 100GiB", "the disks of all these desktops"),
    ),
)
@targets.vms()
@click.argument("size", metavar="SIZE")
@click.option("--disk", metavar="DISK", help="The guest's name of the disk (vda), or its path. [the only disk]")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.pass_obj
def resize_disk(settings: Settings, targets: Targets, size: str, disk: str | None, dry_run: bool) -> int:
    """Grow a disk of each VM to SIZE (60GiB, 2TiB; a number alone is GiB), while the VM runs or is off.

    It grows only disks that vgpuctl created, and never shrinks one. The guest must grow its partition and file system
    itself: cloud-init does that at the next boot.
    """
    return change(
        settings,
        "resize-disk",
        targets,
        lambda host, name: host.resize_disk(name, size, disk=disk, dry_run=dry_run),
        dry_run=dry_run,
    )


@make_command(
    "attach-gpu",
    shown_by="show-vm",
    examples=(
        ("vgpuctl --host sim:h100-pcie-x8 attach-gpu train-1 --gpus 2", "the two free GPUs that are nearest"),
        ("vgpuctl attach-gpu train-1 --gpu 0000:3b:00.0 --dry-run", "what adding this GPU would do"),
    ),
)
@targets.vms()
@field_options.fields("gpu", "gpus", "not_gpu", "numa_node", "force_console", "force_reset")
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
