# SPDX-License-Identifier: Apache-2.0
"""Calls about the host as a whole: host.yaml, what a crash left, checks, and what is installed on it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import DEFAULT_LOG_LINES, MAX_LOG_LINES, MAX_UNDO, as_texts, require_range
from vgpuctl.errors import InvalidInput, NotFound, PartlyApplied
from vgpuctl.library.call import Calls, change, query
from vgpuctl.library.fields import Texts
from vgpuctl.library.text_file import display_name, read_given_text, read_text
from vgpuctl.model.outcome import Outcome

if TYPE_CHECKING:
    from vgpuctl.config.import_formats import ImportedConfig
    from vgpuctl.errors import VgpuctlError
    from vgpuctl.model.outcome import QueryResult
    from vgpuctl.model.results.deleted_disks import DeletedDiskResult, PurgedResult, RestoredDiskResult
    from vgpuctl.model.results.host import (
        DoctorFindingResult,
        DoctorResult,
        HostDifferenceResult,
        HostTextResult,
        ImportedResult,
        ImportedVmsResult,
        InstalledResult,
        LogEntryResult,
        MonitoringFileResult,
        ReconcileResult,
        RestoreResult,
        UninstalledResult,
    )
    from vgpuctl.model.results.usage import UsageResult
    from vgpuctl.model.usage import ProcessUse
    from vgpuctl.operations.desired_state import DesiredState, HostFileText
    from vgpuctl.ports.host import Host


class HostCalls(Calls):
    """Calls about the host as a whole. Each raises VgpuctlError when it fails."""

    @change("apply")
    def apply(
        self,
        *,
        file: str | None = None,
        sets: Texts = (),
        undo: int | None = None,
        drain: bool = False,
        dry_run: bool = False,
    ) -> Outcome[HostDifferenceResult]:
        """Change this host to match host.yaml, or `file` (`-`: standard input), which then replaces host.yaml.

        `sets`: changes like `gpus[A100].cordoned=true`, made first. `undo`: go back this many versions of host.yaml.
        """
        from vgpuctl.operations import apply

        desired = self._desired_state(file, sets, undo)
        return apply.apply_host(self._ports, self._context(dry_run=dry_run), desired, drain=drain)

    @query
    def diff(self, *, file: str | None = None, sets: Texts = (), drain: bool = False) -> Outcome[HostDifferenceResult]:
        """Return what `apply` would do; `changed` says whether something differs."""
        from vgpuctl.operations import apply

        desired = self._desired_state(file, sets, None)
        return apply.diff_host(self._ports, desired, drain=drain)

    def _desired_state(self, file: str | None, sets: Texts, undo: int | None) -> DesiredState:
        from vgpuctl.operations import desired_state

        if undo is not None and file is not None:
            raise InvalidInput("undo and file cannot be combined: a saved version is a file already")
        text = None if file is None else self._read_host_file(file)
        if undo is not None:
            require_range("undo", undo, 1, MAX_UNDO)
            text = desired_state.read_previous_version(self._ports, undo)
        return desired_state.read_desired_state(self._ports, text, as_texts("sets", sets))

    def _read_host_file(self, file: str) -> HostFileText:
        from vgpuctl.operations.desired_state import HostFileText

        return HostFileText(read_given_text(self._ports, file, "host.yaml"), display_name(file))

    @query
    def top(self) -> QueryResult[UsageResult]:
        """Return how much of each GPU and each vGPU is used now; through the host agent, when it read that last."""
        from vgpuctl.operations import usage

        return usage.read_usage(self._ports)

    @query
    def guest_processes(self, name: str) -> QueryResult[tuple[ProcessUse, ...]]:
        """Return the processes in a VM that use its vGPUs now; `pid` and `name` are the guest's."""
        from vgpuctl.operations import usage

        return usage.read_processes(self._ports, self._context(), name)

    @query
    def export_host(self) -> QueryResult[HostTextResult]:
        """Return the text of a host.yaml that describes this host."""
        from vgpuctl.operations import desired_state

        return desired_state.export_host(self._ports)

    @query
    def monitoring(self, name: str, *, targets: Texts = ()) -> QueryResult[MonitoringFileResult]:
        """Return a file for monitoring: one of `rules`, `scrape`, `alertmanager`, `servicemonitor`, `dashboard:NAME`.

        `targets`: ADDRESS:PORT of the agents to scrape; none: this host's, on 127.0.0.1.
        """
        from vgpuctl.operations import monitoring

        return monitoring.make_monitoring_file(self._ports, name, as_texts("targets", targets))

    @query
    def import_host(self, path: str, *, config: str | None = None) -> QueryResult[ImportedResult]:
        """Return a file or directory of another program as the text of a host.yaml.

        `config`: which configuration of a file with several. Nothing is written.
        """
        from vgpuctl.operations import import_host

        return import_host.import_host(self._ports, _read_foreign_config(self._ports, path, config))

    @query
    def import_vm(self, *files: str, pool: str | None = None) -> QueryResult[ImportedVmsResult]:
        """Return VMs of other hypervisors as VM specs, with the commands for their disks; nothing is written.

        `files`: VMX, OVF, OVA, Proxmox's conf and pci.cfg, libvirt's domain XML, or what xe and esxcli print; `-`:
        standard input. `pool`: the storage pool in whose folder the disks go; None: /var/lib/libvirt/images.
        """
        from vgpuctl.library import foreign_files
        from vgpuctl.operations import import_vm

        read = foreign_files.read_vm_files(self._ports, as_texts("files", files))
        return import_vm.import_vms(self._ports, read, pool=pool)

    @change("reconcile-host")
    def reconcile_host(self, *, only: Texts | None = None, dry_run: bool = False) -> Outcome[ReconcileResult]:
        """Finish or undo what a crash, a kill or a reboot interrupted.

        `only`: fix only the findings whose `what` in a former result was one of these; None: all.
        """
        from vgpuctl.operations import reconcile

        texts = None if only is None else as_texts("only", only)
        return reconcile.reconcile(self._ports, self._context(dry_run=dry_run), texts)

    @query
    def doctor(self, *checks: str) -> Outcome[DoctorResult]:
        """Run all checks of this host, or those with these ids; nothing is changed."""
        from vgpuctl.operations import diagnose

        return Outcome(False, diagnose.diagnose(self._ports, as_texts("checks", checks)))

    @change("doctor")
    def fix_problems(self, *checks: str, dry_run: bool = False) -> Outcome[DoctorResult]:
        """Run checks, and fix what is safe to fix."""
        from vgpuctl.operations import diagnose

        return diagnose.fix_problems(self._ports, self._context(dry_run=dry_run), as_texts("checks", checks))

    def explain_failure(self, error: VgpuctlError) -> list[DoctorFindingResult]:
        """Return what the checks found that can explain an error; an empty list if none of them can."""
        check, cause = error.facts.get("check"), error.facts.get("cause")
        code = cause if isinstance(error, PartlyApplied) and isinstance(cause, str) else error.code
        return list(self.find_causes(code, check=check if isinstance(check, str) else None))

    @query
    def find_causes(self, code: str, *, check: str | None = None) -> tuple[DoctorFindingResult, ...]:
        """Return what the checks found that can explain an error with this code, and this `check` in its facts."""
        from vgpuctl import doctor
        from vgpuctl.operations import diagnose

        if not doctor.find_explaining_checks(code, check):
            return ()
        return tuple(diagnose.explain_failure(self._ports, code, check))

    @query
    def log(
        self,
        *,
        vm: str | None = None,
        gpu: str | None = None,
        since: str | None = None,
        user: str | None = None,
        failed: bool = False,
        lines: int = DEFAULT_LOG_LINES,
    ) -> QueryResult[tuple[LogEntryResult, ...]]:
        """Return the newest `lines` commands that changed this host, or tried to, oldest first.

        `vm`, `gpu`: those that touched it, by name and by names. `since`: `2h`, `yesterday`, `2026-11-25 13:30`.
        `user`: those of this user. `failed`: those that failed.
        """
        from vgpuctl.config import arguments
        from vgpuctl.library import audit
        from vgpuctl.model import names

        require_range("lines", lines, 1, MAX_LOG_LINES)
        return audit.read_log(
            self._ports,
            lines=lines,
            vm=vm,
            gpu=None if gpu is None else names.parse_gpu_address(gpu),
            since=None if since is None else arguments.parse_past_time("since", since, self._ports.clock.now()),
            user=user,
            failed=failed,
        )

    @query
    def list_deleted(self) -> QueryResult[tuple[DeletedDiskResult, ...]]:
        """Return the disks in the bins of the storage pools: those that accounts with `keep_deleted_days` deleted."""
        from vgpuctl.operations import deleted_disks

        return deleted_disks.list_deleted(self._ports)

    @change("restore-disk")
    def restore_disk(self, name: str, *, dry_run: bool = False) -> Outcome[RestoredDiskResult]:
        """Make a disk in the bin a volume of its pool again. `name`: its id, or its VM's name or uuid."""
        from vgpuctl.operations import deleted_disks

        return deleted_disks.restore_disk(self._ports, self._context(dry_run=dry_run), name)

    @change("purge-deleted")
    def purge_deleted(
        self, *names: str, expired: bool = False, everything: bool = False, dry_run: bool = False
    ) -> Outcome[PurgedResult]:
        """Delete disks in the bin for good: `names`, those whose time is over (`expired`), or `everything`.

        `names`: ids of disks, or names or uuids of VMs.
        """
        from vgpuctl.operations import deleted_disks

        return deleted_disks.purge_deleted(
            self._ports,
            self._context(dry_run=dry_run),
            as_texts("names", names),
            expired=expired,
            everything=everything,
        )

    @change("restore-host")
    def restore_host(self, *, dry_run: bool = False) -> Outcome[RestoreResult]:
        """Recreate every missing vGPU, for example after a boot: those of host.yaml, then those of every VM.

        A host.yaml that cannot be parsed stops only the former, and is reported at the end.
        """
        from vgpuctl.config import host_spec
        from vgpuctl.library import requests
        from vgpuctl.operations import restore

        file_error = None
        try:
            spec = requests.read_spec_of_host(self._ports)
        except InvalidInput as error:
            if dry_run:
                raise
            spec, file_error = host_spec.HostSpec(host_spec.FORMAT_VERSION), error
        return restore.restore_host(self._ports, self._context(dry_run=dry_run), spec, host_file_error=file_error)

    @change("install-host")
    def install_host(
        self,
        *,
        completions: Mapping[str, str] | None = None,
        restart_libvirt: bool = False,
        agent: bool = False,
        controller: bool = False,
        dry_run: bool = False,
    ) -> Outcome[InstalledResult]:
        """Install the boot unit and libvirt's hook, for the Python that runs this.

        `completions`: the completion script of each shell (bash, zsh, fish). `agent`, `controller`: also
        install, enable and start the host agent, or a controller of pools.
        """
        from vgpuctl import extras
        from vgpuctl.operations import installation, service_installation

        wanted = {service_installation.AGENT: agent, service_installation.CONTROLLER: controller}
        services = [service for service, is_wanted in wanted.items() if is_wanted]
        return installation.install_host(
            self._ports,
            self._context(dry_run=dry_run),
            python=sys.executable,
            completions=completions or {},
            restart_libvirt=restart_libvirt,
            services=services,
            missing_libraries={one.extra: extras.missing_libraries(one.extra) for one in services},
        )

    @change("uninstall-host")
    def uninstall_host(self, *, restart_libvirt: bool = False, dry_run: bool = False) -> Outcome[UninstalledResult]:
        """Remove what `install_host` installed; VMs and vGPUs stay."""
        from vgpuctl.operations import installation

        return installation.uninstall_host(self._ports, self._context(dry_run=dry_run), restart_libvirt=restart_libvirt)


def _read_foreign_config(host: Host, path: str, config: str | None) -> ImportedConfig:
    from vgpuctl.config import import_formats

    if path == "-" or host.given_files is not None or not Path(path).is_dir():
        return import_formats.parse_import(read_given_text(host, path, "import"), display_name(path), config)
    try:
        files = sorted(
            file
            for parent in Path(path).iterdir()
            if parent.is_dir() and parent.name != "scripts.d"  # it holds programs
            for file in parent.iterdir()
        )
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", hint=f"ls -l {path}") from error
    definitions = [
        import_formats.parse_mdevctl_definition(
            read_text(str(file), "definition"), str(file), file.parent.name, file.name
        )
        for file in files
    ]
    if not definitions:
        hint = "/etc/mdevctl.d has one file PARENT/UUID for each"
        raise NotFound(f"{path} has no mdevctl definitions", hint=hint, path=path)
    return import_formats.ImportedConfig("mdevctl", definitions=tuple(definitions))
