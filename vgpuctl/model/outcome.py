# SPDX-License-Identifier: Apache-2.0
"""How a command works for its caller, what it did, and which VMs and GPUs it concerned.

These are values that the CLI prints as text or as JSON, and the VMs and GPUs that a call changes, for its audit entry,
as the call and its operations say it themselves: what the caller named, what a transaction claimed, took over, noted or
shut down, and what the result or the error names. So a stopped VM counts whose vGPU is removed and created again, and a
GPU does not stand for the VMs on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from vgpuctl.model.caller import Caller
from vgpuctl.model.desktop import FleetRequest, HostFence
from vgpuctl.model.names import address_sort_key, normalize_pci
from vgpuctl.model.vm import GPU_SETUP_CLAIM, HOST_VGPU_CLAIM_PREFIX, Claim
from vgpuctl.value import Value

Data = TypeVar("Data", covariant=True)
OtherData = TypeVar("OtherData")

DEFAULT_WAIT_SECONDS = 60.0
VMS_UNKNOWN = "VMs are unknown"
"""The beginning of the warning of a look that libvirt did not answer: no VM in its result means nothing."""


class Outcome(Value, Generic[Data]):
    """The result of a changing command, or of its dry run.

    `data`: a record of `model.results`. `steps`: the plan's lines; with `changed` they were executed, in a dry run they
    would be. `notes` are for people only ("its disk is empty"), `warnings` also for programs.
    """

    changed: bool
    data: Data
    steps: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    dry_run: bool = False


def with_data(outcome: Outcome[object], data: OtherData) -> Outcome[OtherData]:
    """Return an outcome with other data."""
    return Outcome(outcome.changed, data, outcome.steps, outcome.warnings, outcome.notes, outcome.dry_run)


class QueryResult(Value, Generic[Data]):
    """The result of a command without steps: `data` is the record of the JSON `data`, several for list-commands.

    `changed`: only commands on simulated hosts change something without steps.
    """

    data: Data
    warnings: tuple[str, ...] = ()
    changed: bool = False
    notes: tuple[str, ...] = ()


AnyResult = Outcome[object] | QueryResult[object]
"""What any call returns."""


class Progress(Protocol):
    """Receives the progress of an operation; implementations print it or do nothing."""

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Receive the steps that are about to run."""

    def on_step_start(self, number: int, text: str) -> None:
        """Step `number` (from 1) starts."""

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Step `number` is done to this part; called at least once a second by a step that copies.

        Raises:
            Interrupted: the step is to stop.
        """

    def on_step_finish(self, number: int, text: str) -> None:
        """Step `number` is done and was read back."""

    def on_step_undo(self, text: str) -> None:
        """A step is undone."""

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """`done` of `total` VMs are finished, and `failed` of them failed; `text` names the latest one."""

    def on_wait(self) -> None:
        """The work waits, for VMs that are created at once or for a guest; called about twice a second.

        Raises:
            Interrupted: the work is to stop.
        """


class Confirm(Protocol):
    """Asks the user for confirmation before something is lost, or before VMs are shut down that the user did not name.

    An operation that asks only in some cases calls it in the others with an empty question: a batch checks all of its
    targets before it asks once for all. Callers of the library get no empty question.
    """

    def __call__(self, question: str, details: tuple[str, ...]) -> None:
        """Return when the answer is yes, or nothing is asked.

        Raises:
            NeedsConfirmation: the answer is no, or there is nobody to ask.
        """


def confirm_everything(question: str, details: tuple[str, ...]) -> None:
    """Answer yes: a program that calls the library means what it calls."""


class NoProgress:
    """Progress that shows nothing."""

    def on_plan(self, steps: tuple[str, ...]) -> None:
        """Do nothing."""

    def on_step_start(self, number: int, text: str) -> None:
        """Do nothing."""

    def on_step_progress(self, number: int, text: str, percent: float) -> None:
        """Do nothing."""

    def on_step_finish(self, number: int, text: str) -> None:
        """Do nothing."""

    def on_step_undo(self, text: str) -> None:
        """Do nothing."""

    def on_vm_finish(self, done: int, total: int, failed: int, text: str) -> None:
        """Do nothing."""

    def on_wait(self) -> None:
        """Do nothing."""


class Context(Value):
    """How an operation works for its caller: what the library hands to each, and what an operation hands on.

    `wait_seconds`: for another vgpuctl, a busy device, a guest that shuts down. `subjects`: gets the VMs and GPUs that
    the operation changes, for the audit entry. `dry_run`: it only plans. `confirm` is asked before something is lost.
    `caller`: for whom it works, who may change only some VMs; None: for root. `if_generation`: the generation that the
    VM's record must have until the operation itself changes it; None: any. `fleet`: a controller asks, and `fence`
    says whether the host still obeys it; None: there is no agent. `protects_desktops`: only a controller
    may change a desktop of a pool.
    """

    progress: Progress
    wait_seconds: float
    subjects: Subjects
    dry_run: bool = False
    confirm: Confirm = confirm_everything
    caller: Caller | None = None
    if_generation: int | None = None
    fleet: FleetRequest | None = None
    fence: HostFence | None = None
    protects_desktops: bool = False

    @property
    def account(self) -> str | None:
        """The account that asks, which a VM that it makes belongs to; None: root asks, whose VMs have none."""
        return None if self.caller is None else self.caller.recorded_account


class Subjects:
    """What one call changes, or tries to. `vms` and `gpus` are sorted. Its threads share it.

    `spec`: the fields of the spec file that it read, as the command line and the file give them; None: it read none.
    """

    def __init__(self) -> None:
        self.spec: Mapping[str, object] | None = None
        self._names: dict[str, str] = {}
        self._vms: set[str] = set()
        self._gpus: set[str] = set()

    @property
    def vms(self) -> tuple[str, ...]:
        """The names of the VMs; what the caller typed for one that was never found."""
        return tuple(sorted({self._names.get(text, text) for text in self._vms}))

    @property
    def gpus(self) -> tuple[str, ...]:
        """The addresses of the GPUs."""
        return tuple(sorted(self._gpus, key=address_sort_key))

    def add_vms(self, names: Iterable[str]) -> None:
        """Add VMs that the caller named, by name or uuid."""
        self._vms.update(names)

    def add_vm(self, name: str, uuid: str) -> None:
        """Add a VM that an operation works on; its uuid, if the caller typed that, means the same VM."""
        if _is_vm(name):
            self._names[uuid] = name
            self._vms.add(name)

    def add_gpu(self, text: str) -> None:
        """Add a GPU that the caller or an operation names; a model is not an address."""
        address = normalize_pci(text)
        if address is not None:
            self._gpus.add(address)

    def add_claims(self, claims: Iterable[Claim]) -> None:
        """Add the VM and the GPU of each claim that an operation writes, takes over or removes."""
        for claim in claims:
            self.add_vm(claim.vm, claim.vm_uuid)
            self._gpus.add(claim.gpu)

    def add_error(self, facts: Mapping[str, object]) -> None:
        """Add the VM and the GPU that an error names, and the VMs that could not leave a GPU."""
        stays, gpu = facts.get("stays"), facts.get("gpu")
        for vm in (facts.get("vm"), *(stays if isinstance(stays, list) else ())):
            if isinstance(vm, str) and _is_vm(vm):
                self._vms.add(vm)
        if isinstance(gpu, str):
            self.add_gpu(gpu)

    def add_result(self, data: object) -> None:
        """Add the VMs and GPUs of a result: of a VM and its vGPUs, of several VMs, of a GPU, or of moves."""
        for record in _records(data):
            if hasattr(record, "address"):  # a GPU, with others' vGPUs on it
                self._gpus.add(str(record.address))
            elif hasattr(record, "from_gpu"):  # a move
                self._vms.add(str(record.vm))
                self._gpus |= {str(record.from_gpu), str(record.to_gpu)}
            elif hasattr(record, "vgpus"):
                self._vms.add(str(record.name))
                self._gpus.update(str(vgpu.gpu) for vgpu in record.vgpus)
            elif hasattr(record, "carrier"):  # a vGPU without a VM
                self._gpus.add(str(record.gpu))


def _is_vm(holder: str) -> bool:
    """Return whether a claim's holder is a VM: not the setup of a GPU, and not a vGPU without a VM."""
    return holder != GPU_SETUP_CLAIM and not holder.startswith(HOST_VGPU_CLAIM_PREFIX)


def _records(data: object) -> Iterator[Any]:
    """Yield the records that a result consists of: one, or those of several VMs, GPUs or moves."""
    for target in getattr(data, "targets", ()):
        yield from _records(target.data)
    several = getattr(data, "vms", None) or getattr(data, "moves", None)
    if isinstance(several, tuple):
        yield from several
    elif data is not None and hasattr(data, "__dict__"):
        yield data


def never_cancelled() -> bool:
    """Return False."""
    return False


class CallSettings(Value):
    """How calls work. `wait_seconds`: for another vgpuctl, a busy device, a guest that shuts down.

    `confirm` is called before something is lost. `cancelled` is called before each step; if it returns True, the work
    stops and is undone. `command_line` is written to the audit journal; None: the process's own. `batch_subjects`: the
    call is part of a batch, which has one entry, and this is what the batch changes; None: the call has its own entry.
    `caller`: for whom the calls work; None: for the user that runs this process. `files`: the texts of files that a
    caller elsewhere names, by path; None: they are read on this machine. `if_generation`: as of `Context`, for a call
    that changes one VM. `fleet`, `fence`: as of `Context`. `override_controller`: calls about one VM change a desktop
    of a pool, too, as those about the whole host do. `request_key`: the Idempotency-Key of the one change that follows;
    None: each request has a new one.
    """

    wait_seconds: float = DEFAULT_WAIT_SECONDS
    progress: Progress = NoProgress()
    confirm: Confirm = staticmethod(confirm_everything)
    cancelled: Callable[[], bool] = staticmethod(never_cancelled)
    command_line: tuple[str, ...] | None = None
    batch_subjects: Subjects | None = None
    files: Mapping[str, str] | None = None
    caller: Caller | None = None
    if_generation: int | None = None
    fleet: FleetRequest | None = None
    fence: HostFence | None = None
    override_controller: bool = False
    request_key: str | None = None
