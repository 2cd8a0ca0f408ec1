# SPDX-License-Identifier: Apache-2.0
"""The table of commands. Everything about a command that is not here is in its module.

`--help`, and completion of names, read this table and import no command's module.
"""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One command. `module`: the module in `vgpuctl.cli.commands` that has it. `summary`: its line in `--help`.

    `synonyms`: words that people try first. They are only suggested, never run.
    """

    module: str
    summary: str
    synonyms: str = ""


COMMAND_GROUPS: dict[str, dict[str, Entry]] = {
    "GPUs": {
        "list-gpus": Entry(
            "gpus", "List the GPUs with their mode, VFs and vGPUs.", "gpus list-mdevs nvidia-smi status vgpus"
        ),
        "show-gpu": Entry("gpus", "Show one GPU and every vGPU on it."),
        "set-mode": Entry("gpu_setup", "Set up a GPU for vGPUs, plain VFs or passthrough."),
        "set-mig": Entry(
            "gpu_setup", "Divide a GPU into GPU instances (MIG), or turn MIG off.", "mig mig-parted partition"
        ),
        "set-mixed-size": Entry("gpu_setup", "Allow vGPUs of several sizes on a GPU, or only one size."),
        "set-scheduler": Entry("gpu_setup", "Set how the driver divides a GPU's time among its vGPUs."),
        "cordon": Entry("gpus", "Place no new vGPUs on a GPU."),
        "uncordon": Entry("gpus", "Allow new vGPUs on a GPU again."),
    },
    "VMs": {
        "create-vm": Entry("create_vm", "Create and start a VM with a vGPU.", "create run"),
        "ensure-vm": Entry("create_vm", "Create or change a VM so that it matches a spec file."),
        "list-vms": Entry("vms", "List the VMs and their vGPUs.", "list ls ps vms"),
        "show-vm": Entry("vms", "Show VMs with their vGPUs and disks.", "show"),
        "start-vm": Entry("vms", "Start VMs; missing vGPUs are created first.", "start"),
        "stop-vm": Entry("vms", "Stop VMs; they keep disks and, by default, vGPUs.", "kill shutdown shutdown-vm stop"),
        "save-vm": Entry("vms", "Save VMs' memory; start-vm goes on from it.", "managedsave save suspend hibernate"),
        "reboot-vm": Entry(
            "vm_access", "Reboot running VMs; they keep their vGPUs.", "reboot reset reset-vm restart restart-vm"
        ),
        "delete-vm": Entry(
            "vms",
            "Delete VMs with their vGPUs and the disks created for them.",
            "delete destroy destroy-vm remove remove-vm rm undefine",
        ),
        "refresh-vm": Entry(
            "vm_changes",
            "Rebuild VMs from an image, or as prepare-vm kept them.",
            "rebuild rebuild-vm recompose refresh reimage",
        ),
        "prepare-vm": Entry("vm_changes", "Keep VMs' disks, to which refresh-vm goes back.", "prepare seal snapshot"),
        "migrate-vm": Entry("migration", "Move VMs to another host, alive or off.", "live-migrate migrate"),
        "end-migration": Entry("migration", "End a move to another host that was interrupted."),
        "adopt": Entry("adopt", "Manage VMs that other programs made, without a restart.", "manage take-over"),
        "attach-vgpu": Entry("vm_changes", "Add vGPUs to VMs, also while they run.", "attach attach-device"),
        "detach-vgpu": Entry("vm_changes", "Remove vGPUs from VMs, also while they run.", "detach detach-device"),
        "attach-gpu": Entry("vm_changes", "Add whole GPUs to VMs that are off.", "add-gpu"),
        "detach-gpu": Entry("vm_changes", "Remove whole GPUs from VMs.", "remove-gpu"),
        "resize-disk": Entry("vm_changes", "Grow disks of VMs, also while they run.", "blockresize grow-disk"),
        "set-vm": Entry("vm_changes", "Change memory, vCPUs, profile, labels and more of VMs."),
        "import-vm": Entry(
            "import_vm", "Convert VMs of other hypervisors to VM specs.", "convert-vm virt-v2v v2v vmx ovf"
        ),
        "wait": Entry("vm_access", "Wait until VMs run, are off, or can be reached."),
        "show-console": Entry(
            "vm_access", "Show where a VM's screen and serial console are.", "connect console serial"
        ),
        "show-address": Entry("vm_access", "Print the IP addresses of running VMs.", "address"),
        "list-images": Entry("images", "List base images, their clones, and unused disks."),
        "list-deleted": Entry("deleted_disks", "List disks of deleted VMs that wait in the bin.", "bin trash"),
        "restore-disk": Entry("deleted_disks", "Move a disk out of the bin.", "undelete restore"),
        "purge-deleted": Entry("deleted_disks", "Delete disks in the bin for good.", "purge empty-bin"),
    },
    "Guests": {
        "message-vm": Entry("guests", "Show a message to the users of VMs.", "message msg notify wall"),
        "shutdown-in": Entry("guests", "Have guests shut down in some minutes.", "shutdown-later"),
        "allow-logon": Entry("guests", "Let one user log on in VMs, and nobody else.", "allow-login"),
        "refresh-license": Entry("guests", "Give VMs a new token for NVIDIA's license.", "license renew-license"),
        "print-helper": Entry("guests", "Print the helper that runs in guests.", "guest-agent guest-helper"),
    },
    "vGPUs without a VM": {
        "create-vgpu": Entry("vgpus", "Create a vGPU without a VM, for virsh and virt-install."),
        "ensure-vgpu": Entry("vgpus", "Create or remove a vGPU without a VM, if necessary."),
        "delete-vgpu": Entry("vgpus", "Remove vGPUs without a VM."),
        "list-vgpus": Entry("vgpus", "List all vGPUs and the VMs that have them."),
    },
    "Planning": {
        "list-profiles": Entry(
            "profiles", "List the vGPU profiles and how many more fit.", "list-types profiles types"
        ),
        "explain": Entry("profiles", "Explain where a profile fits, where not, and why.", "why"),
        "fits": Entry("profiles", "Check whether vGPUs of several profiles fit together.", "simulate"),
        "plan-moves": Entry("moves", "Find the fewest VMs to move so that more vGPUs fit.", "defragment"),
        "advise": Entry(
            "advise", "Advise on profiles by their use, or on ways to share.", "choose recommend right-size techniques"
        ),
        "move-vms": Entry("moves", "Carry out plan-moves: stop, move and start these VMs.", "move move-vm"),
    },
    "Host file (host.yaml)": {
        "apply": Entry("host_file", "Change this host to match its host.yaml, or another one."),
        "diff": Entry("host_file", "Show what apply would change; exit status 7 if it would.", "assert"),
        "export": Entry("host_file", "Print the host.yaml of this host as it is."),
        "import": Entry("host_file", "Convert other programs' files to a host.yaml."),
    },
    "Kubernetes": {
        "import-job": Entry("jobs", "Convert jobs of Kubernetes to VM specs.", "convert-job kompose"),
        "capacity": Entry("jobs", "Show a VM or this host as a node of Kubernetes."),
    },
    "Operation": {
        "doctor": Entry("host", "Check this host and show how to fix what is wrong.", "check diagnose"),
        "log": Entry("log", "Show which commands changed this host, and who ran them.", "audit history logs"),
        "reconcile-host": Entry("host", "Finish or undo what a crash or a reboot interrupted.", "fix reconcile repair"),
        "restore-host": Entry("host", "Recreate all missing vGPUs, for example after a boot."),
        "migration-call": Entry("migration", "Make a call of a move for another host's vgpuctl."),
        "install-host": Entry("host", "Install the boot unit, libvirt's hook and completion."),
        "uninstall-host": Entry("host", "Remove what install-host installed."),
        "completion": Entry("host", "Print the completion script of a shell."),
        "top": Entry("top", "Show how much of each GPU and vGPU is used.", "htop nvtop stats usage utilization"),
        "events": Entry("events", "Show what happens on this host, as the host agent sees it.", "event monitor"),
        "monitoring": Entry(
            "monitoring", "Print rules, dashboards and scrape configurations.", "alerts grafana metrics prometheus"
        ),
        "agent": Entry("agent", "Run the host agent, or reach it through SSH.", "daemon serve"),
        "controller": Entry(
            "controller", "Run pools of desktops on many hosts, or work with them.", "desktops fleet pools vdi"
        ),
        "sim": Entry("sim", "Reboot or reset a simulated host, or list scenarios."),
    },
}
"""By heading of `--help`."""

COMMANDS = {name: entry for group in COMMAND_GROUPS.values() for name, entry in group.items()}

SIM_COMMANDS: dict[str, Entry] = {
    "reboot": Entry("sim", "Boot the host again, with the boot unit if installed."),
    "reset": Entry("sim", "Forget everything that happened on the host."),
    "list-scenarios": Entry("sim", "List the built-in simulated hosts."),
}

AGENT_COMMANDS: dict[str, Entry] = {
    "run": Entry("agent", "Run the agent of this host."),
    "dial": Entry("agent", "Join stdin and stdout to the agent's socket."),
}

CONTROLLER_COMMANDS: dict[str, Entry] = {
    "run": Entry("controller", "Run a controller."),
    "demo": Entry("controller_demo", "Try it: simulated hosts, no root, nothing is left."),
    "doctor": Entry("controller_doctor", "Check a controller's installation."),
    "upgrade-db": Entry("controller", "Make a database's tables, or bring them to this version."),
    "show-fleet": Entry("controller", "Show which controller answers, and what you may do."),
    "add-host": Entry("controller_hosts", "Add a host: this machine, or one by ssh."),
    "list-hosts": Entry("controller_hosts", "List the hosts."),
    "show-host": Entry("controller_hosts", "Show one host and what it has room for."),
    "cordon-host": Entry("controller_hosts", "Make no new desktops on a host."),
    "drain-host": Entry("controller_hosts", "The same, and desktops leave it, or stop there."),
    "uncordon-host": Entry("controller_hosts", "Make desktops on a host again."),
    "label-host": Entry("controller_hosts", "Set a host's labels, by which pools choose hosts."),
    "accept-host": Entry("controller_hosts", "Let a held host go on as it is now."),
    "remove-host": Entry("controller_hosts", "Remove a host without desktops."),
    "ensure-image": Entry("controller_images", "Add an image, which hosts get copies of."),
    "list-images": Entry("controller_images", "List the images and the pools that use them."),
    "show-image": Entry("controller_images", "Show one image, and which hosts have it."),
    "delete-image": Entry("controller_images", "Delete an image that nothing uses, also its copies."),
    "ensure-pool": Entry("controller_pools", "Create or change a pool so that it matches a spec file."),
    "list-pools": Entry("controller_pools", "List the pools."),
    "show-pool": Entry("controller_pools", "Show one pool and its spec."),
    "fits": Entry("controller_capacity", "Count how many more desktops fit, and where."),
    "pause-pool": Entry("controller_pools", "Make, start and refresh nothing for a pool."),
    "resume-pool": Entry("controller_pools", "Let a paused pool go on."),
    "message-pool": Entry("controller_desktops", "Show a text to a pool's users."),
    "delete-pool": Entry("controller_pools", "Delete a pool with its desktops and their disks."),
    "list-desktops": Entry("controller_desktops", "List desktops, and what they do."),
    "show-desktop": Entry("controller_desktops", "Show one desktop."),
    "open-desktop": Entry("controller_desktops", "Print what opens a desktop for its user."),
    "connect-desktop": Entry("controller_connect", "Connect a local port to a desktop's."),
    "assign": Entry("controller_desktops", "Give a user a desktop of a pool."),
    "release": Entry("controller_desktops", "Take a desktop away from its user."),
    "start-desktop": Entry("controller_desktops", "Have a desktop run."),
    "stop-desktop": Entry("controller_desktops", "Have a desktop be off until it is opened again."),
    "restart-desktop": Entry("controller_desktops", "Restart a desktop that runs.", "reboot-desktop"),
    "delete-desktop": Entry("controller_desktops", "Delete a desktop with its disks."),
    "entitle": Entry("controller_people", "Let people or groups use a pool, or have a role."),
    "revoke": Entry("controller_people", "Take back what entitle gave."),
    "list-entitlements": Entry("controller_people", "List who may what."),
    "ensure-quota": Entry("controller_quotas", "Limit how much people may have."),
    "delete-quota": Entry("controller_quotas", "Take a quota away."),
    "list-quotas": Entry("controller_quotas", "List the quotas."),
    "show-use": Entry("controller_use", "Show what people had: hours, GPU memory, refusals."),
    "ensure-person": Entry("controller_people", "Make or change a person who signs in."),
    "set-password": Entry("controller_people", "Give a person a new password."),
    "list-people": Entry("controller_people", "List the people."),
    "show-person": Entry("controller_people", "Show one person."),
    "delete-person": Entry("controller_people", "Delete a person."),
    "export-fleet": Entry("controller_file", "Print the whole fleet as YAML."),
    "apply-fleet": Entry("controller_file", "Make a fleet what a YAML file says."),
    "add-token": Entry("controller_people", "Make an API token; its secret is shown once."),
    "list-tokens": Entry("controller_people", "List the API tokens."),
    "delete-token": Entry("controller_people", "Delete an API token."),
    "backup": Entry("controller_recovery", "Write what the database has to one file."),
    "restore": Entry("controller_recovery", "Restore a database from a backup."),
    "show-restore": Entry("controller_recovery", "Compare a restored database with the hosts."),
    "confirm-restore": Entry("controller_recovery", "Let hosts obey a restored database."),
    "import-desktops": Entry("controller_recovery", "Add desktops that only the hosts know."),
    "move-desktop": Entry("controller_desktops", "Make a desktop of a lost host on another one."),
    "accept-desktop": Entry("controller_recovery", "Let a desktop be what its host says."),
    "list-events": Entry("controller", "Show who did what in the fleet."),
}

GROUPS: dict[str, dict[str, Entry]] = {
    "agent": AGENT_COMMANDS,
    "controller": CONTROLLER_COMMANDS,
    "sim": SIM_COMMANDS,
}
"""The commands that are groups of others."""

SYNONYMS: dict[str, str] = {
    "label": "set-vm VM --label KEY=VALUE",
    "label-vm": "set-vm VM --label KEY=VALUE",
    "set-labels": "set-vm VM --label KEY=VALUE",
    "set-memory": "set-vm VM --memory SIZE",
    "set-owner": "set-vm VM --owner NAME",
    "set-vcpus": "set-vm VM --vcpus N",
    "setmem": "set-vm VM --memory SIZE",
    "setvcpus": "set-vm VM --vcpus N",
    "tag": "set-vm VM --label KEY=VALUE",
    "resize-vm": "set-vm VM --memory SIZE --vcpus N",
    "resize": "set-vm VM --memory SIZE --vcpus N",
    "set-profile": "set-vm VM --profile PROFILE",
    **{word: name for name, entry in COMMANDS.items() for word in entry.synonyms.split()},
}
"""Names that people try first, and the command for each; some with its options."""

MISSING_OPTIONS = {
    "--hosts": "several hosts: --host 'ssh://gpu{01..20}'; users, ports and keys are those of ~/.ssh/config",
    "--inventory": "several hosts: --host 'ssh://gpu{01..20}'; users, ports and keys are those of ~/.ssh/config",
    "--limit": "name the hosts: --host 'ssh://gpu{01,07}'",
    "--plot": "show-gpu --all --json has the numbers for a drawing program",
    "--via": "where NVML cannot set a scheduler, the error shows the line for /etc/modprobe.d",
    "--watch": "the program watch repeats a command, as in: watch vgpuctl list-vms",
    "--wheelhouse": "install-host --host ssh://HOST --deb FILE brings vgpuctl to a host",
}
"""Options that people try and vgpuctl does not have, and what does it instead."""
OPTION_SYNONYMS: dict[str, str] = {
    "--bridge": "--network",
    "--cores": "--vcpus",
    "--cpu": "--vcpus",
    "--cpus": "--vcpus",
    "--dryrun": "--dry-run",
    "--hypervisor": "--connect",
    "--iso": "--cdrom",
    "--mac": "--network",
    "--mem": "--memory",
    "--net": "--network",
    "--pin": "--cpu-pin",
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
    "--vlan": "--network",
}
