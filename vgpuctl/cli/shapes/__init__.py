# SPDX-License-Identifier: Apache-2.0
"""The JSON `data` of every command, as types: the one source of `docs/json/`.

Units are in the names, addresses and ids are strings, unknown is null. Fields are added, never renamed. One module for
each subject, and here the table of the commands; a type's hints are resolved in the module in which it stands.
"""

from __future__ import annotations

from vgpuctl.cli.shapes.disks import ImageShape
from vgpuctl.cli.shapes.gpus import (
    ChangedGpuShape,
    ChangedSchedulerShape,
    ExplainShape,
    GpuDetailsShape,
    GpuShape,
    ProfileShape,
    SetUpGpuShape,
)
from vgpuctl.cli.shapes.host import (
    DoctorShape,
    HostDifferenceShape,
    HostTextShape,
    ImportedShape,
    InstalledShape,
    ReconcileShape,
    RestoreShape,
    UninstalledShape,
)
from vgpuctl.cli.shapes.hosts import HostsShape
from vgpuctl.cli.shapes.moves import FitsShape, MovesShape
from vgpuctl.cli.shapes.program import CompletionShape, ScenarioShape, SimShape
from vgpuctl.cli.shapes.reach import AddressesShape, ConsoleShape
from vgpuctl.cli.shapes.simulation import SimulationShape
from vgpuctl.cli.shapes.vgpus import (
    AbsentVgpuShape,
    CreatedVgpuShape,
    DeletedVgpuShape,
    EnsuredVgpuShape,
    ListedVgpuShape,
)
from vgpuctl.cli.shapes.vms import AttachedVmShape, ChangedVmShape, ManyVmsShape, VmRowShape, VmShape, XmlShape

KINDS: dict[str, object] = {
    "list-gpus": list[GpuShape],
    "show-gpu": GpuDetailsShape,
    "list-profiles": list[ProfileShape],
    "explain": ExplainShape,
    "fits": FitsShape,
    "plan-moves": MovesShape,
    "create-vm": ChangedVmShape | ManyVmsShape | XmlShape,
    "ensure-vm": ChangedVmShape | ManyVmsShape,
    "delete-vm": ChangedVmShape,
    "start-vm": ChangedVmShape,
    "stop-vm": ChangedVmShape,
    "attach": AttachedVmShape,
    "detach": AttachedVmShape,
    "set-profile": AttachedVmShape,
    "refresh-vm": AttachedVmShape,
    "create-vgpu": CreatedVgpuShape,
    "ensure-vgpu": EnsuredVgpuShape | AbsentVgpuShape,
    "delete-vgpu": DeletedVgpuShape,
    "list-vgpus": list[ListedVgpuShape],
    "list-vms": list[VmRowShape],
    "show-vm": VmShape,
    "console": ConsoleShape,
    "address": AddressesShape,
    "list-images": list[ImageShape],
    "reconcile": ReconcileShape,
    "simulate": SimulationShape,
    "doctor": DoctorShape,
    "restore-host": RestoreShape,
    "install-host": InstalledShape,
    "uninstall-host": UninstalledShape,
    "apply": HostDifferenceShape,
    "diff": HostDifferenceShape,
    "assert": HostDifferenceShape,
    "export": HostTextShape,
    "import": ImportedShape,
    "set-mode": SetUpGpuShape,
    "set-mig": SetUpGpuShape,
    "set-mixed-size": SetUpGpuShape,
    "set-scheduler": ChangedSchedulerShape,
    "cordon": ChangedGpuShape,
    "uncordon": ChangedGpuShape,
    "sim-reboot": SimShape,
    "sim-reset": SimShape,
    "sim-list-scenarios": list[ScenarioShape],
    "completion": CompletionShape,
    "hosts": HostsShape,
}
"""The document's kind -> the type of its `data`. `hosts` is what any command has on several other hosts."""
