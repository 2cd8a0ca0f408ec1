# SPDX-License-Identifier: Apache-2.0
"""A World whose seams are watched: count the calls, and make the n-th one fail, or die in it.

The fault point is "the n-th call of all seams"; how many there are is counted by a dry pass, so a new step is
covered without a new test. A call fails with the error that its seam may raise; calls that never raise are
only counted.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from tests.worlds import Act, Host, copied, mend, open_host, picture
from vgpuctl.errors import LibvirtFailed, Locked, NvmlFailed, VgpuctlError
from vgpuctl.model.world import World
from vgpuctl.value import replace

NEVER_RAISE = {
    "nvml.status",
    "nvml.gpu",
    "nvml.ecc",
    "nvml.guests",
    "nvml.placements",
    "kernel_log.lines",
    "kernel_log.service_lines",
    "hypervisor.status",
    "processes.this",
    "processes.command",
    "processes.alive",
    "claims.forget_drained",
    "claims.forget_working",
}
CHANGING = {
    "sysfs.write",
    "sysfs.write_parked",
    "hypervisor.define",
    "hypervisor.undefine",
    "hypervisor.set_promise",
    "hypervisor.start",
    "hypervisor.shutdown",
    "hypervisor.destroy",
    "hypervisor.redefine",
    "hypervisor.attach_device",
    "hypervisor.detach_device",
    "storage.make_pool",
    "storage.start_pool",
    "storage.make_volume",
    "storage.put_volume",
    "storage.remove_volume",
    "claims.add",
    "claims.renew",
    "claims.remove",
    "claims.note_drained",
    "claims.note_working",
    "host_file.replace",
    "vendor.sriov_manage",
    "vendor.reset_gpu",
    "nvml.set_scheduler",
    "nvml.set_mig",
    "nvml.make_instance",
    "nvml.destroy_instance",
    "nvml.set_mixed_size",
    "system.put",
    "system.remove",
    "unfinished.remove",
}


def error_of(call: str) -> Exception:
    """Return the error with which this call fails."""
    seam = call.partition(".")[0]
    if seam in ("hypervisor", "storage"):
        return LibvirtFailed(f"injected: {call} failed", libvirt_code=38, call=call)
    if seam == "nvml":
        return NvmlFailed(f"injected: {call} failed", nvml_code=999, call=call)
    if call == "processes.holders":
        return PermissionError(errno.EPERM, "injected", call)
    if call in ("claims.lock", "claims.turn"):
        return Locked("injected: another vgpuctl holds the host lock")
    number = errno.ENOSPC if seam == "claims" else errno.EIO
    return OSError(number, f"injected: {os.strerror(number)}", call)


@dataclass
class Watch:
    """Sees every call of every seam. `before` is asked before a call, `after` once it has been done."""

    calls: list[str] = field(default_factory=list)
    before: Callable[[int, str, tuple[Any, ...]], None] = lambda number, call, args: None
    after: Callable[[int, str, tuple[Any, ...]], None] = lambda number, call, args: None

    def watch(self, world: World) -> World:
        """Return the world with watched seams."""
        names = (
            "sysfs",
            "nvml",
            "hypervisor",
            "storage",
            "processes",
            "claims",
            "host_file",
            "vendor",
            "kernel_log",
            "system",
            "unfinished",
        )
        return replace(world, **{name: _Seam(name, getattr(world, name), self) for name in names})


class _Seam:
    def __init__(self, name: str, inner: Any, watch: Watch) -> None:
        self._name, self._inner, self._watch = name, inner, watch

    def __getattr__(self, method: str) -> Any:
        found = getattr(self._inner, method)
        if not callable(found):
            return found
        call = f"{self._name}.{method}"

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._watch.calls.append(call)
            number = len(self._watch.calls)
            self._watch.before(number, call, args)
            result = found(*args, **kwargs)
            self._watch.after(number, call, args)
            return result

        return watched


def counted(world: World, act: Callable[[World], object]) -> tuple[str, ...]:
    """Do it once without a fault and return the calls it made."""
    watch = Watch()
    act(watch.watch(world))
    return tuple(watch.calls)


def failing(world: World, at: int, *, done: bool = False, for_good: bool = False) -> World:
    """Return the world whose call number `at` fails.

    `done`: it fails after it was done, as when the answer is lost. `for_good`: the same call on the same thing fails
    ever after, so the undo meets it too.
    """
    broken: set[object] = set()

    def fail(number: int, call: str, args: tuple[Any, ...]) -> None:
        same = (call, args[0] if args else None)
        if (number == at or same in broken) and call not in NEVER_RAISE:
            if for_good:
                broken.add(same)
            raise error_of(call)

    return (Watch(after=fail) if done else Watch(before=fail)).watch(world)


def dying(world: World, at: int, *, done: bool = False) -> World:
    """Return the world in whose call number `at` this process is killed; use it in a process of its own."""

    def die(number: int, *_: object) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)

    return (Watch(after=die) if done else Watch(before=die)).watch(world)


def outcome(act: Callable[[], object]) -> VgpuctlError | None:
    """Do it and return the error that a user would see; anything but an error of ours is a bug."""
    try:
        act()
    except VgpuctlError as error:
        return error
    return None


def fault_points(calls: tuple[str, ...], *, every_read: bool) -> Iterator[tuple[int, bool, bool]]:
    """Yield (number, done, for good): a change also fails after it was done; before the first, nothing is undone.

    Reads of sysfs are most of the calls and mostly alike: `every_read` says whether each of them fails.
    """
    for number, call in enumerate(calls, start=1):
        look = call in ("sysfs.read", "sysfs.readlink", "sysfs.listdir")
        if call in NEVER_RAISE or (look and not every_read):
            continue
        yield number, False, False
        if set(calls[:number]) & CHANGING:
            yield number, False, True
        if call in CHANGING:
            yield number, True, False
            yield number, True, True


@dataclass(frozen=True)
class Trial:
    """Something that is done on a host, again and again, while each of its calls fails or is a process's last.

    `prepared` makes the host on which it is due, in a directory of its own, once: each trial has a copy of it. `whole`
    sees that a host on which it broke off is whole once reconcile has run. `act` is pickled for a process that is
    killed: it is a function of a module.
    """

    directory: Path
    prepared: Callable[[Path], Host]
    act: Act
    whole: Callable[[Host, str], None]

    @cached_property
    def made(self) -> Host:
        """The host that was prepared."""
        return self.prepared(self.directory / "made")

    def host(self, name: str) -> Host:
        """Return a copy of the host that was prepared."""
        return copied(self.made, self.directory / name)

    def calls(self) -> tuple[str, ...]:
        """Return the calls that it makes when none fails."""
        return counted(self.host("dry").world, self.act)

    def failures(self, calls: tuple[str, ...]) -> int:
        """Let each call fail; return how often that was an error.

        Then all is undone; or the error says what is left, or a claim cannot be removed, and reconcile mends it.
        """
        refused = 0
        for number, done, for_good in fault_points(calls, every_read=False):
            where = f"call {number} {calls[number - 1]}, done={done}, for good={for_good}"
            host = self.host(f"{number}{done}{for_good}")
            before = picture(host)
            error = outcome(partial(self.act, failing(host.world, number, done=done, for_good=for_good)))
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
                mend(later.world)
                self.whole(later, where)
        return refused

    def deaths(self, calls: tuple[str, ...], spawn: BaseContext) -> int:
        """Kill a process in each call that changes something; return how often reconcile found what it left."""
        found = 0
        for number, done in [(n, d) for n, c in enumerate(calls, 1) if c in CHANGING for d in (False, True)]:
            where = f"killed in call {number} {calls[number - 1]}, done={done}"
            host = self.host(f"{number}{done}")
            child = spawn.Process(target=_die, args=(host.directory, host.scenario, self.act, number, done))
            child.start()
            child.join(30)
            assert child.exitcode == -signal.SIGKILL, where
            later = open_host(host.directory, host.scenario, later=2)
            found += bool(mend(later.world, dry_run=True).data["findings"])
            mend(later.world)
            self.whole(later, where)
        return found


def _die(directory: Path, scenario: str, act: Act, number: int, done: bool) -> None:
    act(dying(open_host(directory, scenario, later=1).world, number, done=done))
