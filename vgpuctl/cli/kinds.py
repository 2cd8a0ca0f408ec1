# SPDX-License-Identifier: Apache-2.0
"""The kinds of documents, and the record of each. `Outcome`: JSON has the fields of `WorkResult` too."""

from __future__ import annotations

from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.gpus import (
    ChangedGpuResult,
    ChangedSchedulerResult,
    ExplainResult,
    GpuDetailsResult,
    GpuResult,
    ProfileResult,
    SetUpGpuResult,
)
from vgpuctl.model.results.host import (
    DoctorResult,
    HostDifferenceResult,
    HostTextResult,
    ImportedResult,
    InstalledResult,
    LogEntryResult,
    ReconcileResult,
    RestoreResult,
    UninstalledResult,
)
from vgpuctl.model.results.moves import FitsResult, MovesResult
from vgpuctl.model.results.program import CompletionResult, HostsResult, ScenarioResult, SimResult
from vgpuctl.model.results.simulation import SimulationResult
from vgpuctl.model.results.vgpus import (
    AbsentVgpuResult,
    EnsuredVgpuResult,
    ListedVgpuResult,
    NamedVgpuResult,
    VgpuResult,
)
from vgpuctl.model.results.vms import (
    AddressesResult,
    ChangedVmResult,
    ConsoleResult,
    ImageResult,
    ManyVmsResult,
    PlannedVmResult,
    VmResult,
    VmRowResult,
    WaitedVmResult,
    XmlResult,
)

KINDS: dict[str, object] = {
    "list-gpus": QueryResult[tuple[GpuResult, ...]],
    "show-gpu": QueryResult[GpuDetailsResult],
    "list-profiles": QueryResult[tuple[ProfileResult, ...]],
    "explain": QueryResult[ExplainResult],
    "fits": QueryResult[FitsResult],
    "plan-moves": Outcome[MovesResult],
    "move-vms": Outcome[MovesResult],
    "create-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult] | QueryResult[XmlResult],
    "ensure-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult],
    "delete-vm": Outcome[VmResult | PlannedVmResult],
    "start-vm": Outcome[VmResult | PlannedVmResult],
    "stop-vm": Outcome[VmResult | PlannedVmResult],
    "reboot-vm": Outcome[VmResult | PlannedVmResult],
    "wait": QueryResult[tuple[WaitedVmResult, ...]],
    "attach-vgpu": Outcome[VmResult | PlannedVmResult],
    "detach-vgpu": Outcome[VmResult | PlannedVmResult],
    "set-profile": Outcome[VmResult | PlannedVmResult],
    "refresh-vm": Outcome[VmResult | PlannedVmResult],
    "resize-disk": Outcome[VmResult | PlannedVmResult],
    "create-vgpu": Outcome[NamedVgpuResult],
    "ensure-vgpu": Outcome[EnsuredVgpuResult | AbsentVgpuResult],
    "delete-vgpu": Outcome[VgpuResult],
    "list-vgpus": QueryResult[tuple[ListedVgpuResult, ...]],
    "list-vms": QueryResult[tuple[VmRowResult, ...]],
    "show-vm": QueryResult[VmResult],
    "show-console": QueryResult[ConsoleResult],
    "show-address": QueryResult[AddressesResult],
    "list-images": QueryResult[tuple[ImageResult, ...]],
    "log": QueryResult[tuple[LogEntryResult, ...]],
    "reconcile-host": Outcome[ReconcileResult],
    "simulate": QueryResult[SimulationResult],
    "doctor": Outcome[DoctorResult],
    "restore-host": Outcome[RestoreResult],
    "install-host": Outcome[InstalledResult],
    "uninstall-host": Outcome[UninstalledResult],
    "apply": Outcome[HostDifferenceResult],
    "diff": Outcome[HostDifferenceResult],
    "export": QueryResult[HostTextResult],
    "import": QueryResult[ImportedResult],
    "set-mode": Outcome[SetUpGpuResult],
    "set-mig": Outcome[SetUpGpuResult],
    "set-mixed-size": Outcome[SetUpGpuResult],
    "set-scheduler": Outcome[ChangedSchedulerResult],
    "cordon": Outcome[ChangedGpuResult],
    "uncordon": Outcome[ChangedGpuResult],
    "sim-reboot": QueryResult[SimResult],
    "sim-reset": QueryResult[SimResult],
    "sim-list-scenarios": QueryResult[tuple[ScenarioResult, ...]],
    "completion": QueryResult[CompletionResult],
    "hosts": QueryResult[HostsResult],
}
"""The document's kind -> its result. `hosts` is what any command has on several other hosts."""
