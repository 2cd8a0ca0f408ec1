# SPDX-License-Identifier: Apache-2.0
"""Calls about VMs. A module that a call needs is imported when it is called: a command needs few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Unpack

from vgpuctl.config.arguments import (
    DEFAULT_PARALLEL,
    DEFAULT_TIMEOUT_SECONDS,
    MAX_PARALLEL,
    MAX_VMS,
    VM_STATES,
    WAIT_EVENTS,
    WAIT_TARGETS,
    as_texts,
    require_choice,
    require_range,
    require_seconds,
)
from vgpuctl.errors import InvalidInput
from vgpuctl.library.call import Calls, change, query
from vgpuctl.library.fields import PlacementFields, Texts, VmChangeFields, VmFields, WholeGpuFields
from vgpuctl.model.outcome import QueryResult

if TYPE_CHECKING:
    from vgpuctl.config.vm_spec import Given
    from vgpuctl.library.batch import BatchRequest
    from vgpuctl.model.outcome import Outcome
    from vgpuctl.model.results import TargetsResult
    from vgpuctl.model.results import vms as vm_results
    from vgpuctl.model.results.vms import (
        AddressesResult,
        ChangedVmResult,
        ConsoleResult,
        ImageResult,
        ManyVmsResult,
        PlannedVmResult,
        VmReport,
        VmResult,
        VmRowResult,
        WaitedVmResult,
    )


class VmCalls(Calls):
    """Calls about VMs. A VM is named by its name or its uuid. Each call raises VgpuctlError when it fails."""

    @query
    def list_vms(self) -> QueryResult[tuple[VmRowResult, ...]]:
        """Return the VMs of this host and their vGPUs."""
        from vgpuctl.operations import queries

        return queries.list_vms(self._ports, self._context())

    @query
    def show_vm(self, name: str) -> QueryResult[VmResult]:
        """Return one VM with its vGPUs and disks."""
        from vgpuctl.operations import queries

        return queries.show_vm(self._ports, self._context(), name)

    @query
    def show_console(self, name: str) -> QueryResult[ConsoleResult]:
        """Return where a VM's screen and serial console are."""
        from vgpuctl.operations import guest

        return guest.read_console(self._ports, self._context(), name)

    @query
    def show_address(self, name: str, *, seen_by_host: bool = False) -> QueryResult[AddressesResult]:
        """Return a running VM's IP addresses, and who knows them. Busy: none is known yet.

        `seen_by_host`: only those that its host sees on the VM's own bridge; what the guest says does not count.
        """
        from vgpuctl.operations import guest

        return guest.read_addresses(self._ports, self._context(), name, seen_by_host=seen_by_host)

    @query
    def wait(
        self, *names: str, event: str, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    ) -> QueryResult[tuple[WaitedVmResult, ...]]:
        """Wait until all these VMs are `running` or `off`, or their guests are ready.

        `guest`: it answers, or has an address. `address`: it has one. `driver`: it runs NVIDIA's. `license`: has one.
        Busy: the time was over. NotFound: a VM was deleted. Refused: a VM is off and its guest cannot answer.
        HostCannot: this host cannot see the driver in a VM, since it has no vGPU of NVIDIA's.
        """
        from vgpuctl.operations import wait as waiting

        require_choice("event", event, WAIT_TARGETS)
        require_seconds("timeout_seconds", timeout_seconds)
        if not as_texts("names", names):
            raise InvalidInput("no VM is named")
        return waiting.wait(self._ports, self._context(), names, event, timeout_seconds)

    @query
    def list_images(
        self, *paths: str, pool: str | None = None, disks: bool = False
    ) -> QueryResult[tuple[ImageResult, ...]]:
        """Return the volumes of the storage pools, or of one, and the images that disks are clones of.

        `paths`: exactly these files, also images without clones. NotFound: some do not exist; `result` has the others.
        """
        from vgpuctl.operations import images

        return images.list_images(self._ports, as_texts("paths", paths), pool=pool, disks=disks)

    @query
    def print_xml(self, name: str | None = None, **fields: Unpack[VmFields]) -> QueryResult[vm_results.XmlResult]:
        """Return the domain XML that `create_vm` would define."""
        from vgpuctl.library import requests
        from vgpuctl.model.results import vms as vm_results
        from vgpuctl.operations import create

        self._refuse_captured()
        return QueryResult(
            vm_results.XmlResult(create.render_xml(self._ports, requests.from_fields(self._ports, name, fields)))
        )

    @change("create-vm", "vm")
    def create_vm(
        self,
        name: str | None = None,
        *,
        start: bool = True,
        wait_for: str | None = None,
        wait_timeout: float | None = None,
        dry_run: bool = False,
        **fields: Unpack[VmFields],
    ) -> Outcome[ChangedVmResult | PlannedVmResult]:
        """Create a VM with its vGPUs and disks, and start it.

        `wait_for`: returns when the guest answers or has an address ("guest"), has an address ("address"), runs
        NVIDIA's driver ("driver") or has its license ("license"), or after `wait_timeout` seconds (300).
        """
        from vgpuctl.library import requests
        from vgpuctl.operations import create
        from vgpuctl.operations import wait as waiting

        if wait_for is not None:
            require_choice("wait_for", wait_for, WAIT_EVENTS)
        if wait_timeout is not None:
            require_seconds("wait_timeout", wait_timeout)
        request = requests.from_fields(self._ports, name, fields)
        waiting.check_wait_options(request, wait_for=wait_for, timeout=wait_timeout, start=start)
        outcome = create.create_vm(self._ports, self._context(dry_run=dry_run), request, start=start)
        if wait_for is None:
            return outcome
        seconds = DEFAULT_TIMEOUT_SECONDS if wait_timeout is None else wait_timeout
        return waiting.wait_for_guest(self._ports, self._context(), outcome, seconds, wait_for)

    @change("create-vm")
    def create_vms(
        self,
        pattern: str | None,
        count: int,
        *,
        start: bool = True,
        parallel: int = DEFAULT_PARALLEL,
        dry_run: bool = False,
        **fields: Unpack[VmFields],
    ) -> Outcome[ManyVmsResult]:
        """Ensure that VMs with these names exist: `vdi-{:03}` and 20 are vdi-001 to vdi-020.

        `cloud_init` and `network_config` may have a placeholder, too: one file for each VM.

        SomeVmsFailed: each failed VM is undone; the others exist.
        """
        return self._ensure_vms(pattern, None, count, "present", parallel, dry_run, fields, start=start)

    @change("ensure-vm", "vm")
    def ensure_vm(
        self,
        name: str | None = None,
        *,
        file: str | None = None,
        state: str = "present",
        dry_run: bool = False,
        **fields: Unpack[VmFields],
    ) -> Outcome[ChangedVmResult | PlannedVmResult]:
        """Create or change a VM to match a spec: fields, or a spec file (`-`: standard input) that fields override.

        `state`: present, absent, started or stopped. SpecDiffers: it exists and cannot be changed in place.
        """
        from vgpuctl.library import requests
        from vgpuctl.operations import ensure_vm

        require_choice("state", state, VM_STATES)
        if file is not None and name is not None:
            raise InvalidInput("specify either the name or a spec file: the file contains the name")
        ports = self._ports
        request = (
            requests.from_fields(ports, name, fields, complete=False)
            if file is None
            else requests.from_file(ports, file, fields, self._note_spec)
        )
        self._subjects.add_vms(() if request.name is None else (request.name,))
        return ensure_vm.ensure_vm(ports, self._context(dry_run=dry_run), request, state=state)

    @change("ensure-vm")
    def ensure_vms(
        self,
        count: int,
        *,
        file: str,
        state: str = "present",
        parallel: int = DEFAULT_PARALLEL,
        dry_run: bool = False,
        **fields: Unpack[VmFields],
    ) -> Outcome[ManyVmsResult]:
        """Bring `count` VMs of a spec file, whose name is a pattern, to a `state` as of `ensure_vm`; see `create_vms`.

        SomeTargetsFailed: the VMs exist; some could not be started, stopped or deleted.
        """
        require_choice("state", state, VM_STATES)
        return self._ensure_vms(None, file, count, state, parallel, dry_run, fields)

    def _ensure_vms(
        self,
        pattern: str | None,
        file: str | None,
        count: int,
        state: str,
        parallel: int,
        dry_run: bool,
        fields: VmFields,
        *,
        start: bool = True,
    ) -> Outcome[ManyVmsResult]:
        from vgpuctl.library import many_states, requests
        from vgpuctl.operations import ensure_vms

        require_range("count", count, 1, MAX_VMS)
        require_range("parallel", parallel, 1, MAX_PARALLEL)
        request, names, seeds = requests.for_several(self._ports, pattern, file, count, fields, self._note_spec)
        self._subjects.add_vms(names)
        if state == "absent":
            vms = ensure_vms.observe_named(self._ports, self._context(dry_run=dry_run), names)
        else:
            vms = ensure_vms.ensure_vms(
                self._ports,
                self._context(dry_run=dry_run),
                request,
                names,
                seeds=seeds,
                start=start and state != "stopped",
                parallel=parallel,
            )
        if state == "present":
            return vms

        def run_batch(request: BatchRequest[VmCalls, VmReport]) -> Outcome[TargetsResult[VmReport]]:
            return self._run_batch(request, vms.steps)

        return many_states.bring_to_state(vms, state, run_batch, _state_call(state, dry_run=dry_run), parallel)

    def _note_spec(self, spec: Given) -> None:
        from vgpuctl.library import requests

        self._subjects.spec = requests.loggable_fields(spec)

    @change("delete-vm", "vm")
    def delete_vm(self, name: str, *, keep_disks: bool = False, dry_run: bool = False) -> Outcome[VmReport]:
        """Delete a VM with its vGPUs and the disks that were created for it."""
        from vgpuctl.operations import power

        return power.delete_vm(self._ports, self._context(dry_run=dry_run), name, keep_disks=keep_disks)

    @change("mark-desktop", "vm")
    def mark_desktop(self, name: str, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Write the mark of a controller's request into the record of a desktop's VM; its guest notices nothing."""
        from vgpuctl.operations import mark_desktop

        return mark_desktop.mark_desktop(self._ports, self._context(dry_run=dry_run), name)

    @change("start-vm", "vm")
    def start_vm(self, name: str, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Start a VM; missing vGPUs are created first."""
        from vgpuctl.operations import last_state

        return last_state.start_vm(self._ports, self._context(dry_run=dry_run), name)

    @change("stop-vm", "vm")
    def stop_vm(self, name: str, *, force: bool = False, dry_run: bool = False) -> Outcome[VmReport]:
        """Stop a VM and wait until it is off; with `force` at once."""
        from vgpuctl.operations import last_state

        return last_state.stop_vm(self._ports, self._context(dry_run=dry_run), name, force=force)

    @change("save-vm", "vm")
    def save_vm(self, name: str, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Save a running VM's memory and devices; it is off then, and start-vm goes on from there."""
        from vgpuctl.operations import save

        return save.save_vm(self._ports, self._context(dry_run=dry_run), name)

    @change("reboot-vm", "vm")
    def reboot_vm(self, name: str, *, force: bool = False, dry_run: bool = False) -> Outcome[VmReport]:
        """Reboot a running VM, which keeps its vGPUs, and wait until it has; with `force` it is reset at once."""
        from vgpuctl.operations import power

        return power.reboot_vm(self._ports, self._context(dry_run=dry_run), name, force=force)

    @change("set-vm", "vm")
    def set_vm(
        self,
        name: str,
        *,
        drain: bool = False,
        when_off: bool = False,
        dry_run: bool = False,
        **fields: Unpack[VmChangeFields],
    ) -> Outcome[VmReport]:
        """Change fields of a VM; those not given stay. `VmChangeFields` says which change at any time.

        The others change while the VM is off. `drain`: a running VM may be shut down for them. `when_off`: the host
        agent makes the change when a running VM is next off; without fields, it makes none that was planned.
        """
        from vgpuctl.library import requests
        from vgpuctl.operations import ensure_vm, planned_change

        requests.refuse_other_fields(fields, VmChangeFields)
        if drain and when_off:
            raise InvalidInput("drain and when_off exclude each other", hint="omit one of them")
        context = self._context(dry_run=dry_run)
        if when_off and all(value in (None, ()) for value in fields.values()):
            return planned_change.forget_plan(self._ports, context, name)
        request = requests.for_change(self._ports, name, fields)
        return ensure_vm.set_vm(self._ports, context, request, drain=drain, when_off=when_off)

    @change("adopt", "vm")
    def adopt(self, name: str, *, release: bool = False, dry_run: bool = False) -> Outcome[VmReport]:
        """Manage a VM that another program made with a vGPU, VF or whole GPU; with `release` let an adopted VM go."""
        from vgpuctl.operations import adopt

        act = adopt.release if release else adopt.adopt
        return act(self._ports, self._context(dry_run=dry_run), name)

    @change("attach-vgpu", "vm")
    def attach_vgpu(self, name: str, *, dry_run: bool = False, **fields: Unpack[PlacementFields]) -> Outcome[VmReport]:
        """Add vGPUs of `profile` to a VM that exists, also while it runs."""
        from vgpuctl.library import requests
        from vgpuctl.operations import attach

        requests.refuse_other_fields(fields, PlacementFields)
        request = requests.for_vm(self._ports, name, fields)
        return attach.attach(self._ports, self._context(dry_run=dry_run), request)

    @change("detach-vgpu", "vm")
    def detach_vgpu(self, name: str, vgpus: Texts | None = None, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Remove vGPUs from a VM, by carrier; None: its only one. Busy: the guest has not released them yet."""
        from vgpuctl.operations import attach

        carriers = () if vgpus is None else as_texts("vgpus", vgpus)
        if vgpus is not None and not carriers:
            raise InvalidInput("vgpus: the list is empty; None means the VM's only vGPU")
        return attach.detach(self._ports, self._context(dry_run=dry_run), name, carriers)

    @change("attach-gpu", "vm")
    def attach_gpu(self, name: str, *, dry_run: bool = False, **fields: Unpack[WholeGpuFields]) -> Outcome[VmReport]:
        """Add whole GPUs to a VM that exists and is off: those of `gpu`, or `gpus` of them."""
        from vgpuctl.library import requests
        from vgpuctl.operations import attach

        requests.refuse_other_fields(fields, WholeGpuFields)
        request = requests.for_vm(self._ports, name, {**fields, "mode": "passthrough"})
        return attach.attach(self._ports, self._context(dry_run=dry_run), request)

    @change("detach-gpu", "vm")
    def detach_gpu(self, name: str, gpus: Texts, *, dry_run: bool = False) -> Outcome[VmReport]:
        """Remove whole GPUs from a VM, by address. Busy: the guest has not released one yet."""
        from vgpuctl.operations import attach

        addresses = as_texts("gpus", gpus)
        if not addresses:
            raise InvalidInput("gpus: the list is empty", hint=f"vgpuctl show-vm {name} shows the VM's GPUs")
        return attach.detach(self._ports, self._context(dry_run=dry_run), name, gpus=addresses)


def _state_call(state: str, *, dry_run: bool) -> Callable[[VmCalls, str], Outcome[VmReport]]:
    """Return the call that brings a VM to a state."""
    if state == "absent":
        return lambda host, name: host.delete_vm(name, dry_run=dry_run)
    if state == "started":
        return lambda host, name: host.start_vm(name, dry_run=dry_run)
    return lambda host, name: host.stop_vm(name, dry_run=dry_run)
