# SPDX-License-Identifier: Apache-2.0
"""Handle the start or stop of one VM, for libvirt's hook.

`prepare begin` creates missing vGPUs, or refuses the start; `release end` releases what a VM reserves only while it
runs. libvirt shows the stderr of a failing hook as the reason why the VM did not start. So stderr is one line: what,
where, the numbers, and what helps. HEAD is the part of the XML that the shell script has read already.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from xml.etree import ElementTree

from vgpuctl.domain.record import FINISH_EXCHANGE, ROOT_TAG, UnfinishedExchange, find_hostdevs, parse_record
from vgpuctl.errors import Busy, HostCannot, InUse, NoCapacity, Refused, Temporary, VgpuctlError
from vgpuctl.host.absent import AbsentHypervisor, AbsentNvml, AbsentStorage
from vgpuctl.host.claim_store import RUN_DIR, ClaimStore
from vgpuctl.host.files import HostFiles, read_machine_id
from vgpuctl.host.operation_files import OperationFiles
from vgpuctl.host.processes import HostClock, HostProcesses
from vgpuctl.host.uninterruptible import UninterruptibleWriter
from vgpuctl.model import hint_commands
from vgpuctl.model.migration import MigrationMark, MigrationRole
from vgpuctl.model.outcome import Context, NoProgress, Subjects
from vgpuctl.model.vm import RecordState, Vm, VmRecord, VmState
from vgpuctl.observe.definition import refuse_changed_definition, refuse_missing_vgpus, removal_command
from vgpuctl.operations.devices import (
    DOMAIN_XML_DIRECTORY,
    has_missing_devices,
    make_devices,
    release_devices,
)
from vgpuctl.operations.guards import refuse_unfinished, require_writable
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

_UNAVAILABLE_REASON = "libvirt waits for its hook"

DEADLINE_SECONDS = 20.0
CONTEXT = Context(NoProgress(), wait_seconds=15.0, subjects=Subjects())
KEEP_REASONS = (["saved"], ["migrated"])
"""Stop reasons after which the VM keeps its device, to resume later or elsewhere (reported since libvirt 10.5)."""


def _open_real_host() -> Host:
    """Return this host without libvirt and NVML: libvirt waits for the hook, and NVML may load for seconds.

    Every libvirt call fails, and NVML returns nothing.
    """
    clock = HostClock()
    processes = HostProcesses("/")
    operations = OperationFiles(RUN_DIR, processes)
    claims = ClaimStore(RUN_DIR, processes, operations, clock=clock)
    return Host(
        name="local",
        sysfs=HostFiles("/", lock_held=lambda: claims.is_locked, writer=UninterruptibleWriter(claims, processes)),
        nvml=AbsentNvml(_UNAVAILABLE_REASON),
        hypervisor=AbsentHypervisor(_UNAVAILABLE_REASON),
        storage=AbsentStorage(_UNAVAILABLE_REASON),
        processes=processes,
        operations=operations,
        claims=claims,
        clock=clock,
        machine_id=read_machine_id("/") or "",
        new_uuid=_random_uuid,
    )


def _random_uuid() -> str:
    digits = os.urandom(16).hex()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-8{digits[17:20]}-{digits[20:]}"


def main(arguments: Sequence[str]) -> int:
    """Run the hook and return its exit status: 0 lets libvirt continue, anything else prevents the VM's start.

    `--simulated SCENARIO` in front is for tests. It is an argument and not an environment variable, so that no
    environment can redirect root's hook.
    """
    words = list(arguments)
    scenario = None
    if words[:1] == ["--simulated"]:
        scenario, words = words[1], words[2:]
    head, _, operation, *rest = words
    handler = _OPERATIONS.get(" ".join((operation, *rest[:1])))
    if handler is None or rest[1:2] in KEEP_REASONS:
        return 0
    try:
        set_deadline(DEADLINE_SECONDS)
        host = _open_host(scenario)
        try:
            handler(host, head + sys.stdin.read())
        finally:
            host.operations.end()
    except VgpuctlError as error:
        return _refuse(error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - a start with a wrong device is worse than no start
        return _refuse(f"{type(error).__name__}: {error}", "vgpuctl start-vm shows details")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _refuse(message: str, hint: str | None) -> int:
    line = f"vgpuctl: {message}; {hint}" if hint else f"vgpuctl: {message}"
    sys.stderr.write(f"{' '.join(line.split())}\n")
    return 1


def set_deadline(seconds: float) -> None:
    """Raise Temporary in this process when the time is over: libvirt itself would wait forever."""

    def raise_temporary(number: int, frame: FrameType | None) -> None:
        raise Temporary(f"the vGPU was not ready within {seconds:g} seconds", hint="start the VM again")

    signal.signal(signal.SIGALRM, raise_temporary)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _open_host(scenario: str | None) -> Host:
    if scenario is not None:
        from vgpuctl.simulated import open_simulated_host

        return open_simulated_host(scenario)
    return _open_real_host()


def prepare(host: Host, xml: str) -> None:
    """Create the missing vGPUs of the domain in `xml`; a domain without a record for this host is ignored.

    Raises:
        VgpuctlError: the reason why the VM cannot have them now.
    """
    vm = parse_vm(xml, host.machine_id)
    if vm is None:
        return
    _refuse_vgpus_of_others(host, vm)
    if vm.record is None:
        return
    mark = vm.record.migration
    is_incoming = mark is not None and mark.role is MigrationRole.INCOMING  # libvirt starts it to take its memory in
    if vm.record.state is RecordState.REMOVING or (mark is not None and not is_incoming):
        refuse_unfinished(vm, vm.record)
    if mark is not None:
        _refuse_without_place(host, vm, vm.record, mark)
    refuse_changed_definition(vm, vm.record)
    refuse_missing_vgpus(vm, vm.record)
    if not has_missing_devices(host, vm, vm.record):
        return
    require_writable(host, CONTEXT)
    try:
        others = () if vm.record.always_reserves else _other_vms(host, vm)
        make_devices(host, CONTEXT, vm, vm.record, (vm, *others))
    except (HostCannot, NoCapacity) as error:
        raise _with_whole_gpu_user(host, vm, vm.record, error) from error


def release(host: Host, xml: str) -> None:
    """Release what the domain in `xml` holds and reserves only while it runs.

    Raises:
        VgpuctlError: a device could not be removed; vgpuctl reconcile-host removes it later.
    """
    vm = parse_vm(xml, host.machine_id)
    if vm is None or vm.record is None or not vm.record.reserve_while_running:
        return
    try:
        release_devices(host, CONTEXT, vm, vm.record)
    except Busy:
        return  # the process that works on the VM releases it


_OPERATIONS = {"prepare begin": prepare, "release end": release}


def _refuse_vgpus_of_others(host: Host, vm: Vm) -> None:
    """Refuse to start a VM that names a vGPU of another VM, as a clone of it does.

    Raises:
        InUse: with the other VM.
    """
    record = vm.record
    own = set() if record is None else {v.carrier for v in record.vgpus}
    named = {h.carrier for h in vm.hostdevs} - own
    if not named:
        return
    claimed = {c.carrier: c.vm_uuid for c in host.claims.read(frozenset(named)).claims}
    for other in _other_vms(host, vm):
        if other.record is None:
            continue
        for vgpu in other.record.vgpus:
            holds = claimed.get(vgpu.carrier) == other.uuid or other.record.reserves_slot(vgpu)
            if vgpu.carrier in named and holds:
                raise InUse(
                    f"{vgpu.carrier} is the vGPU of VM {other.name}, and {vm.name} names it too",
                    hint=removal_command(vm, vgpu.carrier),
                )


def _refuse_without_place(host: Host, vm: Vm, record: VmRecord, mark: MigrationMark) -> None:
    """Refuse memory from another host for which nothing is ready here, or no longer: its vGPUs may be another VM's now.

    Raises:
        Refused: nothing is.
    """
    ready = replace(record, migration=replace(mark, role=MigrationRole.ARRIVING))
    if not any(one.uuid == vm.uuid and one.record == ready for one in _defined_vms(host)):
        raise Refused(f"nothing is ready on this host for {vm.name} from {mark.peer}", hint="begin the move again")


def _other_vms(host: Host, vm: Vm) -> tuple[Vm, ...]:
    """Return the other VMs with a record: slots that they always keep are not free."""
    return tuple(other for other in _defined_vms(host) if other.uuid != vm.uuid)


def _defined_vms(host: Host) -> Iterator[Vm]:
    """Yield the VMs with a record, from libvirt's own files.

    The vGPUs in a file that cannot be parsed are known only by their claims or devices.
    """
    for xml in _domain_files(host):
        with contextlib.suppress(ValueError, VgpuctlError):
            vm = parse_vm(xml, host.machine_id)
            if vm is not None:
                yield vm


def _domain_files(host: Host) -> Iterator[str]:
    """Yield the definition of each VM from libvirt's own files, except those that cannot be read."""
    names: tuple[str, ...] = ()
    with contextlib.suppress(FileNotFoundError):
        names = host.sysfs.listdir(DOMAIN_XML_DIRECTORY)
    for name in (n for n in names if n.endswith(".xml")):
        with contextlib.suppress(OSError):
            yield host.sysfs.read(f"{DOMAIN_XML_DIRECTORY}/{name}")


def _with_whole_gpu_user(host: Host, vm: Vm, record: VmRecord, error: VgpuctlError) -> VgpuctlError:
    """Return the error with the VM whose definition has all of a GPU that carries a vGPU of `vm`, if there is one."""
    gpus = {v.gpu for v in record.vgpus} - {v.carrier for v in record.vgpus}
    for xml in _domain_files(host):
        with contextlib.suppress(ElementTree.ParseError):
            root = ElementTree.fromstring(xml)  # noqa: S314 - libvirt wrote it
            user = Vm(root.findtext("name") or "", "", VmState.UNKNOWN, 0, 0, hostdevs=find_hostdevs(root))
            gpu = next((h.carrier for h in user.hostdevs if h.carrier in gpus), None)
            if gpu is not None:
                text = f"{error.message}; the definition of VM {user.name} has all of {gpu}"
                hint = f"{hint_commands.stop_command(user)}; {removal_command(user, gpu)}; then {error.hint}"
                return InUse(text, hint=hint, vm=user.name, gpu=gpu)
    return error


def parse_vm(xml: str, machine_id: str) -> Vm | None:
    """Return what the hook needs of a domain: its names, devices and record. None: it has no vgpuctl record.

    A record that names another VM or host is a copy and only becomes `copied_record`, as everywhere.

    Raises:
        VgpuctlError: the record cannot be parsed.
    """
    try:
        root = ElementTree.fromstring(xml)  # noqa: S314 - libvirt wrote it
        element = root.find(f"metadata/{ROOT_TAG}")
        if element is None:
            return None
        record = parse_record(element)
    except (ElementTree.ParseError, ValueError) as error:
        newer = "a newer vgpuctl may have written it; vgpuctl show-vm shows details"
        raise VgpuctlError(
            f"the VM's record cannot be read: {error}",
            hint=FINISH_EXCHANGE if isinstance(error, UnfinishedExchange) else newer,
        ) from error
    uuid = (root.findtext("uuid") or "").strip().lower()
    vm = Vm(root.findtext("name") or "", uuid, VmState.UNKNOWN, 0, 0, hostdevs=find_hostdevs(root))
    own = record.vm_uuid == uuid and record.machine_id == machine_id
    return replace(vm, record=record) if own else replace(vm, copied_record=record)
