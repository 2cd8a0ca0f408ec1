# SPDX-License-Identifier: Apache-2.0
"""Calls about vGPUs without a VM, which host.yaml lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from vgpuctl.config.arguments import VGPU_STATES, as_texts, require_choice
from vgpuctl.library.call import Calls, change, query
from vgpuctl.library.fields import VgpuFields

if TYPE_CHECKING:
    from vgpuctl.model.outcome import Outcome, QueryResult
    from vgpuctl.model.results.gpus import (
        AbsentVgpuResult,
        EnsuredVgpuResult,
        ListedVgpuResult,
        NamedVgpuResult,
        VgpuResult,
    )


class VgpuCalls(Calls):
    """Calls about vGPUs. Each raises VgpuctlError when it fails."""

    @query
    def list_vgpus(self, *, unassigned: bool = False) -> QueryResult[tuple[ListedVgpuResult, ...]]:
        """Return the vGPUs and their owners; `unassigned`: only those without a VM."""
        from vgpuctl.operations import vgpus

        return vgpus.list_vgpus(self._ports, unassigned=unassigned)

    @change("create-vgpu")
    def create_vgpu(
        self, name: str | None = None, *, dry_run: bool = False, **fields: Unpack[VgpuFields]
    ) -> Outcome[NamedVgpuResult]:
        """Create a vGPU without a VM; the result has the <hostdev> element for a VM's definition."""
        from vgpuctl.library import requests
        from vgpuctl.operations import vgpus

        requests.refuse_other_fields(fields, VgpuFields)
        request = requests.from_fields(self._ports, name, fields)
        return vgpus.create_vgpu(self._ports, self._context(dry_run=dry_run), request)

    @change("ensure-vgpu")
    def ensure_vgpu(
        self, name: str, *, state: str = "present", dry_run: bool = False, **fields: Unpack[VgpuFields]
    ) -> Outcome[EnsuredVgpuResult | AbsentVgpuResult]:
        """Ensure that a vGPU without a VM exists (`state` present) or does not (absent)."""
        from vgpuctl.library import requests
        from vgpuctl.operations import vgpus

        require_choice("state", state, VGPU_STATES)
        requests.refuse_other_fields(fields, VgpuFields)
        as_texts("name", name)
        return vgpus.ensure_vgpu(
            self._ports,
            self._context(dry_run=dry_run),
            requests.from_fields(self._ports, name, fields, complete=False),
            state=state,
        )

    @change("delete-vgpu")
    def delete_vgpu(self, name: str, *, dry_run: bool = False) -> Outcome[VgpuResult]:
        """Remove a vGPU without a VM: its device, and its entry in host.yaml."""
        from vgpuctl.operations import vgpus

        return vgpus.delete_vgpu(self._ports, self._context(dry_run=dry_run), name)
