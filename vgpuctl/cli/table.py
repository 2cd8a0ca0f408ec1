# SPDX-License-Identifier: Apache-2.0
"""The commands by name, so that `--help` and completion of names import no command's module."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "list-gpus": ("list_gpus", "List the GPUs, what they are set up for, and who uses them."),
    "show-gpu": ("show_gpu", "Show one GPU with every vGPU on it."),
    "list-profiles": ("list_profiles", "List the vGPU profiles and how many more can be made now."),
    "explain": ("explain", "Say where a profile fits, where not, and why."),
    "create-vm": ("create_vm", "Make and start a VM with a vGPU."),
    "ensure-vm": ("ensure_vm", "Make a VM equal to a spec file, unless it is already."),
    "delete-vm": ("delete_vm", "Remove a VM with its vGPUs and the disks made for it."),
    "start-vm": ("start_vm", "Start a VM, making its vGPUs again when they are missing."),
    "stop-vm": ("stop_vm", "Stop a VM; it keeps its vGPUs."),
    "list-vms": ("list_vms", "List the VMs and their vGPUs."),
    "show-vm": ("show_vm", "Show one VM with its vGPUs and disks."),
    "console": ("console", "Say where a VM's screen and serial console are."),
    "address": ("address", "Print a running VM's IP addresses, and who knows them."),
    "list-images": ("list_images", "List base images with their clones, disks, and volumes of no VM."),
    "reconcile": ("reconcile", "Finish or undo what a crash or a reboot interrupted."),
    "sim": ("sim", "Reboot or reset a simulated host, or list the scenarios."),
    "completion": ("completion", "Print the completion script of a shell."),
}
"""Command name -> (module in `vgpuctl.cli.commands`, one line of help)."""

SIM_COMMANDS: dict[str, str] = {
    "reboot": "Boot the host again: devices are gone, VMs are off.",
    "reset": "Forget everything that happened on the host.",
    "list-scenarios": "List the built-in simulated hosts.",
}

SYNONYMS: dict[str, str] = {
    "apply": "ensure-vm",
    "create": "create-vm",
    "delete": "delete-vm",
    "destroy": "delete-vm",
    "destroy-vm": "delete-vm",
    "fix": "reconcile",
    "gpus": "list-gpus",
    "kill": "stop-vm",
    "list": "list-vms",
    "list-mdevs": "list-gpus",
    "list-types": "list-profiles",
    "list-vgpus": "list-gpus",
    "ls": "list-vms",
    "nvidia-smi": "list-gpus",
    "profiles": "list-profiles",
    "ps": "list-vms",
    "remove": "delete-vm",
    "remove-vm": "delete-vm",
    "repair": "reconcile",
    "rm": "delete-vm",
    "run": "create-vm",
    "show": "show-vm",
    "shutdown": "stop-vm",
    "start": "start-vm",
    "status": "list-gpus",
    "stop": "stop-vm",
    "types": "list-profiles",
    "undefine": "delete-vm",
    "vgpus": "list-gpus",
    "vms": "list-vms",
    "why": "explain",
}
"""What people type first, and what they mean here: suggestions only, never run."""

OPTION_SYNONYMS: dict[str, str] = {
    "--cores": "--vcpus",
    "--cpu": "--vcpus",
    "--cpus": "--vcpus",
    "--dryrun": "--dry-run",
    "--hypervisor": "--connect",
    "--iso": "--cdrom",
    "--mem": "--memory",
    "--net": "--network",
    "--pool": "--storage-pool",
    "--ram": "--memory",
    "--size": "--disk",
    "--spec": "--file",
    "--timeout": "--wait",
    "--type": "--profile",
    "--uri": "--connect",
    "--vcpu": "--vcpus",
    "--vgpu": "--profile",
}
