# SPDX-License-Identifier: Apache-2.0
"""The kinds of documents, and the record of each. `Outcome`: JSON has the fields of `WorkResult` too."""

from __future__ import annotations

from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.model.results.gpus import (
    ChangedGpuResult,
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
from vgpuctl.model.results.program import CompletionResult, HostsResult, RebootedResult, ScenarioResult, SimResult
from vgpuctl.model.results.targets import TargetsResult
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

VM_CHANGE = Outcome[VmResult | PlannedVmResult | TargetsResult[VmResult | PlannedVmResult]]
KINDS: dict[str, object] = {
    "list-gpus": QueryResult[tuple[GpuResult, ...]],
    "show-gpu": QueryResult[GpuDetailsResult | TargetsResult[GpuDetailsResult]],
    "list-profiles": QueryResult[tuple[ProfileResult, ...]],
    "explain": QueryResult[ExplainResult],
    "fits": QueryResult[FitsResult],
    "plan-moves": Outcome[MovesResult],
    "move-vms": Outcome[MovesResult],
    "create-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult] | QueryResult[XmlResult],
    "ensure-vm": Outcome[ChangedVmResult | PlannedVmResult | ManyVmsResult | TargetsResult[VmResult | PlannedVmResult]],
    "reboot-vm": VM_CHANGE,
    "wait": QueryResult[tuple[WaitedVmResult, ...]],
    "resize-disk": VM_CHANGE,
    "delete-vm": VM_CHANGE,
    "start-vm": VM_CHANGE,
    "stop-vm": VM_CHANGE,
    "attach-vgpu": VM_CHANGE,
    "detach-vgpu": VM_CHANGE,
    "attach-gpu": VM_CHANGE,
    "detach-gpu": VM_CHANGE,
    "set-vm": VM_CHANGE,
    "refresh-vm": VM_CHANGE,
    "create-vgpu": Outcome[NamedVgpuResult],
    "ensure-vgpu": Outcome[EnsuredVgpuResult | AbsentVgpuResult],
    "delete-vgpu": Outcome[VgpuResult | TargetsResult[VgpuResult]],
    "list-vgpus": QueryResult[tuple[ListedVgpuResult, ...]],
    "list-vms": QueryResult[tuple[VmRowResult, ...]],
    "show-vm": QueryResult[VmResult | TargetsResult[VmResult]],
    "show-console": QueryResult[ConsoleResult | TargetsResult[ConsoleResult]],
    "show-address": QueryResult[AddressesResult | TargetsResult[AddressesResult]],
    "list-images": QueryResult[tuple[ImageResult, ...]],
    "log": QueryResult[tuple[LogEntryResult, ...]],
    "reconcile-host": Outcome[ReconcileResult],
    "doctor": Outcome[DoctorResult],
    "restore-host": Outcome[RestoreResult],
    "install-host": Outcome[InstalledResult],
    "uninstall-host": Outcome[UninstalledResult],
    "apply": Outcome[HostDifferenceResult],
    "diff": Outcome[HostDifferenceResult],
    "export": QueryResult[HostTextResult],
    "import": QueryResult[ImportedResult],
    "set-mode": Outcome[SetUpGpuResult | TargetsResult[SetUpGpuResult]],
    "set-mig": Outcome[SetUpGpuResult | TargetsResult[SetUpGpuResult]],
    "set-mixed-size": Outcome[SetUpGpuResult | TargetsResult[SetUpGpuResult]],
    "set-scheduler": Outcome[ChangedGpuResult | TargetsResult[ChangedGpuResult]],
    "cordon": Outcome[ChangedGpuResult | TargetsResult[ChangedGpuResult]],
    "uncordon": Outcome[ChangedGpuResult | TargetsResult[ChangedGpuResult]],
    "sim-reboot": QueryResult[RebootedResult],
    "sim-reset": QueryResult[SimResult],
    "sim-list-scenarios": QueryResult[tuple[ScenarioResult, ...]],
    "completion": QueryResult[CompletionResult],
    "hosts": QueryResult[HostsResult],
}
"""The document's kind -> its result. `hosts` is what any command has on several other hosts."""
