# SPDX-License-Identifier: Apache-2.0
"""One start or stop of one VM, for libvirt.

`prepare begin` makes what is missing, or refuses the start; `release end` gives back what a VM reserves only to run.
libvirt shows stderr of a hook that fails as the reason why the VM did not start, so that is one line: what, where,
the numbers, and what helps. HEAD is the part of the XML that the shell script has read already.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from vgpuctl.domain.record import ROOT_TAG, promise_of
from vgpuctl.engine.devices import (
    DOMAINS,
    free_devices,
    make_anywhere,
    make_devices,
    missing_devices,
    refuse_half_way,
)
from vgpuctl.engine.guards import require_writable
from vgpuctl.errors import Busy, Temporary, VgpuctlError
from vgpuctl.model.vm import PromiseState, Vm, VmState
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.model.world import World

DEADLINE_SECONDS = 20.0
LOCK_SECONDS = 15.0
KEPT = (["saved"], ["migrated"])
"""Why a VM ends whose device stays (libvirt tells from 10.5 on): it goes on with it later, or elsewhere."""


class Silent:
    """Progress that nobody watches."""

    def planned(self, steps: tuple[str, ...]) -> None:
        """Nothing."""

    def started(self, number: int, text: str) -> None:
        """Nothing."""

    def finished(self, number: int, text: str) -> None:
        """Nothing."""

    def undoing(self, text: str) -> None:
        """Nothing."""


def main(arguments: Sequence[str]) -> int:
    """Run the hook and return its exit status: 0 lets libvirt go on, anything else stops the VM's start.

    `--simulated SCENARIO` in front is for tests: it is an argument, so that no environment can point root's hook
    elsewhere.
    """
    words = list(arguments)
    scenario = None
    if words[:1] == ["--simulated"]:
        scenario, words = words[1], words[2:]
    head, _, operation, *rest = words
    act = _ACTS.get(" ".join((operation, *rest[:1])))
    if act is None or rest[1:2] in KEPT:
        return 0
    try:
        with_deadline(DEADLINE_SECONDS)
        act(_world(scenario), head + sys.stdin.read())
    except VgpuctlError as error:
        return _refuse(error.message, error.hint)
    except Exception as error:  # noqa: BLE001 - whatever it is, a start with a wrong device is worse than none
        return _refuse(f"{type(error).__name__}: {error}", "vgpuctl start-vm says more")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return 0


def _refuse(message: str, hint: str | None) -> int:
    line = f"vgpuctl: {message}; {hint}" if hint else f"vgpuctl: {message}"
    sys.stderr.write(f"{' '.join(line.split())}\n")
    return 1


def with_deadline(seconds: float) -> None:
    """Raise Temporary in this process when the time is over: libvirt would wait for ever."""

    def over(number: int, frame: FrameType | None) -> None:
        raise Temporary(f"the vGPU was not ready within {seconds:g} seconds", hint="start the VM again")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _world(scenario: str | None) -> World:
    if scenario is not None:
        from vgpuctl.simulated import simulated_world

        return simulated_world(scenario)
    from vgpuctl.host.quiet import quiet_world

    return quiet_world()


def prepare(world: World, xml: str) -> None:
    """Make the missing vGPUs of the domain in `xml`; one without a promise of its own on this host is let pass.

    Raises:
        VgpuctlError: why the VM cannot have them now.
    """
    vm = read(xml, world.machine_id)
    if vm is None or vm.promise is None:
        return
    if vm.promise.state is PromiseState.REMOVING:
        refuse_half_way(vm, vm.promise)
    if not missing_devices(world, vm, vm.promise):
        return
    require_writable(world)
    if vm.promise.lends:
        make_anywhere(world, vm, vm.promise, (vm, *_others(world, vm)), LOCK_SECONDS, Silent())
    else:
        make_devices(world, vm, vm.promise, (vm,), LOCK_SECONDS, Silent())


def release(world: World, xml: str) -> None:
    """Give back what the domain in `xml` has and reserves only while it runs.

    Raises:
        VgpuctlError: a device could not be removed; vgpuctl reconcile does it later.
    """
    vm = read(xml, world.machine_id)
    if vm is None or vm.promise is None or not vm.promise.lends:
        return
    try:
        free_devices(world, vm, vm.promise, LOCK_SECONDS, Silent())
    except Busy:
        return  # who works on the VM gives it back


_ACTS = {"prepare begin": prepare, "release end": release}


def _others(world: World, vm: Vm) -> tuple[Vm, ...]:
    """Return the other VMs with a record, from libvirt's own files: what they keep always is not lent.

    What is in a file that cannot be understood is known by its claim or device alone.
    """
    found = []
    try:
        names = world.sysfs.listdir(DOMAINS)
    except FileNotFoundError:
        return ()
    for name in (n for n in names if n.endswith(".xml")):
        try:
            other = read(world.sysfs.read(f"{DOMAINS}/{name}"), world.machine_id)
        except (OSError, ValueError, VgpuctlError):
            continue
        if other is not None and other.uuid != vm.uuid:
            found.append(other)
    return tuple(found)


def read(xml: str, machine_id: str) -> Vm | None:
    """Return what the hook needs of a domain: its names and its promise. None: it has no record of vgpuctl.

    A record that names another VM or host is a copy and left out, as everywhere.

    Raises:
        VgpuctlError: the record cannot be understood.
    """
    try:
        root = ElementTree.fromstring(xml)  # noqa: S314 - libvirt wrote it
        record = root.find(f"metadata/{ROOT_TAG}")
        if record is None:
            return None
        promise = promise_of(record)
    except (ElementTree.ParseError, ValueError) as error:
        raise VgpuctlError(
            f"the VM's record cannot be read: {error}",
            hint="a newer vgpuctl may have written it; vgpuctl show-vm says more",
        ) from error
    uuid = (root.findtext("uuid") or "").strip().lower()
    vm = Vm(root.findtext("name") or "", uuid, VmState.UNKNOWN, 0, 0)
    own = promise.vm_uuid == uuid and promise.machine_id == machine_id
    return replace(vm, promise=promise) if own else replace(vm, copied_promise=promise)
