# SPDX-License-Identifier: Apache-2.0
"""Many hosts in one process: what a controller asks of an agent, answered from memory; the fence is the real one.

    hosts = ThinHosts(tmp_path, gpus=8, lists_until_ready=2)
    Engine(store, hosts.link)

tests/controller/test_thin_host.py holds its answers to a real agent's. `calls_at_once` and `starting_at_once` are the
most that ever were.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.rooms import room_of
from vgpuctl.agent.fleet_fence import FleetFence
from vgpuctl.controller.model import FleetHost
from vgpuctl.errors import Exists, NoCapacity, NotFound
from vgpuctl.gpu.equal_size import EqualSizeKind
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest, FleetStatus
from vgpuctl.model.host_room import HostRoom
from vgpuctl.model.image_copy import CopyState, ImageCopy, ImageRequest
from vgpuctl.model.outcome import QueryResult
from vgpuctl.model.results.usage import UsageResult
from vgpuctl.model.results.vms import AddressesResult, AddressResult
from vgpuctl.value import Value, replace

PROFILE = "A100-4C"
VGPUS_PER_GPU = 10
KIND = EqualSizeKind("NVIDIA A100", 40960, {PROFILE: 4096}, {PROFILE: VGPUS_PER_GPU})


class ThinVgpu(Value):
    """A vGPU of such a row."""

    gpu: str
    profile: str = PROFILE
    framebuffer_mib: int = KIND.sizes[PROFILE]
    placement_id: int | None = None
    present: bool = True


class ThinVm(Value):
    """A row of `list_vms`, as far as a controller reads it. `times_listed`: how often since its start.

    `address`: the one that the host sees.
    """

    name: str
    uuid: str
    state: str
    generation: int
    desktop: DesktopMark
    image: str
    guest_users: tuple[str, ...] | None = None
    driver: str | None = None
    should_run: bool | None = None
    off_after_setup: bool | None = None
    prepared: bool | None = None
    stop_reason: str | None = None
    render_gpu: str | None = None
    vgpus: tuple[ThinVgpu, ...] = ()
    reserve: str = "always"
    times_listed: int = 0
    address: str | None = None


class ThinHost:
    """One host. `lists_until_ready`: its guests answer when they were listed so often since their start."""

    def __init__(self, name: str, directory: Path, gpus: int, lists_until_ready: int) -> None:
        directory.mkdir(parents=True)
        self.name = name
        self.capacity = gpus * VGPUS_PER_GPU
        self.lists_until_ready = lists_until_ready
        self.vms: dict[str, ThinVm] = {}
        self.images: dict[str, ImageCopy] = {}
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.fence = FleetFence(directory, lambda: 0.0, lambda: False)
        self.running_calls = 0
        self.calls_at_once = 0
        self.starting_at_once: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.usage = UsageResult(name, 0.0, 0.0, 0.0, None, (), ())

    def count_starting(self) -> None:
        """Note how many of each pool start now; with the lock held."""
        starting = Counter(
            vm.desktop.pool for vm in self.vms.values() if vm.state == "running" and not self.answers(vm)
        )
        for pool, count in starting.items():
            self.starting_at_once[pool] = max(self.starting_at_once[pool], count)

    def taken(self) -> dict[str, int]:
        """Return how many vGPUs are on each GPU; with the lock held."""
        counts = dict.fromkeys((f"0000:{number:02x}:00.0" for number in range(self.capacity // VGPUS_PER_GPU)), 0)
        for vm in self.vms.values():
            for vgpu in vm.vgpus:
                counts[vgpu.gpu] += 1
        return counts

    def answers(self, vm: ThinVm) -> bool:
        """Return whether a VM's guest answers."""
        return vm.times_listed >= self.lists_until_ready


class ThinCalls:
    """The calls of one host, with what a change carries. They have the names and results of `AgentHost`."""

    def __init__(self, host: ThinHost, fleet: FleetRequest | None, cancelled: Callable[[], bool]) -> None:
        self._host = host
        self._fleet = fleet
        self._cancelled = cancelled

    def read_fleet(self) -> FleetStatus:
        state = self._host.fence.state
        obeyed = (None, None, None) if state is None else (state.incarnation, state.epoch, state.holder)
        return FleetStatus(f"machine-{self._host.name}", "boot-1", "0.3.0", "550.90.05", *obeyed)

    def announce_fleet(self, fence: Fence, *, adopt: bool = False) -> FleetStatus:
        self._host.fence.announce(fence, adopt=adopt, is_root=False)
        return self.read_fleet()

    def follow_events(self) -> Iterator[None]:
        while not self._cancelled():
            with self._host.changed:
                if self._host.changed.wait(2.0):
                    pass
                else:
                    continue
            yield None

    def list_vms(self) -> QueryResult[tuple[ThinVm, ...]]:
        host = self._host
        with host.lock:
            host.calls["list_vms"] += 1
            for vm in list(host.vms.values()):
                if vm.state == "running" and not host.answers(vm):
                    host.vms[vm.uuid] = replace(vm, times_listed=vm.times_listed + 1)
            return QueryResult(tuple(host.vms.values()))

    def read_room(self) -> HostRoom:
        with self._host.lock:
            taken = self._host.taken()
        states = [(KIND, (KIND.sizes[PROFILE], number) if number else KIND.empty) for number in taken.values()]
        room = room_of(*states)
        gpus = [
            replace(gpu, address=address, vgpus=count)
            for gpu, (address, count) in zip(room.gpus, taken.items(), strict=True)
        ]
        return replace(room, gpus=tuple(gpus))

    def top(self) -> QueryResult[UsageResult]:
        self._host.calls["top"] += 1
        return QueryResult(self._host.usage)

    def show_address(self, name: str, *, seen_by_host: bool = False) -> QueryResult[Any]:
        with self._host.lock:
            vm = self._host.vms.get(name)
        if vm is None or vm.address is None:
            raise NotFound(f"{name} has no address")
        address = AddressResult(vm.address, 24, "ipv4", None, "vnet0")
        return QueryResult(AddressesResult(vm.name, vm.uuid, "lease", (address,)))

    def show_vm(self, name: str) -> QueryResult[Any]:
        raise NotFound(f"the disks of {name} are no files")

    def wait(self, name: str, **_: object) -> None:
        with self._host.lock:
            vm = self._host.vms.get(name)
            if vm is None or not self._host.answers(vm):
                raise NotFound(f"the guest of {name} does not answer")

    def create_vm(self, *, start: bool, name: str, image: str, **_: object) -> None:
        mark = self._begin("create_vm").mark
        assert mark is not None
        with self._changing() as host:
            if len(host.vms) >= host.capacity:
                raise NoCapacity(f"no room for {PROFILE}")
            if any(name == vm.name for vm in host.vms.values()):
                raise Exists(f"a VM {name} exists")
            host.fence.refuse_deleted(mark.id)
            state = "running" if start else "stopped"
            gpu = next(address for address, count in host.taken().items() if count < VGPUS_PER_GPU)
            host.vms[mark.id] = ThinVm(name, mark.id, state, 1, mark, image, vgpus=(ThinVgpu(gpu),))

    def start_vm(self, name: str) -> None:
        self._begin("start_vm")
        with self._changing() as host:
            vm = self._vm(name)
            if vm.state != "running":
                host.vms[vm.uuid] = replace(vm, state="running", times_listed=0)

    def stop_vm(self, name: str, *, force: bool = False) -> None:
        self._begin("stop_vm")
        with self._changing() as host:
            host.vms[name] = replace(self._vm(name), state="stopped", guest_users=None)

    def reboot_vm(self, name: str, *, force: bool = False) -> None:
        self._begin("reboot_vm")
        with self._changing() as host:
            host.vms[name] = replace(self._vm(name), times_listed=0, guest_users=None)

    def mark_desktop(self, name: str) -> None:
        mark = self._begin("mark_desktop").mark
        with self._changing() as host:
            vm = self._vm(name)
            host.vms[name] = replace(vm, desktop=mark or vm.desktop, generation=vm.generation + 1)

    def refresh_vm(self, name: str, image: str) -> None:
        mark = self._begin("refresh_vm").mark
        with self._changing() as host:
            vm = self._vm(name)
            host.vms[name] = replace(vm, desktop=mark or vm.desktop, image=image, generation=vm.generation + 1)

    def delete_vm(self, name: str) -> None:
        self._begin("delete_vm")
        with self._changing() as host:
            host.fence.note_deletion(self._vm(name).uuid)
            del host.vms[name]

    def _begin(self, call: str) -> FleetRequest:
        assert self._fleet is not None, "a change carries a fence"
        with self._host.lock:
            self._host.calls[call] += 1
        self._host.fence.check(self._fleet.fence)
        return self._fleet

    def _vm(self, name: str) -> ThinVm:
        if name not in self._host.vms:
            raise NotFound(f"no VM {name}")
        return self._host.vms[name]

    def _changing(self) -> _Changing:
        return _Changing(self._host)


class _Changing:
    """A change, counted while it runs; with the host's lock."""

    def __init__(self, host: ThinHost) -> None:
        self._host = host

    def __enter__(self) -> ThinHost:
        self._host.lock.acquire()
        return self._host

    def __exit__(self, *_: object) -> None:
        assert len(self._host.vms) <= self._host.capacity, "more vGPUs than the host has"
        self._host.count_starting()
        self._host.changed.notify_all()
        self._host.lock.release()


class ThinImages:
    """The images of a host: what a controller asks for is there at once."""

    def __init__(self, host: ThinHost) -> None:
        self._host = host

    def list(self) -> tuple[ImageCopy, ...]:
        with self._host.lock:
            return tuple(self._host.images.values())

    def begin(self, request: ImageRequest) -> ImageCopy:
        copy = ImageCopy(request.path, CopyState.READY)
        with self._host.lock:
            self._host.images[request.path] = copy
        return copy

    def delete(self, path: str) -> None:
        with self._host.lock:
            del self._host.images[path]


class ThinLink:
    """A link to a host, as `HostLink` is one."""

    host_key = None

    def __init__(self, host: ThinHost) -> None:
        self._host = host

    def host(
        self,
        fleet: FleetRequest | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        *,
        key: str | None = None,
    ) -> ThinCalls:
        return ThinCalls(self._host, fleet, cancelled)

    def read_fleet(self) -> FleetStatus:
        return self.host().read_fleet()

    def opens_shell(self) -> bool:
        return False

    def images(self, fence: Fence) -> ThinImages:
        self._host.fence.check(fence)
        return ThinImages(self._host)

    def close(self) -> None:
        pass


class ThinHosts:
    """All hosts, by the path in their address."""

    def __init__(self, directory: Path, *, gpus: int = 8, lists_until_ready: int = 1) -> None:
        self._directory = directory
        self._gpus = gpus
        self._looks_until_ready = lists_until_ready
        self.hosts: dict[str, ThinHost] = {}

    def add(self, name: str) -> ThinHost:
        """Make a host."""
        self.hosts[name] = ThinHost(name, self._directory / name, self._gpus, self._looks_until_ready)
        return self.hosts[name]

    def link(self, host: FleetHost) -> Any:
        """Return a link to a host of the database."""
        return ThinLink(self.hosts[host.name])
