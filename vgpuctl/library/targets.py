# SPDX-License-Identifier: Apache-2.0
"""Calls for several VMs, vGPUs or GPUs: which ones the user means, and one change or question for all of them.

The names that completion shows are here too, each read from as little of the host as can be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from vgpuctl.config.arguments import DEFAULT_PARALLEL, MAX_PARALLEL, require_range
from vgpuctl.errors import Interrupted, NotFound, VgpuctlError
from vgpuctl.library.call import Calls, Named, query
from vgpuctl.library.fields import VmChangeFields
from vgpuctl.model.names import normalize_pci
from vgpuctl.model.outcome import Outcome, QueryResult
from vgpuctl.value import EMPTY_MAPPING, replace

if TYPE_CHECKING:
    from vgpuctl.model.results import SelectedResult, TargetsResult
    from vgpuctl.model.results.vms import VmResult

Data = TypeVar("Data")
_GPU_COMMANDS = ("set-mode", "set-mig", "set-mixed-size", "set-scheduler", "cordon", "uncordon")


class TargetCalls(Calls):
    """Calls for several VMs, vGPUs or GPUs. Each raises VgpuctlError when it fails."""

    @query
    def select_vms(
        self,
        *names: str,
        everything: bool = False,
        labels: Mapping[str, str] = EMPTY_MAPPING,
        owner: str | None = None,
        managed_only: bool = False,
    ) -> QueryResult[tuple[SelectedResult, ...]]:
        """Return the VMs that names, ranges ('vdi-{001..100}') and globs ('vdi-*') select, from one look at the host.

        `everything`: all VMs. `labels`: only those with all these labels. `owner`: only those of this owner.
        `managed_only`: globs, labels, an owner and `everything` omit what vgpuctl does not manage. NotFound: a name
        does not exist, or nothing matches.
        """
        from vgpuctl.operations import queries
        from vgpuctl.operations.plans import selection

        request = selection.Request("VM", names, everything, labels, owner)
        return queries.select_vms(self._ports, request, managed_only=managed_only)

    @query
    def select_gpus(self, *names: str, everything: bool = False) -> QueryResult[tuple[SelectedResult, ...]]:
        """Return the GPUs that addresses, models and globs select.

        `everything`: all GPUs, or with `names` also all GPUs of a model. NotFound: as `select_vms`.
        """
        from vgpuctl.operations import queries
        from vgpuctl.operations.plans import selection

        request = selection.Request("GPU", names, everything, list_command="vgpuctl list-gpus")
        return queries.select_named_gpus(self._ports, request)

    @query
    def select_vgpus(self, *names: str, everything: bool = False) -> QueryResult[tuple[SelectedResult, ...]]:
        """Return the vGPUs without a VM that names, ranges and globs select. NotFound: as `select_vms`."""
        from vgpuctl.operations import queries
        from vgpuctl.operations.plans import selection

        request = selection.Request("vGPU", names, everything, list_command="vgpuctl list-vgpus --unassigned")
        return queries.select_vgpus(self._ports, request)

    @query
    def check_image(self, image: str) -> QueryResult[None]:
        """Check that VMs can be rebuilt from an image: once, before `refresh_vm` is called for many.

        NotFound, InvalidInput, HostCannot, Refused: why not.
        """
        from vgpuctl.operations import refresh

        refresh.check_image(self._ports, image)
        return QueryResult(None)

    @query
    def check_vm_change(self, **fields: Unpack[VmChangeFields]) -> QueryResult[None]:
        """Check the values for `set_vm`: once, before it is called for many.

        InvalidInput: what is wrong, whatever VM it is.
        """
        from vgpuctl.library import requests

        requests.refuse_other_fields(fields, VmChangeFields)
        requests.for_change(self._ports, "", fields)
        return QueryResult(None)

    def for_each(
        self,
        command: str,
        names: Sequence[str],
        call: Callable[[Self, str], Outcome[Data]],
        *,
        parallel: int = DEFAULT_PARALLEL,
        question: Callable[[Sequence[str]], str] | None = None,
        notes: tuple[str, ...] = (),
        dry_run: bool = False,
        skips: bool = False,
        may_skip_all: bool = False,
    ) -> Outcome[TargetsResult[Data]]:
        """Make a change for each name, `parallel` at a time; each is undone by itself if it fails.

        `command`: for the audit journal, which gets one entry. `call` gets an opened host and a name; with `dry_run` it
        must be a dry run too. `question`: makes the one question for all from the names; it is for a call that needs
        confirmation. `skips`: what cannot have the change is skipped with a note, if another one can, or with
        `may_skip_all` if none can.
        SomeTargetsFailed: some failed; `result` has all of them.
        """
        from vgpuctl.library import batch

        require_range("parallel", parallel, 1, MAX_PARALLEL)
        self._refuse_captured()
        asked = None if dry_run else question
        request = batch.BatchRequest(tuple(names), call, parallel, asked, notes, dry_run, skips, may_skip_all)

        with self._one_call() as host:

            def act() -> Outcome[TargetsResult[Data]]:
                try:
                    return host._run_batch(request)
                except Interrupted:
                    raise
                except VgpuctlError as error:
                    if isinstance(error.result, Outcome) and _named(command, names).vms:
                        error.result = host._with_states(error.result)
                    raise

            return host._end_with(act) if dry_run else host._carry_out(command, _named(command, names), act)

    def _with_states(self, result: Outcome[Any]) -> Outcome[Any]:
        """Return the result with the states that VMs have after a failure, from a new look; unknown ones stay null."""
        failed = [row.name for row in result.data.targets if row.error is not None]
        try:
            shown = self.show_vms(failed).data.targets
        except VgpuctlError as error:
            if not isinstance(error.result, QueryResult):
                return result
            shown = error.result.data.targets
        states = {row.name: str(row.data.state) for row in shown if row.data is not None}
        rows = tuple(
            row if row.error is None else replace(row, error=replace(row.error, state=states.get(row.name)))
            for row in result.data.targets
        )
        return replace(result, data=replace(result.data, targets=rows))

    def query_each(
        self, names: Sequence[str], call: Callable[[str], QueryResult[Data]], *, notes: tuple[str, ...] = ()
    ) -> QueryResult[TargetsResult[Data]]:
        """Return what a call that changes nothing reports for each name. SomeTargetsFailed: as `for_each`."""
        from vgpuctl.library import batch

        return batch.query(names, call, notes)

    @query
    def show_vms(self, names: Sequence[str]) -> QueryResult[TargetsResult[VmResult]]:
        """Return several VMs with their vGPUs and disks, from one look at the host."""
        from vgpuctl.library import batch
        from vgpuctl.operations import queries

        results = queries.show_vms(self._ports, self._context(), names)

        def show(name: str) -> QueryResult[VmResult]:
            if name not in results:
                raise NotFound(f"there is no VM {name} any more", hint="vgpuctl list-vms shows the VMs", vm=name)
            return results[name]

        result: QueryResult[Any] = batch.query(names, show, ())
        return result


def _named(command: str, names: Sequence[str]) -> Named:
    """Return what a command's audit entry names: GPUs, VMs, or neither for vGPUs without a VM."""
    if command in _GPU_COMMANDS:
        return Named(gpus=tuple(names))
    return Named() if command == "delete-vgpu" else Named(tuple(names))


class NameCalls(Calls):
    """Calls that return names with a few words about each. They look at no more than they must: a user waits."""

    @query
    def vm_names(self) -> tuple[tuple[str, str], ...]:
        """Return each VM's name and state, read from libvirt alone."""
        return tuple((domain.name, str(domain.state)) for domain in self._ports.hypervisor.domains())

    @query
    def pool_names(self) -> tuple[tuple[str, str], ...]:
        """Return each storage pool's name and its path, or its kind if it has no path."""
        return tuple((pool.name, pool.path or pool.kind) for pool in self._ports.storage.pools())

    @query
    def vgpu_names(self) -> tuple[tuple[str, str], ...]:
        """Return the name of each vGPU without a VM, and what it is, read from host.yaml alone."""
        from vgpuctl.library import requests

        vgpus = requests.read_spec_of_host(self._ports).vgpus
        return tuple((name, f"{vgpu.profile} on {vgpu.gpu}") for name, vgpu in vgpus.items())

    @query
    def instance_profiles(self, gpu: str) -> tuple[tuple[str, str], ...]:
        """Return a GPU's GPU instance profiles and how many of each there can be, read from NVML alone."""
        gpu_info = self._ports.nvml.gpu(normalize_pci(gpu) or gpu)
        profiles = gpu_info.mig.profiles if gpu_info is not None and gpu_info.mig is not None else ()
        return tuple((p.name, f"at most {p.max_instances}") for p in profiles)


def check_names() -> tuple[tuple[str, str], ...]:
    """Return the id and the title of each of the doctor's checks."""
    from vgpuctl import doctor

    return tuple((check.id, check.title) for check in doctor.CHECKS)
