# SPDX-License-Identifier: Apache-2.0
"""Look at the host once, and return the VMs, vGPUs or GPUs that the user means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.name_patterns import expand_braces, is_glob, is_pattern
from vgpuctl.errors import InvalidInput
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results import SelectedResult
from vgpuctl.model.vm import Vm
from vgpuctl.observe import ReadScope, observe
from vgpuctl.operations.guards import require_libvirt
from vgpuctl.operations.plans.selection import Candidate, Request, left_out_note, select
from vgpuctl.operations.plans.vm_results import image_of, ownership_of
from vgpuctl.placement.constraints import match_gpus
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

Selected = QueryResult[tuple[SelectedResult, ...]]


def select_vms(host: Host, request: Request, *, managed_only: bool) -> Selected:
    """Return the VMs that a request selects; `managed_only`: globs, labels and "all" leave unmanaged ones out.

    Raises:
        NotFound, InvalidInput: as `select`.
    """
    snapshot = observe(host, ReadScope(models=False, gpu_addresses=frozenset()))
    require_libvirt(snapshot)
    selection = select(request, [_vm_candidate(vm) for vm in snapshot.vms], managed_only=managed_only)
    vms = {vm.name: vm for vm in snapshot.vms}
    rows = tuple(SelectedResult(name, str(vms[name].state), image_of(vms[name])) for name in selection.names)
    return QueryResult(rows, notes=left_out_note(selection, request.what))


def select_gpus(host: Host, request: Request) -> Selected:
    """Return the GPUs that a request selects, by address. "all" and globs select GPUs, and no other devices.

    With `everything`, a model that several GPUs have selects all of these.

    Raises:
        InvalidInput: several GPUs are of a model.
        NotFound: as `select`.
    """
    snapshot = observe(host, ReadScope(every_function=True))
    texts = [word for text in request.texts for word in (expand_braces(text) if is_pattern(text) else (text,))]
    addresses: list[str] = []
    for text in texts:
        matches = [] if is_glob(text) else [gpu.address for gpu in match_gpus(snapshot.gpus, text)]
        if len(matches) > 1 and not request.everything:
            raise InvalidInput(
                f"'{text}' means {len(matches)} GPUs here",
                hint=f"add --all for all of them, or name them: {', '.join(matches)}",
                gpus=matches,
            )
        addresses += matches or [text]
    candidates = [_gpu_candidate(gpu) for gpu in snapshot.gpus]
    if not addresses or any(map(is_glob, addresses)):
        named = set(addresses)
        candidates = [
            c for c, gpu in zip(candidates, snapshot.gpus, strict=True) if gpu.is_display_class or c.name in named
        ]
    selection = select(replace(request, texts=tuple(addresses)), candidates, managed_only=False)
    return QueryResult(tuple(SelectedResult(name, None) for name in selection.names))


def select_vgpus(host: Host, request: Request) -> Selected:
    """Return the vGPUs without a VM that a request selects, by name.

    Raises:
        NotFound, InvalidInput: as `select`.
    """
    snapshot = observe(host, ReadScope(models=False, gpu_addresses=frozenset()))
    selection = select(request, [Candidate(entry.name) for entry in snapshot.host_vgpus], managed_only=False)
    return QueryResult(tuple(SelectedResult(name, None) for name in selection.names))


def _vm_candidate(vm: Vm) -> Candidate:
    labels, owner = (vm.record.labels, vm.record.owner) if vm.record is not None else ({}, None)
    return Candidate(vm.name, (vm.uuid,), labels=labels, owner=owner, managed=ownership_of(vm) == "managed")


def _gpu_candidate(gpu: Gpu) -> Candidate:
    return Candidate(gpu.address, models=(gpu.model, *gpu.model.split()[-1:]))
