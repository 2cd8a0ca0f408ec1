# SPDX-License-Identifier: Apache-2.0
"""Which VMs the host agent starts after a boot of the host: what the fields and the last request say.

`disabled`, the default, and `enabled` are fixed. With `last-state` the VM's record notes whether the last request was
to start it or to stop it (`should_run`). Nothing else changes that: not the guest's own shutdown, not virsh, not a
crash. libvirt's own autostart (virsh autostart) is independent of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vgpuctl.model.vm import VmRecord

AUTOSTART_NEVER, AUTOSTART_ENABLED, AUTOSTART_LAST_STATE = "disabled", "enabled", "last-state"
AUTOSTART_MODES = (AUTOSTART_NEVER, AUTOSTART_ENABLED, AUTOSTART_LAST_STATE)
"""None of these words is a boolean in YAML."""
ANY_STORAGE = "any"
AUTOSTART_STORAGES = ("local", ANY_STORAGE)
DEFAULT_START_ORDER, MAX_START_ORDER = 100, 9999


def keeps_last_state(record: VmRecord) -> bool:
    """Return whether the record notes if the last request was to start or to stop the VM."""
    return record.requested("autostart", str) == AUTOSTART_LAST_STATE


def starts_after_boot(record: VmRecord) -> bool:
    """Return whether the host agent starts the VM after a boot of the host.

    Not a desktop whose guest was setting itself up: whether it had finished is not known any more, and its controller
    has it begin again.
    """
    if record.desktop is not None and record.requested("off_after_setup", bool) and record.prepared_disk is None:
        return False
    return record.requested("autostart", str) == AUTOSTART_ENABLED or (keeps_last_state(record) and record.should_run)


def may_use_shared_storage(record: VmRecord) -> bool:
    """Return whether the host agent may start the VM although another host may use its disks, too."""
    return record.requested("autostart_storage", str) == ANY_STORAGE


def start_order(record: VmRecord) -> int:
    """Return the VM's place in the order of starts, the lowest first."""
    order = record.requested("start_order", int)
    return DEFAULT_START_ORDER if order is None else order
