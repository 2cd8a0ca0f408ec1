# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the modules take. Made from the program by tests/ansible: do not edit."""

from __future__ import annotations

VM = {
    "profile": {"type": "list", "elements": "str"},
    "gpu": {"type": "raw"},
    "gpus": {"type": "int"},
    "not_gpu": {"type": "list", "elements": "str"},
    "numa_node": {"type": "int"},
    "spread_group": {"type": "str"},
    "scheduler": {"type": "str", "choices": ["best_effort", "equal_share", "fixed_share"]},
    "placement": {"type": "str", "choices": ["least-waste", "depth", "breadth", "first-fit", "binpack", "spread"]},
    "mode": {"type": "str", "choices": ["vgpu", "sriov", "passthrough"]},
    "memory": {"type": "str"},
    "vcpus": {"type": "int"},
    "hugepages": {"type": "str"},
    "cpu_pin": {"type": "str"},
    "image": {"type": "str"},
    "disk": {"type": "list", "elements": "str"},
    "cdrom": {"type": "str"},
    "cloud_init": {"type": "str"},
    "network_config": {"type": "str"},
    "guest_driver": {"type": "str"},
    "guest_sharing": {"type": "str"},
    "license": {"type": "str"},
    "k8s_join": {"type": "str"},
    "guest_helper": {"type": "bool"},
    "off_after_setup": {"type": "bool"},
    "networks": {"type": "raw"},
    "display": {"type": "bool"},
    "os": {"type": "str", "choices": ["linux", "generic", "windows11"]},
    "storage_pool": {"type": "str"},
    "hotplug_slots": {"type": "int"},
    "pci_window": {"type": "str"},
    "vgpu_params": {"type": "dict"},
    "template": {"type": "str"},
    "reserve": {"type": "str", "choices": ["always", "running"]},
    "autostart": {"type": "str", "choices": ["disabled", "enabled", "last-state"]},
    "autostart_storage": {"type": "str", "choices": ["local", "any"]},
    "start_order": {"type": "int"},
    "labels": {"type": "dict"},
    "owner": {"type": "str"},
    "force_console": {"type": "bool"},
}
VGPU = {
    "name": {"type": "str", "required": True},
    "profile": {"type": "str"},
    "gpu": {"type": "raw"},
    "not_gpu": {"type": "list", "elements": "str"},
    "numa_node": {"type": "int"},
    "scheduler": {"type": "str", "choices": ["best_effort", "equal_share", "fixed_share"]},
    "placement": {"type": "str", "choices": ["least-waste", "depth", "breadth", "first-fit", "binpack", "spread"]},
    "vgpu_params": {"type": "dict"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}
GPU_MODE = {
    "gpu": {"type": "raw"},
    "all": {"type": "bool"},
    "mode": {"type": "str", "choices": ["vgpu", "sriov", "passthrough", "unmanaged"], "required": True},
    "vfs": {"type": "int"},
    "drain": {"type": "bool", "default": False},
}
SCHEDULER = {
    "gpu": {"type": "raw"},
    "all": {"type": "bool"},
    "policy": {"type": "str", "choices": ["best_effort", "equal_share", "fixed_share"], "required": True},
    "time_slice": {"type": "int"},
    "frequency": {"type": "int"},
    "averaging_factor": {"type": "int"},
    "drain": {"type": "bool", "default": False},
}
