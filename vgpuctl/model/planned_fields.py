# SPDX-License-Identifier: Apache-2.0
"""Which fields of a VM change when it is next off: its record keeps them (`operations.planned_change`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vgpuctl.model.vm import VmRecord

PLANNED = "planned"


def planned_fields(record: VmRecord | None) -> dict[str, Any]:
    """Return the planned fields by name, as set-vm takes them; empty without a record."""
    return {} if record is None else record.requested(PLANNED, dict) or {}
