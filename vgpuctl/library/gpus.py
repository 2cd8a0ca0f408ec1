# SPDX-License-Identifier: Apache-2.0
"""Calls about GPUs, and about the vGPUs without a VM that host.yaml lists."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Unpack

from vgpuctl.config.arguments import (
    COMPUTE_PARTITIONS,
    GPU_MODES,
    MEMORY_PARTITIONS,
    VGPU_STATES,
    WORKLOADS,
    as_texts,
    require_bool,
    require_choice,
    require_range,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.library.call import Calls, change, query
from vgpuctl.library.fields import Texts, VgpuFields
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.gpu import MigSpec
    from vgpuctl.model.outcome import Outcome, QueryResult
    from vgpuctl.model.results.advice import AdviceResult
    from vgpuctl.model.results.gpus import (
        AbsentVgpuResult,
        ChangedGpuResult,
        EnsuredVgpuResult,
        ExplainResult,
        GpuDetailsResult,
        GpuResult,
        ListedVgpuResult,
        NamedVgpuResult,
        ProfileResult,
        SetUpGpuResult,
        VgpuResult,
    )
    from vgpuctl.model.results.host import MonitoringFileResult
    from vgpuctl.model.results.moves import FitsResult, MovesResult
    from vgpuctl.model.results.techniques import WorkloadAdviceResult
    from vgpuctl.model.vgpu_scheduler import SchedulerSpec

_SCHEDULER_OPTIONS = {
    "time_slice_ms": "--time-slice",
    "frequency_hz": "--frequency",
    "averaging_factor": "--averaging-factor",
    "preempt_timeout_us": "--preempt-timeout",
}


class GpuCalls(Calls):
    """Calls about GPUs. A GPU is named by its address, or by a model that the host has once.

    Each call raises VgpuctlError when it fails.
    """

    @query
    def list_gpus(self, *, everything: bool = False) -> QueryResult[tuple[GpuResult, ...]]:
        """Return the GPUs; `everything`: every device that a VM can be given."""
        from vgpuctl.operations import queries

        return queries.list_gpus(self._ports, everything=everything)

    @query
    def show_gpu(self, gpu: str) -> QueryResult[GpuDetailsResult]:
        """Return one GPU with every vGPU on it."""
        from vgpuctl.operations import queries

        return queries.show_gpu(self._ports, gpu)

    @query
    def list_profiles(
        self, *, gpu: str | None = None, everything: bool = False
    ) -> QueryResult[tuple[ProfileResult, ...]]:
        """Return the vGPU profiles and how many more of each fit; `everything`: include those without room."""
        from vgpuctl.operations import queries

        return queries.list_profiles(self._ports, gpu=gpu, everything=everything)

    @query
    def explain(self, profile: str) -> QueryResult[ExplainResult]:
        """Return how many more of a profile fit on every GPU, and what blocks more."""
        from vgpuctl.operations import queries

        return queries.explain(self._ports, profile)

    @query
    def fits(self, *profiles: str, gpu: str | None = None, gpus: int | str | None = None) -> QueryResult[FitsResult]:
        """Return whether vGPUs (`PROFILE` or `PROFILE:N` each) fit together now, each in a VM of its own, and where.

        Or with `gpus`: whether one VM could get that number of whole GPUs.
        """
        from vgpuctl.library import requests
        from vgpuctl.operations import moves

        as_texts("profiles", profiles)
        if bool(profiles) == (gpus is not None):
            raise InvalidInput("specify either --profile PROFILE or PROFILE:N, or --gpus N for whole GPUs in one VM")
        if gpus is not None:
            fields = {"mode": "passthrough", "gpus": gpus, "gpu": () if gpu is None else (gpu,)}
            return moves.query_whole_fit(self._ports, requests.from_fields(self._ports, None, fields))
        return moves.query_fit(self._ports, requests.count_profiles(profiles), gpu)

    @query
    def advise_sizes(self, *, by: str = "owner") -> QueryResult[AdviceResult]:
        """Return what the use of vGPUs advises: profiles, idle VMs, and GPU memory by `owner` or by a label."""
        from vgpuctl.operations import advise

        return advise.advise_sizes(self._ports, by=by)

    @query
    def usage_report(self, *, by: str = "owner") -> QueryResult[MonitoringFileResult]:
        """Return what `advise_sizes` returns as one HTML page."""
        from vgpuctl.operations import usage_report

        return usage_report.make_usage_report(self._ports, by=by)

    @query
    def advise_workload(self, workload: str) -> QueryResult[WorkloadAdviceResult]:
        """Return the ways to share a GPU, best first for a workload, and which GPUs of this host can do each."""
        from vgpuctl.operations import advise

        require_choice("workload", workload, WORKLOADS)
        return advise.advise_workload(self._ports, workload)

    @query
    def plan_moves(
        self, *profiles: str, defragment: bool = False, max_moves: int | None = None, from_gpu: str | None = None
    ) -> Outcome[MovesResult]:
        """Return the fewest moves after which these vGPUs fit, or with `defragment` more of the largest profiles.

        With `from_gpu` the moves take the VMs of that GPU to others. NoCapacity: some cannot leave, or no moves help.
        """
        outcome = self._move(profiles, defragment=defragment, max_moves=max_moves, from_gpu=from_gpu, dry_run=True)
        words = [word for profile in profiles for word in ("--profile", profile)]
        words += ["--defragment"] if defragment else []
        words += [] if from_gpu is None else ["--from", from_gpu]
        words += [] if max_moves is None else ["--most", str(max_moves)]
        note = f"vgpuctl move-vms {shlex.join(words)} carries out these moves"
        return replace(outcome, notes=(*outcome.notes, note)) if outcome.changed else outcome

    @change("move-vms")
    def move_vms(
        self,
        *profiles: str,
        defragment: bool = False,
        max_moves: int | None = None,
        from_gpu: str | None = None,
        dry_run: bool = False,
    ) -> Outcome[MovesResult]:
        """Stop VMs, give them other places and start them again, as `plan_moves` shows."""
        return self._move(profiles, defragment=defragment, max_moves=max_moves, from_gpu=from_gpu, dry_run=dry_run)

    def _move(
        self,
        profiles: Sequence[str],
        *,
        defragment: bool,
        max_moves: int | None,
        from_gpu: str | None,
        dry_run: bool,
    ) -> Outcome[MovesResult]:
        from vgpuctl.library import requests
        from vgpuctl.operations import moves

        as_texts("profiles", profiles)
        if max_moves is not None:
            require_range("max_moves", max_moves, 0)
        if bool(profiles) + defragment + (from_gpu is not None) != 1:
            raise InvalidInput(
                "specify one of --profile PROFILE:N, --from GPU and --defragment", hint="vgpuctl plan-moves --help"
            )
        if from_gpu is not None and max_moves is not None:
            raise InvalidInput("--most works with --profile and --defragment", hint="omit --most")
        if from_gpu is not None:
            plan = partial(moves.empty_gpu, gpu=from_gpu)
        elif defragment:
            plan = partial(moves.defragment, max_moves=max_moves)
        else:
            plan = partial(moves.make_room, profiles=requests.count_profiles(profiles), max_moves=max_moves)
        return plan(self._ports, self._context(dry_run=dry_run))

    @change("set-mode", "gpu")
    def set_mode(
        self,
        gpu: str,
        mode: str,
        *,
        vfs: int | None = None,
        compute_partition: str | None = None,
        memory_partition: str | None = None,
        vf_memory: str | None = None,
        drain: bool = False,
        dry_run: bool = False,
    ) -> Outcome[SetUpGpuResult]:
        """Set a GPU up: vgpu, sriov with `vfs` plain virtual functions, passthrough, or unmanaged.

        `vf_memory`: the GPU memory of each plain virtual function. `compute_partition`, `memory_partition`: the modes
        of an AMD GPU with plain virtual functions.
        """
        from vgpuctl.operations import gpu_mode

        require_choice("mode", mode, GPU_MODES)
        if vfs is not None:
            require_range("vfs", vfs, 1)
        if compute_partition is not None:
            require_choice("compute_partition", compute_partition, COMPUTE_PARTITIONS)
        if memory_partition is not None:
            require_choice("memory_partition", memory_partition, MEMORY_PARTITIONS)
        if mode != "sriov" and (compute_partition, memory_partition) != (None, None):
            raise InvalidInput(f"partition modes need the mode sriov, not {mode}", hint=f"vgpuctl set-mode {gpu} sriov")
        request = gpu_mode.ModeRequest(
            gpu,
            mode,
            vfs,
            drain,
            compute_partition=compute_partition,
            memory_partition=memory_partition,
            vf_memory_mib=_parse_vf_memory(vf_memory),
        )
        return gpu_mode.set_mode(self._ports, self._context(dry_run=dry_run), request)

    @change("set-mig", "gpu")
    def set_mig(
        self,
        gpu: str,
        *instances: str,
        vgpus: Texts = (),
        off: bool = False,
        drain: bool = False,
        dry_run: bool = False,
    ) -> Outcome[SetUpGpuResult]:
        """Partition a GPU into GPU instances (`1g.10gb:2`), or those that `vgpus` need (`H100-1-10C:3`), or none."""
        from vgpuctl.operations import gpu_mode

        requested = _requested_mig(as_texts("instances", instances), as_texts("vgpus", vgpus), off=off)
        mixed_size = False if requested.is_requested else None  # MIG and mixed sizes exclude each other
        request = gpu_mode.ModeRequest(gpu, None, drain=drain, mig=requested, mixed_size=mixed_size)
        return gpu_mode.set_mode(self._ports, self._context(dry_run=dry_run), request)

    @change("set-mixed-size", "gpu")
    def set_mixed_size(
        self, gpu: str, *, on: bool, drain: bool = False, dry_run: bool = False
    ) -> Outcome[SetUpGpuResult]:
        """Allow vGPUs of several sizes on a GPU, or of only one size."""
        from vgpuctl.operations import gpu_mode

        require_bool("on", on)
        request = gpu_mode.ModeRequest(gpu, None, drain=drain, mixed_size=on)
        return gpu_mode.set_mode(self._ports, self._context(dry_run=dry_run), request)

    @change("set-scheduler", "gpu")
    def set_scheduler(
        self,
        gpu: str,
        policy: str,
        *,
        time_slice_ms: int | None = None,
        frequency_hz: int | None = None,
        averaging_factor: int | None = None,
        preempt_timeout_us: int | None = None,
        drain: bool = False,
        dry_run: bool = False,
    ) -> Outcome[ChangedGpuResult]:
        """Set how the driver divides a GPU's time: best_effort, equal_share or fixed_share."""
        from vgpuctl.operations import gpu_scheduler

        numbers = {
            "time_slice_ms": time_slice_ms,
            "frequency_hz": frequency_hz,
            "averaging_factor": averaging_factor,
            "preempt_timeout_us": preempt_timeout_us,
        }
        request = gpu_scheduler.SchedulerRequest(gpu, _requested_scheduler(policy, numbers), drain)
        return gpu_scheduler.set_scheduler(self._ports, self._context(dry_run=dry_run), request)

    @change("cordon", "gpu")
    def cordon(self, gpu: str, *, dry_run: bool = False) -> Outcome[ChangedGpuResult]:
        """Place no new vGPUs and VMs on a GPU; those on it stay."""
        from vgpuctl.operations import desired_state

        return desired_state.cordon(self._ports, self._context(dry_run=dry_run), gpu, cordoned=True)

    @change("uncordon", "gpu")
    def uncordon(self, gpu: str, *, dry_run: bool = False) -> Outcome[ChangedGpuResult]:
        """Allow new vGPUs and VMs on a GPU again."""
        from vgpuctl.operations import desired_state

        return desired_state.cordon(self._ports, self._context(dry_run=dry_run), gpu, cordoned=False)


def _parse_vf_memory(text: str | None) -> int | None:
    """Return the GPU memory of each VF in MiB, checked by the same rule as host.yaml.

    Raises:
        InvalidInput: it is no size, or one that no driver takes.
    """
    from vgpuctl.config import rules
    from vgpuctl.model.numbers import parse_memory_size

    try:
        return None if text is None else parse_memory_size(rules.vf_memory(text))
    except ValueError as error:
        raise InvalidInput(f"--vf-memory: {error}", hint="vgpuctl set-mode --help") from error


def _requested_mig(instances: Sequence[str], vgpus: Sequence[str], *, off: bool) -> MigSpec:
    """Return the given MIG configuration, checked by the same rules as host.yaml.

    Raises:
        InvalidInput: nothing is given, or more than one alternative, or a name is invalid.
    """
    from vgpuctl.config import gpu_spec

    if (bool(instances), bool(vgpus), off).count(True) != 1:
        raise InvalidInput(
            "specify one of GPU instance profiles, --for VGPU_PROFILE:N, and --off",
            hint="vgpuctl set-mig --help",
        )
    try:
        return gpu_spec.parse_mig_options(instances, vgpus)
    except ValueError as error:
        raise InvalidInput(str(error), hint="vgpuctl set-mig --help") from error


def _requested_scheduler(policy: str, numbers: dict[str, int | None]) -> SchedulerSpec:
    """Return the given scheduler configuration, checked by the same rules as host.yaml.

    Raises:
        InvalidInput: it lists every problem.
    """
    from vgpuctl.config import gpu_spec, rules

    try:
        return gpu_spec.parse_scheduler_spec({"policy": policy, **numbers})
    except rules.ValidationError as error:
        messages = [
            f"{_SCHEDULER_OPTIONS.get(str(problem.path[0]), problem.path[0])}: {problem.text}"
            for problem in error.problems
        ]
        raise InvalidInput("; ".join(messages), hint="vgpuctl set-scheduler --help") from error


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
