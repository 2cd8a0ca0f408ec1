# SPDX-License-Identifier: Apache-2.0
"""What vgpuctl sets up in a guest that exists, by its seed for cloud-init: the license, and how programs share its GPU.

The guest keeps what it has got: the seed is what it gets at its next boot. So the host agent takes the license out
once the guest is licensed, and a secret that nobody needs any more lies nowhere.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Callable, Set
from typing import TYPE_CHECKING

from vgpuctl.config.guest_rules import GUEST_LISTS
from vgpuctl.config.vm_request import guest_setup, request_of_record, secret_names
from vgpuctl.domain.guest_setup import is_unread, secrets_in
from vgpuctl.errors import NotAllowed, NotFound, Refused, VgpuctlError
from vgpuctl.model.caller import Rights
from vgpuctl.model.domain_join import BlobUse, DomainJoin
from vgpuctl.model.guest_driver import is_driver_disc
from vgpuctl.model.outcome import Context, Outcome
from vgpuctl.model.request import CloudInit, GuestSecrets
from vgpuctl.model.results.vms import VmReport
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import DiskRole, Vm, VmRecord
from vgpuctl.observe import observe, scope_of_vm
from vgpuctl.observe.domain_joins import check_computer
from vgpuctl.observe.guest_drivers import read_guest_driver
from vgpuctl.observe.guest_secrets import read_secret
from vgpuctl.observe.licenses import read_license
from vgpuctl.operations.guards import find_vm_to_change, refuse_unfinished, require_writable
from vgpuctl.operations.guest_helper import find_token_way
from vgpuctl.operations.plans.guest_setup import check_guest_setup
from vgpuctl.operations.plans.remove import own_record
from vgpuctl.operations.plans.reserve import request_from_record
from vgpuctl.operations.plans.results import vm_result
from vgpuctl.operations.report_vm import report_vm
from vgpuctl.operations.steps.domain import STOPPED_STATES
from vgpuctl.operations.steps.guest_driver import driver_steps
from vgpuctl.operations.steps.seed import WriteSetup
from vgpuctl.operations.transaction import Transaction
from vgpuctl.ports.step import Plan, Step
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def refresh_license(host: Host, context: Context, name: str, *, clear: bool) -> Outcome[VmReport]:
    """Write a VM's license into its seed, or take out all secrets (`clear`); a VM without any is left alone.

    Of a VM that has none but joins a cluster, the token for that is written.

    A running guest gets the token at once, by its helper or its QEMU guest agent. Then a seed without a license stays
    so, and none is needed.

    Raises:
        Refused: the VM has a license and no seed.
        HostCannot: the seed cannot be read or written.
        NotAllowed: the caller's guests may not get this license.
        BlockedByGuest: the VM has no seed, and its guest's administrator blocks what the token needs.
        VgpuctlError: the license cannot be read, or is none that this guest can use now.
    """
    require_writable(host, context)
    snapshot = observe(host, scope_of_vm(name))
    vm = find_vm_to_change(context, snapshot, name)
    record = own_record(vm, "change the license of")
    refuse_unfinished(vm, record)
    before = vm_result(snapshot, vm)
    secrets = secret_names(request_of_record(record.request_fields))
    if not clear:
        secrets.pop("domain_join", None)  # each setup of a guest uses up a blob
    if not secrets:
        note = "VMs without a license or a cluster to join are left alone"
        return Outcome(False, before, (), snapshot.warnings, (note,), dry_run=context.dry_run)
    notes: tuple[str, ...] = ()
    if clear:
        step = _setup_step(vm, record, GuestSecrets())
        is_done = not secrets_in(step.read_script(host))
    else:
        put_token, problem = find_token_way(host, vm) if "license" in secrets else (None, None)
        if put_token is not None:
            return _refresh_now(host, context, snapshot, vm, record, put_token)
        if problem is not None and not _has_seed(record):
            raise problem
        notes = () if problem is None else (problem.message,)
        renew = {"license"} if "license" in secrets else secrets.keys()  # who has a license has joined
        step, _ = changed_setup(host, context, snapshot, vm, record, renew=renew)
        is_done = step.is_done(host)
    if is_done:
        return Outcome(False, before, (), snapshot.warnings, notes, dry_run=context.dry_run)
    steps = (step.describe(),)
    if step.unread and not clear:
        notes = (*notes, f"the guest of {vm.name} gets it at its next boot")
    if context.dry_run:
        return Outcome(True, before, steps, snapshot.warnings, notes, dry_run=True)
    _carry_out(host, context, snapshot, vm, record, step)
    return report_vm(host, before, steps, notes)


def _carry_out(host: Host, context: Context, snapshot: Snapshot, vm: Vm, record: VmRecord, step: WriteSetup) -> None:
    with Transaction(host, context) as tx:
        tx.hold_vm(snapshot, vm, record)
        tx.carry_out(Plan((step,)))


def _refresh_now(
    host: Host,
    context: Context,
    snapshot: Snapshot,
    vm: Vm,
    record: VmRecord,
    put_token: Callable[[str], None],
) -> Outcome[VmReport]:
    """Replace the token in a running guest, and a seed that has an old one, too.

    The token comes first: where that fails, the seed is as it was.
    """
    name = request_of_record(record.request_fields).license_name or ""
    _refuse_others_secret(context, "license", name)
    license = read_license(host, name)
    steps = [f"replace the license token in the guest of {vm.name}"]
    write = None
    if _has_seed(record):
        step, _ = changed_setup(host, context, snapshot, vm, record)
        write = None if step.is_done(host) else step
    steps += [] if write is None else [write.describe()]
    before = vm_result(snapshot, vm)
    if context.dry_run:
        return Outcome(True, before, tuple(steps), snapshot.warnings, dry_run=True)
    put_token(license.token)
    if write is not None:
        _carry_out(host, context, snapshot, vm, record, write)
    return report_vm(host, before, tuple(steps))


def _has_seed(record: VmRecord) -> bool:
    return any(disk.role is DiskRole.SEED for disk in record.disks)


def changed_setup(
    host: Host,
    context: Context,
    snapshot: Snapshot,
    vm: Vm,
    record: VmRecord,
    *,
    renew: Set[str] = frozenset(),
    leave_out: Set[str] = frozenset(),
    blob: BlobUse | None = None,
) -> tuple[WriteSetup, tuple[str, ...]]:
    """Return the step that writes what a VM's new record says of its guest into its seed, and warnings.

    `renew`: the fields whose secrets are written. Where something else changes, a seed without a secret stays so, and a
    secret that cannot be read is only a warning. `leave_out`: the fields whose secrets are not written. `blob`: the
    guest will be on a new disk, and joins its domain by this one; without it a domain that is renewed counts from the
    next such disk on.

    Raises:
        Refused: the VM has no seed.
        InvalidInput, HostCannot: the guest cannot be set up so.
        NotAllowed: the caller's guests may not get this secret.
        VgpuctlError: a secret cannot be read, or is none that a guest can use now.
    """
    secrets, warnings = GuestSecrets(), []
    step = _setup_step(vm, record, secrets)
    names = secret_names(request_of_record(record.request_fields))
    written = secrets_in(step.read_script(host)) if names else frozenset()
    for field in [field for field in names if field in (written | renew) - leave_out]:
        if field == "domain_join" and field not in renew:
            secrets = replace(secrets, domain_join=DomainJoin(names[field]))  # the seed keeps its blob
            continue
        try:
            _refuse_others_secret(context, field, names[field])
            if field == "domain_join":
                check_computer(names[field], vm.name)
            secrets = read_secret(host, secrets, field, names[field])
        except VgpuctlError as error:
            if field in renew:
                raise
            warnings.append(f"the seed of {vm.name} has no {field} any more: {error.message}")
    if "domain_join" in renew and secrets.domain_join is not None and blob is None:
        secrets = replace(secrets, domain_join=None)
        warnings.append(f"the guest of {vm.name} joins {names['domain_join']} with {_refresh_command(vm, record)}")
    step = replace(_setup_step(vm, record, secrets), blob=blob)
    request = replace(request_from_record(vm, record, record.vgpus), seed=CloudInit(setup=step.setup))
    return step, (*warnings, *check_guest_setup(snapshot, request, record.vgpus))


def setup_for_new_disk(
    host: Host,
    context: Context,
    snapshot: Snapshot,
    vm: Vm,
    record: VmRecord,
    *,
    is_prepared: bool = False,
    blob: BlobUse | None = None,
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """Return the steps that write the secrets for the guest on a new disk, and make its driver disc if that is gone.

    `is_prepared`: the disk has a guest that was set up already, so that it has joined its cluster, or its domain.
    `blob`: by which it joins a domain otherwise.

    What the guest cannot get now is a warning: the new disk is wanted all the same. Only where it would not join its
    domain, nobody could log on.

    Raises:
        VgpuctlError: it cannot join its domain.
    """
    steps, warnings = _lost_disc_steps(host, vm, request_of_record(record.request_fields).guest_driver)
    names = secret_names(request_of_record(record.request_fields))
    if is_prepared:
        names.pop("k8s_join", None)
        names.pop("domain_join", None)
    if not names:
        return steps, warnings
    try:
        step, _ = changed_setup(host, context, snapshot, vm, record, renew=names.keys(), blob=blob)
    except VgpuctlError as error:
        others = {field: None for field in names if blob is None or field != "domain_join"}
        warnings = (*warnings, f"{vm.name} has a new disk, whose guest gets no {' and '.join(others)}: {error.message}")
        if blob is None:
            return steps, warnings
        if not others:
            raise
        step, _ = changed_setup(
            host, context, snapshot, vm, record, renew={"domain_join"}, leave_out=others.keys(), blob=blob
        )
    return (*steps, replace(step, unread=False)), warnings


def find_other_disc(host: Host, vm: Vm, path: str, *, must_exist: bool) -> str | None:
    """Return the disc of a VM if it is not that of the driver at a path, which another file replaced.

    `must_exist`: a disc that is gone is another one, too. A driver's file that is gone replaces nothing.

    Raises:
        VgpuctlError: the file is no driver that a guest can have.
    """
    disc, discs = _disc_of(vm), host.driver_discs
    if disc is None or discs is None or discs.path(posixpath.basename(disc)) != disc:
        return None
    if not discs.has(posixpath.basename(disc)):
        return disc if must_exist else None
    try:
        return None if read_guest_driver(host, path).disc == disc else disc
    except NotFound:
        return None


def steps_without_secrets(host: Host, vm: Vm, record: VmRecord) -> tuple[Step, ...]:
    """Return the step that takes all secrets out of a VM's seed, whose guest has them; none if there are none there.

    What was written while the guest ran, it has not got yet.

    Raises:
        HostCannot: the seed cannot be read.
    """
    if not secret_names(request_of_record(record.request_fields)) or not _has_seed(record):
        return ()
    step = _setup_step(vm, record, GuestSecrets())
    script = step.read_script(host)
    return (step,) if secrets_in(script) and not is_unread(script) else ()


def _disc_of(vm: Vm) -> str | None:
    return next((disk.source for disk in vm.disks if disk.source and is_driver_disc(disk.source)), None)


def _lost_disc_steps(host: Host, vm: Vm, path: str | None) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    source = _disc_of(vm)
    if source is None or path is None or host.driver_discs is None:
        return (), ()
    disc = posixpath.basename(source)
    if host.driver_discs.has(disc):
        return (), ()
    again = f"vgpuctl set-vm {shlex.quote(vm.name)} --guest-driver {shlex.quote(path)} --drain"
    try:
        driver = read_guest_driver(host, path)
    except VgpuctlError as error:
        return (), (f"{vm.name} has a new disk, whose guest gets no driver: {error.message}; {again}",)
    if driver.disc_name != disc:
        return (), (f"{vm.name} has a new disk, whose guest gets no driver: {path} is another one now; {again}",)
    return driver_steps(driver), ()


def read_setup_of_vm(host: Host, vm: Vm) -> str | None:
    """Return the script in a VM's seed; None for none.

    Raises:
        Refused, HostCannot: it has no seed, or one that cannot be read.
    """
    return _setup_step(vm, own_record(vm, "read the seed of"), GuestSecrets()).read_script(host)


def _setup_step(vm: Vm, record: VmRecord, secrets: GuestSecrets) -> WriteSetup:
    seed = next((disk for disk in record.disks if disk.role is DiskRole.SEED), None)
    if seed is None:
        raise Refused(
            f"{vm.name} has no seed for cloud-init, by which its guest would be set up",
            hint="set it up in the guest by hand; vgpuctl print-helper prints the helper for it",
            vm=vm.name,
        )
    request = request_of_record(record.request_fields)
    return WriteSetup(
        vm.name,
        seed,
        guest_setup(request, secrets),
        unread=vm.state not in STOPPED_STATES,
        without=tuple(field for field in secret_names(request) if getattr(secrets, field) is None),
    )


def _refresh_command(vm: Vm, record: VmRecord) -> str:
    return f"vgpuctl refresh-vm {shlex.quote(vm.name)} --image {shlex.quote(record.image or 'IMAGE')}"


def _refuse_others_secret(context: Context, field: str, name: str) -> None:
    """Refuse a secret that host.yaml does not list for members: a record says what a VM was given, not what may be."""
    caller, (what, key) = context.caller, GUEST_LISTS[field]
    if caller is not None and caller.rights is not Rights.ROOT and name not in getattr(caller, key):
        raise NotAllowed(
            f"the {what} {name} is not allowed",
            hint=f"agent: {{allow: {{{key}: [{name}]}}}} in host.yaml allows it",
            rule=f"agent.allow.{key}",
        )
