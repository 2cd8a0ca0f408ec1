# SPDX-License-Identifier: Apache-2.0
"""Examine a host: gather what the chosen checks examine, run them, and fix what is safe to fix.

Everything is read through the ports, and nothing raises because it could not be read: a check without its data is
`unknown`, with the reason. Each file is read once, however many checks use it. Data that costs a command or a scan of
every process (logs, holders) is gathered only for checks that need it, on hosts with NVIDIA GPUs.

Size: what the checks examine has a function for each source, which is most of this file.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vgpuctl.config.host_spec import FORMAT_VERSION, BootSpec, GpuSpec, HostSpec
from vgpuctl.config.vm_request import request_of_record
from vgpuctl.doctor import find_explaining_checks, select_checks
from vgpuctl.doctor.check import (
    NVIDIA_SERVICES,
    Check,
    CheckContext,
    DisplacedVm,
    FileContent,
    Finding,
    FolderListing,
    Leftover,
    PathsToRead,
    Verdict,
    unknown,
    worst_verdict,
)
from vgpuctl.errors import FileFailed, VerifyFailed, VgpuctlError, named_message
from vgpuctl.gpu.offered_profiles import can_offer
from vgpuctl.gpu_setup.sriov import list_driver_nodes
from vgpuctl.makers import maker_of, uses_nvml
from vgpuctl.model.gpu import Gpu, GpuMode
from vgpuctl.model.hint_commands import start_command
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.port_values import DeviceUser, FilePermissions, HypervisorCapabilities
from vgpuctl.model.results.host import CheckResult, DoctorFindingResult, DoctorResult, RestoreResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.usage import NVML_SOURCE
from vgpuctl.model.vm import Vm, VmRecord, VmState
from vgpuctl.observe import ReadScope, observe, observe_devices
from vgpuctl.observe.host_file import read_host_file, read_host_spec
from vgpuctl.observe.licenses import read_all_licenses
from vgpuctl.observe.pci import find_absent
from vgpuctl.operations.devices import find_displaced
from vgpuctl.operations.execute import execute_plan
from vgpuctl.operations.guards import require_system_libvirt, require_writable
from vgpuctl.operations.nvml_types import read_vgpu_types, resolve_mig_spec
from vgpuctl.operations.plans.devices import without_displaced
from vgpuctl.operations.plans.host_diff import describe_unapplied_settings
from vgpuctl.operations.plans.reserve import choose_slots
from vgpuctl.operations.reconcile import find_problems, reconcile
from vgpuctl.operations.restore import restore_host
from vgpuctl.operations.usage import targets_of
from vgpuctl.placement.constraints import match_gpus
from vgpuctl.ports.host import Host
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace

CheckResults = tuple[tuple[Check, Finding], ...]
LEFTOVERS_CHECK, RUN_DIRECTORY_CHECK = "leftovers", "run-directory"
RESTORABLE_CHECKS = ("partition", "kept-vgpus", "lost-vgpus")
"""The checks whose problems `restore-host` fixes where it safely can: it stops no VM."""
BAD_VERDICTS = (Verdict.FAIL, Verdict.WARN)
NOTHING_TO_FIX = "--fix cannot fix any of this; each check shows what to do"
KERNEL_LOG_MARKS = ("NVRM", "nvidia-vgpu-vfio")
"""What marks the lines of nvidia.ko and of nvidia-vgpu-vfio.ko in the kernel's log."""
RUN_PATH = "/run/vgpuctl"
PRIVATE_MODE = 0o700


def diagnose(host: Host, ids: tuple[str, ...] = ()) -> DoctorResult:
    """Return the verdict on a host with every finding. Changes nothing.

    Raises:
        NotFound: no check has that id.
    """
    return _report_data(_examine_host(host, select_checks(ids)))


def fix_problems(host: Host, context: Context, ids: tuple[str, ...]) -> Outcome[DoctorResult]:
    """Examine, ask, fix, examine again: the problems that reconcile and restore-host fix, and the run directory's mode.

    Raises:
        NotFound: no check has that id.
        NeedsConfirmation: the answer is no, or there is no terminal.
        VgpuctlError: as reconcile and restore-host.
    """
    require_writable(host, context)
    results = _examine_host(host, select_checks(ids))
    data = _report_data(results)
    verdicts = {check.id: finding.verdict for check, finding in results}
    directory_steps = _run_directory_steps(host) if verdicts.get(RUN_DIRECTORY_CHECK) is Verdict.FAIL else ()
    planned = [
        (fix, fix(host, replace(context, dry_run=True)))
        for fix, checks in ((reconcile, (LEFTOVERS_CHECK,)), (_restore_now, RESTORABLE_CHECKS))
        if any(verdicts.get(name) is Verdict.WARN for name in checks)
    ]
    steps = (*(step.describe() for step in directory_steps), *(step for _, plan in planned for step in plan.steps))
    warnings = tuple(warning for _, plan in planned for warning in plan.warnings)
    if context.dry_run or not steps:
        return Outcome(bool(steps), data, steps, warnings, () if steps else (NOTHING_TO_FIX,), dry_run=context.dry_run)
    context.confirm("Fix this?", steps)
    done = [step.describe() for step in directory_steps]
    if directory_steps:
        execute_plan(host, Plan(directory_steps), context.progress)
    for fix, plan in planned:
        if plan.steps:
            done += fix(host, context).steps
    return Outcome(bool(done), diagnose(host, ids), tuple(done), warnings)


def _restore_now(host: Host, context: Context) -> Outcome[RestoreResult]:
    """Create again what a boot or a restart of the VFs removed, as restore-host does; unlike at boot, wait for no GPU.

    Raises:
        InvalidInput: host.yaml cannot be parsed.
        VgpuctlError: as `restore_host`.
    """
    spec = read_host_spec(host) or HostSpec(FORMAT_VERSION)
    without_wait = replace(spec, boot=BootSpec(deadline_seconds=0))
    return restore_host(host, context, without_wait)


def _run_directory_steps(host: Host) -> tuple[RestrictRunDirectory, ...]:
    """Return the step that makes the run directory private; none if another user owns it: an admin must check that."""
    permissions = host.sysfs.permissions(RUN_PATH)
    return () if permissions.owner else (RestrictRunDirectory(permissions.mode),)


def _examine_host(host: Host, checks: tuple[Check, ...]) -> CheckResults:
    return tuple(zip(checks, run_checks(gather_check_context(host, checks), checks), strict=True))


def _report_data(results: CheckResults) -> DoctorResult:
    verdict = worst_verdict(finding for _, finding in results)
    return DoctorResult(verdict, tuple(_check_result(check, finding) for check, finding in results))


def explain_failure(host: Host, code: str, check_fact: str | None) -> list[DoctorFindingResult]:
    """Return the problems reported by the checks that may explain an error: id, verdict, evidence, fix.

    libvirt's VMs are listed only for an error that came after listing them: listing waits for a busy domain.
    """
    checks = tuple(c for c in find_explaining_checks(code, check_fact) if code == "no-capacity" or not c.needs_vms)
    return [
        DoctorFindingResult(c.id, f.verdict, f.evidence, f.fix)
        for c, f in _examine_host(host, checks)
        if f.verdict in BAD_VERDICTS
    ]


def run_checks(context: CheckContext, checks: Iterable[Check]) -> tuple[Finding, ...]:
    """Run each check; one that raises is unknown and stops no other."""
    return tuple(_run_check(context, check) for check in checks)


def _run_check(context: CheckContext, check: Check) -> Finding:
    try:
        return check.run(context)
    except Exception as error:  # noqa: BLE001 - a host may show anything, and the other checks must still be reported
        return unknown(f"the check failed: {type(error).__name__}: {error}", fix="this is a bug in vgpuctl")


def _check_result(check: Check, finding: Finding) -> CheckResult:
    return CheckResult(
        id=check.id,
        title=check.title,
        looks_at=check.looks_at.replace("`", ""),
        verdict=finding.verdict,
        evidence=finding.evidence,
        fix=finding.fix,
        explains=check.explains,
    )


class RestrictRunDirectory(Step):
    """Remove all permissions on /run/vgpuctl but root's. `previous_mode`: its mode before."""

    previous_mode: int

    def describe(self) -> str:
        """Say the old and the new mode."""
        return f"change the mode of {RUN_PATH} from {self.previous_mode:04o} to {PRIVATE_MODE:04o}"

    def perform(self, host: Host) -> None:
        """Change it."""
        self._set(host, PRIVATE_MODE)

    def verify(self, host: Host) -> None:
        """Read it back."""
        mode = host.sysfs.permissions(RUN_PATH).mode
        if mode != PRIVATE_MODE:
            raise VerifyFailed(
                f"{RUN_PATH} has mode {mode:04o}, not {PRIVATE_MODE:04o}",
                hint=f"findmnt -T {RUN_PATH}",
                path=RUN_PATH,
                mode=f"{mode:04o}",
            )

    def undo(self, host: Host) -> None:
        """Restore the mode unless somebody else changed it meanwhile."""
        if host.sysfs.permissions(RUN_PATH).mode == PRIVATE_MODE:
            self._set(host, self.previous_mode)

    def _set(self, host: Host, mode: int) -> None:
        try:
            host.claims.set_permissions(mode)
        except OSError as error:
            raise FileFailed(
                f"the mode of {RUN_PATH} cannot be changed: {error.strerror or error}",
                hint="run it as root",
                path=RUN_PATH,
                errno=error.errno,
            ) from error


def gather_check_context(host: Host, checks: tuple[Check, ...]) -> CheckContext:
    """Gather what these checks examine."""
    snapshot, problem = _snapshot(host, checks)
    needs = [c.paths for c in checks]
    if snapshot is not None:
        needs += [c.find_paths(snapshot) for c in checks if c.find_paths is not None]
    leftovers, leftovers_problem = _find_leftovers(host, snapshot, problem, checks)
    capabilities, capabilities_problem = _capabilities(host, snapshot, problem, checks)
    configs = {path: _list_folder(host, path) for path in dict.fromkeys(p for n in needs for p in n.configs)}
    conf_paths = [
        f"{folder}/{name}"
        for folder, listing in configs.items()
        for name in listing.names or ()
        if name.endswith(".conf")
    ]
    nvidia = _collect_nvidia(host, snapshot, checks)
    host_file = read_host_file(host)
    return CheckContext(
        snapshot=snapshot,
        problem=problem,
        files={
            path: _read_text(host, path) for path in dict.fromkeys([*(p for n in needs for p in n.files), *conf_paths])
        },
        folders={**{path: _list_folder(host, path) for n in needs for path in n.folders}, **configs},
        permissions=_permissions(host, needs),
        leftovers=leftovers,
        leftovers_problem=leftovers_problem,
        capabilities=capabilities,
        capabilities_problem=capabilities_problem,
        claims_problem=_claims_problem(host),
        host_file_hint=host_file.hint or "",
        displaced=_find_displaced(host, snapshot) if any(c.needs_types and c.needs_vms for c in checks) else (),
        absent_gpus=find_absent(host.sysfs, host_file.addresses),
        now=host.clock.now(),
        licenses=read_all_licenses(host) if any(c.needs_licenses for c in checks) else (),
        **nvidia,
    )


def _find_displaced(host: Host, snapshot: Snapshot | None) -> tuple[DisplacedVm, ...]:
    """Return the VMs that are off and need another slot; the first one with the command that gives it one.

    A VM that reserves its slots only while it runs gets another one at each start, unless it may be on no other GPU, or
    none offers its profile.
    """
    displaced: list[DisplacedVm] = []
    for vm in snapshot.vms if snapshot is not None else ():
        if snapshot is None or vm.record is None or vm.state is not VmState.STOPPED:
            continue
        names = request_of_record(vm.record.request_fields).gpu
        may_be_here = not names or any(match_gpus(snapshot.gpus, n) for n in names)
        if vm.record.reserve_while_running and may_be_here and _is_offered(snapshot, vm.record):
            continue
        reasons = find_displaced(host, snapshot, vm.record)
        if reasons:
            fix = None if displaced else _placing_command(snapshot, vm, vm.record, frozenset(reasons))
            displaced.append(DisplacedVm(vm.name, next(iter(reasons.values())), fix))
    return tuple(displaced)


def _is_offered(snapshot: Snapshot, record: VmRecord) -> bool:
    """Return whether some GPU may offer each profile of a record."""
    profiles = {v.profile for v in record.vgpus if v.profile is not None}
    return all(any(can_offer(gpu, profile) is not False for gpu in snapshot.gpus) for profile in profiles)


def _placing_command(snapshot: Snapshot, vm: Vm, record: VmRecord, displaced: frozenset[str]) -> str | None:
    try:
        choose_slots(*without_displaced(snapshot, vm, record, displaced))
    except VgpuctlError as error:
        return error.hint
    return start_command(vm)


def _collect_nvidia(host: Host, snapshot: Snapshot | None, checks: tuple[Check, ...]) -> dict[str, Any]:
    """Return the data gathered only on hosts with NVIDIA GPUs, by the field names of `CheckContext`."""
    gpus = [g for g in snapshot.gpus if maker_of(g).has_nvml] if snapshot is not None else []
    data: dict[str, Any] = {}
    if not gpus:
        return data
    if any(c.needs_logs for c in checks) and host.system_log is not None:
        data["kernel_log"] = host.system_log.kernel_lines(*KERNEL_LOG_MARKS)
        data["service_logs"] = {name: host.system_log.service_lines(name) for name in NVIDIA_SERVICES}
    if any(c.needs_holders for c in checks):
        data["holders"], data["holders_problem"] = _holders(host)
    if any(c.needs_ecc for c in checks):
        ecc_states = {g.address: host.nvml.ecc(g.address) for g in gpus if uses_nvml(g)}
        data["ecc"] = {address: ecc for address, ecc in ecc_states.items() if ecc is not None}
    if any(c.needs_guests for c in checks):
        guest_states = {g.address: host.nvml.guests(g.address) for g in gpus if uses_nvml(g)}
        data["guests"] = {address: guests for address, guests in guest_states.items() if guests is not None}
    if snapshot is not None and any(c.needs_usage for c in checks) and host.usage is not None:
        targets = (target for target in targets_of(snapshot) if target.source == NVML_SOURCE)
        data["usage"] = host.usage.read(tuple(targets), ())
    if any(c.needs_partitions for c in checks):
        data["partition_drift"] = {g.address: _drift(host, g) for g in gpus}
        data["instance_types"] = {
            g.address: read_vgpu_types(host, g) for g in gpus if g.mig is not None and g.mig.enabled
        }
    return data


def _holders(host: Host) -> tuple[tuple[DeviceUser, ...] | None, str]:
    """Return who has NVIDIA's driver open, or why that is unknown."""
    try:
        return host.processes.find_holders(list_driver_nodes(host)), ""
    except OSError as error:
        return None, f"{error.filename or '/proc'}: {error.strerror or error}"


def _drift(host: Host, gpu: Gpu) -> tuple[str, ...]:
    """Return how MIG and mixed sizes of a GPU differ from host.yaml, one sentence for each difference."""
    if gpu.desired_mode not in (None, GpuMode.VGPU):
        return ()
    try:
        desired = GpuSpec(mig=resolve_mig_spec(host, gpu, gpu.desired_mig), mixed_size=gpu.desired_mixed_size)
    except VgpuctlError as error:
        return (named_message(gpu.address, error.message),)
    return tuple(describe_unapplied_settings(gpu, desired))


def _snapshot(host: Host, checks: tuple[Check, ...]) -> tuple[Snapshot | None, str]:
    scope = ReadScope(types=any(c.needs_types for c in checks), every_function=False)
    try:
        if any(c.needs_vms for c in checks):
            return observe(host, scope), ""
        return observe_devices(host, scope, vms=(), status=host.hypervisor.status()), ""
    except (VgpuctlError, OSError) as error:
        return None, f"the host cannot be inspected: {error}"


def _find_leftovers(
    host: Host, snapshot: Snapshot | None, problem: str, checks: tuple[Check, ...]
) -> tuple[tuple[Leftover, ...] | None, str]:
    """Ask reconcile what it would do; without this host's own VMs everything would look leaked."""
    if snapshot is None or not any(c.needs_leftovers for c in checks):
        return None, problem
    if not snapshot.hypervisor.available:
        return None, snapshot.hypervisor.reason or "libvirt does not answer"
    try:
        require_system_libvirt(snapshot)
        return tuple(Leftover(f.kind, f.what, f.action) for f in find_problems(host, snapshot)), ""
    except (VgpuctlError, OSError) as error:
        return None, str(error)


def _capabilities(
    host: Host, snapshot: Snapshot | None, problem: str, checks: tuple[Check, ...]
) -> tuple[HypervisorCapabilities | None, str]:
    if snapshot is None or not any(c.needs_capabilities for c in checks):
        return None, problem
    if not snapshot.hypervisor.available:
        return None, snapshot.hypervisor.reason or "libvirt does not answer"
    try:
        return host.hypervisor.capabilities(), ""
    except VgpuctlError as error:
        return None, str(error)


def _claims_problem(host: Host) -> str | None:
    """Return why the claims cannot be read, for example without root."""
    try:
        host.claims.read(frozenset())
        host.claims.stuck_writes()
    except OSError as error:
        return f"{error.filename or '/run/vgpuctl'}: {error.strerror or error}"
    return None


def _read_text(host: Host, path: str) -> FileContent:
    try:
        return FileContent(host.sysfs.read(path))
    except (FileNotFoundError, NotADirectoryError):
        return FileContent()
    except OSError as error:
        return FileContent(problem=f"{path}: {error.strerror or error}")


def _list_folder(host: Host, path: str) -> FolderListing:
    try:
        return FolderListing(host.sysfs.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return FolderListing()
    except OSError as error:
        return FolderListing(problem=f"{path}: {error.strerror or error}")


def _permissions(host: Host, needs: list[PathsToRead]) -> dict[str, FilePermissions]:
    result: dict[str, FilePermissions] = {}
    for path in dict.fromkeys(p for n in needs for p in n.permissions):
        try:
            result[path] = host.sysfs.permissions(path)
        except OSError:
            continue
    return result
