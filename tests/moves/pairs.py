# SPDX-License-Identifier: Apache-2.0
"""Two simulated hosts and a VM on the first one, the moves that are tried, and what must be true of both at any time.

A shared disk is a file that both hosts have at the same path on a network file system: no move may delete it on either.
What the guest wrote to its disks is known by a mark that no new file has, so that a test knows where the data is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import Watch, WatchedPort
from tests.hosts import (
    Picture,
    SimulatedHost,
    context,
    copied,
    create,
    kill_operation,
    open_sim_host,
    picture,
    request,
    run_reconcile,
)
from tests.meanwhile import with_calls
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import VgpuctlError
from vgpuctl.library import GpuHost
from vgpuctl.library.move_between import MoveRequest, move_vm
from vgpuctl.library.move_end import settle
from vgpuctl.model.outcome import CallSettings
from vgpuctl.model.request import CloudInit, CloudInitFile, NewDisk
from vgpuctl.model.results.migration import EndedMigrationResult
from vgpuctl.model.vm import RecordState, VmState
from vgpuctl.operations.power import start_vm
from vgpuctl.ports.host import Host
from vgpuctl.value import replace

DATA = "uefi"
"""What a file of the simulated host says of its content, which goes along with it: here, that the guest wrote to it."""
NAS = "/srv/nas"
MOUNTS = f"23 1 8:1 / / rw - ext4 /dev/sda1 rw\n24 23 0:40 / {NAS} rw shared:1 - nfs4 nas:/vms rw\n"
HOST = f"""version: 1
storage: {{pools: [{{name: default}}, {{name: nas, path: {NAS}}}]}}
networks: [{{name: default}}]
images: [{{path: /base.qcow2, size_gib: 20, firmware: both}}]
gpus: [{{model: A100, vfs: {{total: 3, enabled: 3}}}}]
"""
LIBVIRT_DIES = "faults: [{on: migrate, kind: unknown, nth: 1}]\n"
SEED = CloudInit(CloudInitFile("/root/user-data", "#cloud-config\na: 1\n"))
Act = Callable[[Host, Host, "Pair"], object]


@dataclass(frozen=True)
class Kind:
    """A way to move. `copies`: with --copy-storage, which does nothing for disks that are `shared`, as both hosts'.

    `libvirt_dies`: on the source, when all has come and before it knows that.
    """

    name: str
    offline: bool = False
    copies: bool = True
    shared: bool = False
    libvirt_dies: bool = False
    runs: bool = True

    def request(self, target: SimulatedHost, *, offline: bool) -> MoveRequest:
        """Return how the VM moves to a host."""
        return MoveRequest(target.sim.migration_uri, offline=offline, copies_disks=self.copies, insecure=True)


KINDS = {
    kind.name: kind
    for kind in (
        Kind("live, disks copied"),
        Kind("live, disks shared", copies=False, shared=True),
        Kind("live, disks shared, --copy-storage", shared=True),
        Kind("live, libvirt dies", libvirt_dies=True),
        Kind("offline, disks copied", offline=True),
        Kind("offline, disks shared, --copy-storage", offline=True, shared=True),
        Kind("off, disks copied", offline=True, runs=False),
    )
}


@dataclass
class Pair:
    """Two hosts. `uuid`: the VM's. `empty`: each before it had the VM."""

    directory: Path
    kind: Kind
    uuid: str
    source: SimulatedHost
    target: SimulatedHost
    empty: tuple[Picture, Picture]

    @property
    def hosts(self) -> tuple[SimulatedHost, SimulatedHost]:
        """Both."""
        return self.source, self.target

    def copied(self, name: str) -> Pair:
        """Return a copy, whose operations have ended."""
        base = self.directory.parent / name
        return replace_hosts(self, base, copied(self.source, base / "source"), copied(self.target, base / "target"))

    def again(self) -> Pair:
        """Return both hosts as another process opens them."""
        self.close()
        opened = (open_sim_host(h.directory, h.scenario) for h in self.hosts)
        return replace_hosts(self, self.directory, *opened)

    def close(self) -> None:
        """Let go of both hosts, as a process does that ends."""
        for host in self.hosts:
            kill_operation(host.ports)
            host.sim.close()

    def running_on(self) -> list[SimulatedHost]:
        """Return the hosts on which its guest runs."""
        states = [(host, host.sim._core.read_state().running.get(self.uuid)) for host in self.hosts]
        return [host for host, running in states if running is not None and running.state == "running"]

    def defined_on(self) -> list[SimulatedHost]:
        """Return the hosts that have it in any state."""
        return [host for host in self.hosts if self.uuid in host.sim._core.read_state().domains]


def replace_hosts(pair: Pair, directory: Path, source: SimulatedHost, target: SimulatedHost) -> Pair:
    """Return a pair with the same story and other hosts."""
    return Pair(directory, pair.kind, pair.uuid, source, target, pair.empty)


def made_pair(directory: Path, kind: Kind) -> Pair:
    """Return two hosts, with the VM on the source."""
    base = directory / "made"
    source = open_sim_host(base / "source", text=HOST + (LIBVIRT_DIES if kind.libvirt_dies else ""))
    target = open_sim_host(base / "target", text=HOST)
    more = {"storage_pool": "nas"} if kind.shared else {"seed": SEED}
    asked = request("A100-4C", name="vm", image="/base.qcow2", disks=(NewDisk(1024),), **more)
    empty = (picture(source), picture(target))
    uuid = create(source.ports, asked, start=kind.runs).data.uuid
    _write_data(source, target)
    pair = Pair(base, kind, uuid, source, target, empty)
    shared = {path: file for path, file in picture(source).files.items() if path.startswith(NAS)}
    for known in empty:
        known.files.update(shared)
    return pair.again()


def _write_data(source: SimulatedHost, target: SimulatedHost) -> None:
    """Have the guest write to its disks; those on the network file system are on both hosts."""
    for file in list(source.sim._core.read_state().files.values()):
        if file.format == "raw" or file.path == "/base.qcow2":
            continue  # nobody writes to the seed and the image
        words = (file.path, file.size, file.format, file.base, file.allocation, DATA)
        for host in (source, target) if file.path.startswith(NAS) else (source,):
            with host.sim._core.operation("test", "write") as change:
                change.add("file", *words)


class Again(WatchedPort):
    """A watched port whose copy for another operation is watched, too."""

    def __getattr__(self, method: str) -> Any:
        call = super().__getattr__(method)
        if method not in ("another", "of_operation"):
            return call
        return lambda *args: Again(self._name, call(*args), self._watch)


def watched(ports: Host, watch: Watch) -> Host:
    """Return the host with every call watched, also those of each operation of the library."""
    seen = watch.watch(ports)
    return replace(
        seen,
        operations=Again("operations", ports.operations, watch),
        claims=Again("claims", ports.claims, watch),
    )


def library_host(ports: Host, wait_seconds: float = 5.0) -> GpuHost:
    """Return the host as the driver of a move has it, with the network file system."""
    read = ports.sysfs.read
    mounted = with_calls(ports, "sysfs", read=lambda path: MOUNTS if path == "/proc/self/mountinfo" else read(path))
    return GpuHost(mounted, CallSettings(wait_seconds))


def move(source: Host, target: Host, pair: Pair) -> object:
    """Run migrate-vm."""
    asked = pair.kind.request(pair.target, offline=pair.kind.offline)
    return move_vm(library_host(source), library_host(target), "vm", asked)


def settled(source: Host, target: Host) -> EndedMigrationResult:
    """Run end-migration."""
    return settle(library_host(source), library_host(target), "vm")


def end_move(source: Host, target: Host, pair: Pair) -> object:
    """Run end-migration, as the act of a trial."""
    return settled(source, target)


def invariants(pair: Pair) -> list[str]:
    """Return what is wrong on the two hosts at any instant, also while a move goes on."""
    wrong = []
    if len(pair.running_on()) > 1:
        wrong.append("the VM runs on both hosts")
    wrong += [] if _has_data(pair) else ["no host has the data of its disks"]
    for host, empty in zip(pair.hosts, pair.empty, strict=True):
        where = "source" if host is pair.source else "target"
        state, now = host.sim._core.read_state(), picture(host)
        running = state.running.get(pair.uuid)
        devices = {*now.mdevs, *(carrier for carrier, number in now.types.items() if number)}
        wrong += [f"{where}: a device {c} without a claim" for c in sorted(devices - set(now.claims))]
        lost = {path for path in empty.files if path not in now.files}
        wrong += [f"{where}: {path} was deleted" for path in sorted(lost)]
        if running is not None:
            wrong += [f"{where}: it is on and lacks {c}" for c in running.carriers if c not in devices]
            wrong += [f"{where}: it is on without a claim on {c}" for c in running.carriers if c not in now.claims]
            xml = state.domains[pair.uuid].xml if pair.uuid in state.domains else running.xml
            record = parse_domain(xml, VmState.RUNNING, host.ports.machine_id).record
            named = () if record is None else record.disks
            wrong += [f"{where}: it is on without its disk {d.path}" for d in named if d.path not in now.files]
    return wrong


def _has_data(pair: Pair) -> bool:
    """Return whether one host has every disk with the data of the guest."""
    for host in pair.hosts:
        files = host.sim._core.read_state().files.values()
        if sum(f.firmware == DATA for f in files) >= 2:
            return True
    return False


def final(pair: Pair, *, may_be_off: bool) -> list[str]:
    """Return what is wrong after a move was ended: the VM is on one host, and the other one is as before it had it."""
    wrong = invariants(pair)
    owners = pair.defined_on()
    if len(owners) != 1:
        return [*wrong, f"it is defined on {len(owners)} hosts"]
    (owner,) = owners
    where = "source" if owner is pair.source else "target"
    other = pair.target if owner is pair.source else pair.source
    now, empty = picture(other), pair.empty[pair.hosts.index(other)]
    if now != empty and replace_claims(now, empty.claims) == empty:  # of a VM that libvirt does not know any more
        problem = reconcile_quietly(other)
        wrong += [] if problem is None else [problem]
        now = picture(other)
    wrong += [
        f"left on the {'source' if other is pair.source else 'target'}: {name} {getattr(now, name)}"
        for name in vars(empty)
        if getattr(now, name) != getattr(empty, name)
    ]
    state, here = owner.sim._core.read_state(), picture(owner)
    running = state.running.get(pair.uuid)
    vm = parse_domain(
        state.domains[pair.uuid].xml, VmState.RUNNING if running else VmState.STOPPED, owner.ports.machine_id
    )
    if vm.record is None or vm.record.state is not RecordState.READY:
        return [*wrong, f"{where}: its record is {None if vm.record is None else vm.record.state}"]
    wrong += [f"{where}: its disk {d.path} is missing" for d in vm.record.disks if d.path not in here.files]
    data = [f for f in state.files.values() if f.firmware == DATA]
    wrong += [] if len(data) >= 2 else [f"{where}: its disks do not have its data"]
    carriers = {v.carrier for v in vm.record.vgpus}
    if not carriers == set(here.claims) == set(here.types) | set(here.mdevs):
        wrong.append(f"{where}: record {carriers}, claims {set(here.claims)}, devices {set(here.types)}")
    if running is None and pair.kind.runs and not may_be_off:
        wrong.append(f"{where}: it is off")
    if running is not None and running.state != "running":
        wrong.append(f"{where}: it is {running.state}")
    return wrong


def replace_claims(seen: Picture, claims: dict[str, str]) -> Picture:
    """Return a picture with other claims."""
    return dataclasses.replace(seen, claims=claims)


def move_again(pair: Pair) -> list[str]:
    """Move the VM from the host that has it to the other one, and return what is wrong then."""
    owner = pair.defined_on()[0]
    other = pair.target if owner is pair.source else pair.source
    if pair.kind.runs and not pair.running_on():
        start_vm(owner.ports, context(), "vm")
        owner.ports.operations.end()
    request_ = pair.kind.request(other, offline=pair.kind.offline)
    try:
        move_vm(library_host(owner.ports), library_host(other.ports), "vm", request_)
    except VgpuctlError as error:
        return [f"it cannot move again: {error.code} {error}"]
    wrong = final(pair, may_be_off=False)
    return wrong if pair.defined_on() == [other] else [*wrong, "it has not moved"]


def reconcile_quietly(host: SimulatedHost) -> str | None:
    """Run reconcile-host; return its error."""
    try:
        run_reconcile(host.ports)
    except VgpuctlError as error:
        return f"{error.code} {error}"
    return None
