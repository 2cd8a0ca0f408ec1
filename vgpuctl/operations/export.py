# SPDX-License-Identifier: Apache-2.0
"""The host.yaml of a host as it is: every GPU by its address, the rest as in the current file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vgpuctl.config.host_editor import render_host_file
from vgpuctl.config.host_spec import FORMAT_VERSION, GPU_SPEC_KEYS, GpuSpec, HostSpec, entry_matches, merge_gpu_entries
from vgpuctl.makers import uses_nvml
from vgpuctl.model.gpu import Gpu
from vgpuctl.model.names import address_sort_key, is_pci_address
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.host import HostTextResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.observe import observe
from vgpuctl.observe.host_file import read_host_spec
from vgpuctl.operations.cordon import ALL_FUNCTIONS_SCOPE
from vgpuctl.operations.plans.host_diff import current_gpu_spec
from vgpuctl.value import EMPTY_MAPPING, replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def export_host(host: Host) -> QueryResult[HostTextResult]:
    """Return the text of a host.yaml for which `diff` finds no difference.

    It contains devices other than GPUs if the current file has entries for them. Settings that cannot be read now, as
    those of a GPU whose driver is down or that is gone, stay as in the current file, with a warning.

    Raises:
        InvalidInput: the current file cannot be parsed.
    """
    current = read_host_spec(host) or HostSpec(FORMAT_VERSION)
    snapshot = observe(host, ALL_FUNCTIONS_SCOPE)
    shown = [
        gpu
        for gpu in sorted(snapshot.gpus, key=lambda g: address_sort_key(g.address))
        if is_pci_address(gpu.address) and (gpu.is_display_class or merge_gpu_entries(current.gpus, gpu) != GpuSpec())
    ]
    unreadable = {gpu.address: _unreadable_reason(gpu, snapshot) for gpu in shown}
    entries = {gpu.address: _with_unreadable_keys(gpu, unreadable[gpu.address], current) for gpu in shown}
    gpus = {address: entry for address, entry in entries.items() if entry != GpuSpec()}
    absent = {key: current.gpus[key] for key in current.gpus if not any(entry_matches(key, gpu) for gpu in shown)}
    text = render_host_file(
        replace(current, gpus={**absent, **gpus} or EMPTY_MAPPING), {gpu.address: gpu.model for gpu in shown}
    )
    warnings = [
        f"{address}: {reason}; these values are from host.yaml" for address, reason in unreadable.items() if reason
    ]
    warnings += [f"no GPU here is {key}; its entry is copied from host.yaml" for key in absent]
    return QueryResult(HostTextResult(text), (*snapshot.warnings, *warnings))


def _unreadable_reason(gpu: Gpu, snapshot: Snapshot) -> str:
    """Return why a GPU's settings cannot be read, empty if they can."""
    if gpu.is_display_class and gpu.driver is None:
        return "no driver is bound to it, so its setup cannot be read"
    if uses_nvml(gpu) and not snapshot.nvml.available:
        return "NVML does not answer, so its scheduler, MIG and mixed sizes cannot be read"
    return ""


def _with_unreadable_keys(gpu: Gpu, reason: str, current: HostSpec) -> GpuSpec:
    readable, configured = current_gpu_spec(gpu), merge_gpu_entries(current.gpus, gpu)
    if not reason:
        return readable
    return replace(
        readable,
        **{key: value for key in GPU_SPEC_KEYS if (value := getattr(configured, key)) and not getattr(readable, key)},
    )
