# SPDX-License-Identifier: Apache-2.0
"""The table of commands by name: `--help` and completion of names import no command's module."""

from __future__ import annotations

COMMAND_GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "GPUs": {
        "list-gpus": ("gpus", "List the GPUs with their mode, VFs and vGPUs."),
        "show-gpu": ("gpus", "Show one GPU and every vGPU on it."),
        "set-mode": ("gpu_setup", "Set up a GPU for vGPUs, plain VFs or passthrough."),
        "set-mig": ("gpu_setup", "Divide a GPU into GPU instances (MIG), or turn MIG off."),
        "set-mixed-size": ("gpu_setup", "Allow vGPUs of several sizes on a GPU, or only one size."),
        "set-scheduler": ("gpu_setup", "Set how the driver divides a GPU's time among its vGPUs."),
        "cordon": ("gpus", "Place no new vGPUs on a GPU."),
        "uncordon": ("gpus", "Allow new vGPUs on a GPU again."),
    },
    "VMs": {
        "create-vm": ("create_vm", "Create and start a VM with a vGPU."),
        "ensure-vm": ("ensure_vm", "Create or change a VM so that it matches a spec file."),
        "list-vms": ("vms", "List the VMs and their vGPUs."),
        "show-vm": ("vms", "Show one VM with its vGPUs and disks."),
        "start-vm": ("vms", "Start a VM; missing vGPUs are created first."),
        "stop-vm": ("vms", "Stop a VM; it keeps its disks and, by default, its vGPUs."),
        "delete-vm": ("vms", "Delete a VM with its vGPUs and the disks made for it."),
        "refresh-vm": ("vm_changes", "Rebuild a VM from a newer base image."),
        "attach-vgpu": ("vm_changes", "Add a vGPU to a VM, also while it runs."),
        "detach-vgpu": ("vm_changes", "Remove vGPUs from a VM, also while it runs."),
        "set-profile": ("vm_changes", "Change the vGPU profile of a stopped VM."),
        "show-console": ("vms", "Show where a VM's screen and serial console are."),
        "show-address": ("vms", "Print the IP addresses of a running VM."),
        "list-images": ("vms", "List base images, their clones, and disks without a VM."),
    },
    "vGPUs without a VM": {
        "create-vgpu": ("vgpus", "Create a vGPU without a VM, for virsh and virt-install."),
        "ensure-vgpu": ("vgpus", "Create or remove a vGPU without a VM, if necessary."),
        "delete-vgpu": ("vgpus", "Remove a vGPU without a VM."),
        "list-vgpus": ("vgpus", "List all vGPUs and their owners."),
    },
    "Planning": {
        "list-profiles": ("gpus", "List the vGPU profiles and how many more fit."),
        "explain": ("gpus", "Explain where a profile fits, where not, and why."),
        "fits": ("gpus", "Check whether vGPUs of several profiles fit together."),
        "plan-moves": ("moves", "Find the fewest VMs to move so that more vGPUs fit."),
        "move-vms": ("moves", "Carry out plan-moves: stop, move and start these VMs."),
        "simulate": ("simulate", "Replay arrivals and departures of vGPUs on many GPUs."),
    },
    "Host file (host.yaml)": {
        "apply": ("host_file", "Change this host to match its host.yaml, or another one."),
        "diff": ("host_file", "Show what apply would change; exit status 7 if it would."),
        "export": ("host_file", "Print the host.yaml of this host as it is."),
        "import": ("host_file", "Convert other programs' files to a host.yaml."),
    },
    "Operation": {
        "doctor": ("host", "Check this host, and say how to fix what is wrong."),
        "reconcile-host": ("host", "Finish or undo what a crash or a reboot interrupted."),
        "restore-host": ("host", "Create all missing vGPUs again, as after a boot."),
        "install-host": ("installation", "Install the boot unit, libvirt's hook and completion."),
        "uninstall-host": ("installation", "Remove what install-host installed."),
        "completion": ("installation", "Print the completion script of a shell."),
        "sim": ("sim", "Reboot or reset a simulated host, or list scenarios."),
    },
}
"""By heading of `--help`: command name -> (module in `vgpuctl.cli.commands` that has it, one line of help)."""

COMMANDS = {name: entry for group in COMMAND_GROUPS.values() for name, entry in group.items()}

LISTINGS = ("list-gpus", "list-vms", "list-vgpus", "list-profiles", "list-images", "sim-list-scenarios")
"""The kinds of documents that are lists: their commands have the options of lists."""
LIST_COMMANDS = frozenset(kind.removeprefix("sim-") for kind in LISTINGS)
WATCHABLE = (*LISTINGS[:-1], "show-gpu", "show-vm", "show-console", "show-address")
"""The commands that have --watch."""

SIM_COMMANDS: dict[str, str] = {
    "reboot": "Boot the host again: devices are gone, VMs are off.",
    "reset": "Forget everything that happened on the host.",
    "list-scenarios": "List the built-in simulated hosts.",
}

SYNONYMS: dict[str, str] = {
    "check": "doctor",
    "address": "show-address",
    "assert": "diff",
    "attach": "attach-vgpu",
    "attach-device": "attach-vgpu",
    "create": "create-vm",
    "defragment": "plan-moves",
    "delete": "delete-vm",
    "destroy": "delete-vm",
    "detach": "detach-vgpu",
    "detach-device": "detach-vgpu",
    "destroy-vm": "delete-vm",
    "diagnose": "doctor",
    "fix": "reconcile-host",
    "gpus": "list-gpus",
    "kill": "stop-vm",
    "list": "list-vms",
    "list-mdevs": "list-gpus",
    "list-types": "list-profiles",
    "ls": "list-vms",
    "mig": "set-mig",
    "mig-parted": "set-mig",
    "migrate": "move-vms",
    "move": "move-vms",
    "nvidia-smi": "list-gpus",
    "partition": "set-mig",
    "profiles": "list-profiles",
    "ps": "list-vms",
    "rebuild": "refresh-vm",
    "recompose": "refresh-vm",
    "refresh": "refresh-vm",
    "reimage": "refresh-vm",
    "remove": "delete-vm",
    "remove-vm": "delete-vm",
    "reconcile": "reconcile-host",
    "repair": "reconcile-host",
    "replay": "simulate",
    "resize": "set-profile",
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
"""Names that people try first, and the command for each: only suggested, never run."""

OPTION_SYNONYMS: dict[str, str] = {
    "--cores": "--vcpus",
    "--cpu": "--vcpus",
    "--cpus": "--vcpus",
    "--dryrun": "--dry-run",
    "--hypervisor": "--connect",
    "--iso": "--cdrom",
    "--mem": "--memory",
    "--net": "--network",
    "--format": "--output",
    "--pool": "--storage-pool",
    "--ram": "--memory",
    "--size": "--disk",
    "--spec": "--file",
    "--timeout": "--wait",
    "--type": "--profile",
    "--uri": "--connect",
    "--user-data": "--cloud-init",
    "--vcpu": "--vcpus",
    "--vgpu": "--profile",
}
