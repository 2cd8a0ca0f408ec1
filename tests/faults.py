# SPDX-License-Identifier: Apache-2.0
"""A Host with watched ports: counts the calls, and makes the n-th call fail or kills the process in it.

A fault point is the n-th call of all ports. A pass without faults counts the calls, so a new step is covered
without a new test. A call fails with an error that its port may raise. Calls that never raise are only counted.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import product
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any, TypeVar

from tests import EVERYTHING
from tests.hosts import Act, SimulatedHost, copied, open_sim_host, picture, run_reconcile
from vgpuctl.errors import LibvirtFailed, Locked, NvmlFailed, VgpuctlError
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

Point = TypeVar("Point")
FULL_BACKEND = "vendor-vf"
"""The others differ in one or two steps: the makers' and backends' own tests have those."""
SAMPLED_OF = 7
"""Like each smaller step, not even: the points come in pairs, before a call and after it."""
FEW_POINTS = 6
NEVER_RAISE = {
    "nvml.status",
    "nvml.gpu",
    "nvml.ecc",
    "nvml.guests",
    "nvml.migration",
    "nvml.pairing",
    "nvml.nvlink_peers",
    "nvml.placements",
    "audit_log.write_entry",
    "system_log.kernel_lines",
    "system_log.service_lines",
    "hypervisor.status",
    "operations.another",
    "operations.current",
    "operations.end",
    "usage.pause",
    "usage.read",
    "usage.read_processes",
    "usage_history.add",
    "usage_history.flush",
    "usage_history.peaks",
    "usage_history.problem",
    "usage_history.read",
    "claims.of_operation",
    "claims.remove_drained_vm",
    "claims.remove_vm_in_progress",
}
CHANGING = {
    "operations.begin",
    "sysfs.write",
    "sysfs.write_uninterruptible",
    "hypervisor.define",
    "hypervisor.undefine",
    "hypervisor.set_record",
    "hypervisor.start",
    "hypervisor.shutdown",
    "hypervisor.destroy",
    "hypervisor.reboot",
    "hypervisor.reset",
    "hypervisor.migrate",
    "hypervisor.resume",
    "hypervisor.save",
    "hypervisor.redefine",
    "hypervisor.attach_device",
    "hypervisor.detach_device",
    "hypervisor.resize_disk",
    "storage.create_pool",
    "storage.start_pool",
    "storage.create_volume",
    "storage.create_private_volume",
    "storage.rewrite_private_volume",
    "storage.copy_image",
    "storage.send_volume",
    "storage.resize_volume",
    "storage.remove_volume",
    "storage.remove_pool",
    "volume_bin.prepare",
    "volume_bin.move_in",
    "volume_bin.move_out",
    "volume_bin.delete",
    "claims.add",
    "claims.replace",
    "claims.remove",
    "claims.add_drained_vm",
    "claims.add_vm_in_progress",
    "claims.count_removal",
    "claims.set_permissions",
    "host_file.replace",
    "vendor_commands.sriov_manage",
    "vendor_commands.reset_gpu",
    "vendor_commands.modprobe",
    "nvml.set_scheduler",
    "nvml.set_mig",
    "nvml.create_gpu_instance",
    "nvml.destroy_gpu_instance",
    "nvml.set_mixed_size",
    "system.put",
    "system.remove",
    "system.link",
    "system.make_directory",
    "system.remove_directory",
    "system.systemctl",
    "system.add_group",
    "system.add_user",
    "unfinished_files.remove",
    "guest_agent.command",
    "guest_helpers.ask",
    "guest_reports.remove",
    "guest_reports.write",
    "domain_joins.claim",
    "domain_joins.forget",
    "domain_joins.release",
    "domain_joins.run",
    "driver_discs.delete",
    "driver_discs.write",
    "image_folders.publish",
    "image_folders.remove",
}
READING = {
    "audit_log.read_entries",
    "claims.all",
    "claims.drained_vms",
    "claims.gpu_creation_lock",
    "claims.is_locked",
    "claims.lock",
    "claims.read",
    "claims.stuck_writes",
    "claims.vms_in_progress",
    "clock.monotonic",
    "clock.now",
    "clock.sleep",
    "domain_events.watch",
    "domain_joins.read",
    "domain_joins.source",
    "driver_discs.has",
    "driver_discs.path",
    "driver_discs.read",
    "driver_discs.sizes",
    "guest_channels.open",
    "guest_reports.read",
    "image_folders.file_bytes",
    "image_folders.free_bytes",
    "image_folders.local_path",
    "host_file.previous_version",
    "host_file.read",
    "hypervisor.capabilities",
    "hypervisor.definition",
    "hypervisor.definition_on",
    "hypervisor.domains",
    "hypervisor.find_domain",
    "hypervisor.guest_addresses",
    "hypervisor.is_migrating",
    "hypervisor.leftovers",
    "hypervisor.migration_blockers",
    "hypervisor.migration_xml",
    "hypervisor.network",
    "hypervisor.networks",
    "hypervisor.open_graphics",
    "hypervisor.password_protected_graphics",
    "hypervisor.wait_stopped",
    "hypervisor.watch_device_removal",
    "hypervisor.watch_reboot",
    "kernel_messages.watch",
    "operations.killed",
    "operations.living",
    "operations.remove_ended",
    "operations.state",
    "processes.find_holders",
    "scratch.read",
    "scratch.write",
    "snapshots.get",
    "storage.file_system_bytes",
    "storage.image",
    "storage.image_files",
    "storage.list_files",
    "storage.pool",
    "storage.pools",
    "storage.read_private_volume",
    "storage.resolve",
    "storage.volume",
    "storage.volumes",
    "sysfs.listdir",
    "sysfs.permissions",
    "sysfs.read",
    "sysfs.readlink",
    "system.has_group",
    "system.has_user",
    "system.has_systemd",
    "system.is_active",
    "system.is_directory",
    "system.is_empty",
    "system.notify_ready",
    "system.read",
    "system.readlink",
    "unfinished_files.all",
    "volume_bin.volumes",
}
"""Calls that leave the host as it is, or whose effect nothing depends on: they never fail after they took effect."""


def error_of(call: str) -> Exception:
    """Return the error that this call raises."""
    port = call.partition(".")[0]
    if port in ("hypervisor", "storage", "volume_bin", "guest_agent"):
        return LibvirtFailed(f"injected: {call} failed", libvirt_code=38, call=call)
    if port == "nvml":
        return NvmlFailed(f"injected: {call} failed", nvml_code=999, call=call)
    if call == "processes.find_holders":
        return PermissionError(errno.EPERM, "injected", call)
    if call in ("claims.lock", "claims.gpu_creation_lock"):
        return Locked("injected: another vgpuctl holds the host lock")
    number = errno.ENOSPC if port == "claims" else errno.EIO
    return OSError(number, f"injected: {os.strerror(number)}", call)


@dataclass
class Watch:
    """Records every call of every port; runs `before` ahead of each call and `after` once the call has returned."""

    calls: list[str] = field(default_factory=list)
    before: Callable[[int, str, tuple[Any, ...]], None] = lambda number, call, args: None
    after: Callable[[int, str, tuple[Any, ...]], None] = lambda number, call, args: None

    def watch(self, ports: Host) -> Host:
        """Return the host with watched ports."""
        names = (
            "sysfs",
            "nvml",
            "hypervisor",
            "storage",
            "processes",
            "operations",
            "claims",
            "host_file",
            "vendor_commands",
            "system_log",
            "system",
            "unfinished_files",
            "volume_bin",
            "domain_joins",
        )
        return replace(ports, **{name: WatchedPort(name, getattr(ports, name), self) for name in names})


class WatchedPort:
    def __init__(self, name: str, inner: Any, watch: Watch) -> None:
        self._name, self._inner, self._watch = name, inner, watch

    def __getattr__(self, method: str) -> Any:
        attribute = getattr(self._inner, method)
        if not callable(attribute):
            return attribute
        call = f"{self._name}.{method}"

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._watch.calls.append(call)
            number = len(self._watch.calls)
            self._watch.before(number, call, args)
            result = attribute(*args, **kwargs)
            self._watch.after(number, call, args)
            return result

        return watched


def counted(ports: Host, act: Callable[[Host], object]) -> tuple[str, ...]:
    """Run `act` once without a fault and return the calls it made."""
    watch = Watch()
    act(watch.watch(ports))
    return tuple(watch.calls)


def failing(ports: Host, at: int, *, done: bool = False, for_good: bool = False) -> Host:
    """Return the host whose call number `at` fails.

    `done`: the call takes effect and then fails, as when the reply is lost. `for_good`: the same call on the same
    object fails from then on, so it fails in the undo too.
    """
    broken: set[object] = set()

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        same = (call, args[0] if args else None)
        if (number == at or same in broken) and call not in NEVER_RAISE:
            if for_good:
                broken.add(same)
            raise error_of(call)

    return (Watch(after=fail) if done else Watch(before=fail)).watch(ports)


def dying(ports: Host, at: int, *, done: bool = False) -> Host:
    """Return a host that kills this process in call number `at`; use it in a child process."""

    def die(number: int, *_: object) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return (Watch(after=die) if done else Watch(before=die)).watch(ports)


def outcome(act: Callable[[], object]) -> VgpuctlError | None:
    """Run `act` and return the error that a user would see; anything but a VgpuctlError is a bug."""
    try:
        act()
    except VgpuctlError as error:
        return error
    return None


def sampled(points: Iterable[Point]) -> list[Point]:
    """Return every point of a test that stops an action there: all with `test --all`, else one of seven, spread evenly.

    Where these would be few, it returns more of them. `tests.mutate` runs all of them, too.
    """
    every = list(points)
    step = 1 if EVERYTHING else min(SAMPLED_OF, len(every) // FEW_POINTS) | 1
    return every[len(every) % step :: step]


def acts_on_backends(acts: Iterable[str], kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Return (act, kind) pairs: every act on `vendor-vf`, and a sample of them on the other backends."""
    every = list(product(acts, kinds))
    others = sampled((act, kind) for act, kind in every if kind != FULL_BACKEND)
    return [pair for pair in every if pair[1] == FULL_BACKEND or pair in others]


def fault_points(calls: tuple[str, ...], *, every_read: bool) -> list[tuple[int, bool, bool]]:
    """Return (number, done, for good) for the faults of this run, as `sampled` draws them.

    A change also fails after it took effect. Before the first change there is nothing to undo.
    Most calls are similar reads of sysfs; they fail only with `every_read`.
    """
    return sampled(_every_fault(calls, every_read=every_read))


def _every_fault(calls: tuple[str, ...], *, every_read: bool) -> Iterator[tuple[int, bool, bool]]:
    for number, call in enumerate(calls, start=1):
        is_read = call in ("sysfs.read", "sysfs.readlink", "sysfs.listdir")
        if call in NEVER_RAISE or (is_read and not every_read):
            continue
        yield number, False, False
        if set(calls[:number]) & CHANGING:
            yield number, False, True
        if call in CHANGING:
            yield number, True, False
            yield number, True, True


def _whole_unknown(host: SimulatedHost, where: str) -> None:
    raise AssertionError(f"{where}: this trial does not say when a host is consistent")


@dataclass(frozen=True)
class Trial:
    """An action that is repeated on copies of a host, while each of its calls in turn fails or kills the process.

    `prepared` builds the host once, in its own directory; each repetition gets a copy. `whole` checks that a host is
    consistent after an interrupted action and a run of reconcile; `killed` leaves that to the test. `act` must be a
    function of a module, because it is pickled for the process that is killed.
    """

    directory: Path
    prepared: Callable[[Path], SimulatedHost]
    act: Act
    whole: Callable[[SimulatedHost, str], None] = _whole_unknown

    @cached_property
    def made(self) -> SimulatedHost:
        """The prepared host."""
        return self.prepared(self.directory / "made")

    def host(self, name: str) -> SimulatedHost:
        """Return a copy of the prepared host."""
        return copied(self.made, self.directory / name)

    def calls(self) -> tuple[str, ...]:
        """Return the calls of the action when none fails."""
        return counted(self.host("dry").ports, self.act)

    def failures(self, calls: tuple[str, ...]) -> int:
        """Make each call fail; return how often the action raised an error.

        After an error, everything is undone. Otherwise the error lists what is left, or a claim could not be removed,
        and reconcile fixes it.
        """
        refused = 0
        for number, done, for_good in fault_points(calls, every_read=False):
            where = f"call {number} {calls[number - 1]}, done={done}, for good={for_good}"
            host = self.host(f"{number}{done}{for_good}")
            before = picture(host)
            error = outcome(partial(self.act, failing(host.ports, number, done=done, for_good=for_good)))
            host.sim.close()
            if error is None:
                assert picture(host) != before, where
                continue
            refused += 1
            if picture(host) != before:
                partly = error.code == "partly-applied" and bool(error.left)
                claim = for_good and calls[number - 1].startswith("claims.")
                assert partly or claim, where
                later = host.again()
                run_reconcile(later.ports)
                self.whole(later, where)
        return refused

    def deaths(self, calls: tuple[str, ...], spawn: BaseContext) -> int:
        """Kill a process in each call that changes something; return how often reconcile found leftovers."""
        repaired = 0
        for _, _, where, later in self.killed(calls, spawn):
            repaired += bool(run_reconcile(later.ports, dry_run=True).data.findings)
            run_reconcile(later.ports)
            self.whole(later, where)
        return repaired

    def killed(self, calls: tuple[str, ...], spawn: BaseContext) -> Iterator[tuple[int, bool, str, SimulatedHost]]:
        """Kill a process in each call that changes something, before or after it took effect; yield what it leaves.

        Number of the call, whether it took effect, both in words, and the host.
        """
        for number, done in sampled((n, d) for n, c in enumerate(calls, 1) if c in CHANGING for d in (False, True)):
            where = f"killed in call {number} {calls[number - 1]}, done={done}"
            host = self.host(f"{number}{done}")
            child = spawn.Process(target=_die, args=(host.directory, host.scenario, self.act, number, done))
            child.start()
            child.join(30)
            assert child.exitcode == -signal.SIGKILL, where
            host.sim.close()
            yield number, done, where, open_sim_host(host.directory, host.scenario)


def _die(directory: Path, scenario: str, act: Act, number: int, done: bool) -> None:
    act(dying(open_sim_host(directory, scenario).ports, number, done=done))
