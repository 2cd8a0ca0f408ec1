# SPDX-License-Identifier: Apache-2.0
"""What is asked of a desktop beyond what its host's list says: its address, whether it is ready, its disks."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import Desktop, DesktopVgpu, Pool, PoolKind, ReadyWhen
from vgpuctl.controller.planning.desktop_address import choose_address
from vgpuctl.controller.planning.host_look import HostVm, was_refreshed
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.results.vms import VmRowResult
from vgpuctl.value import Value, replace

MAX_PROBES, PROBES_AT_A_TIME = 16, 8
"""So many guests of a host are asked in one look, and at a time."""
CONNECT_SECONDS = 1.0
"""So long a guest may take to answer one question; at the next look it is asked again."""


class GuestQuestion(Value):
    """A running VM, with what is known of its guest, and what is not and somebody needs to know.

    `port`: the one that has to answer, None for none. `ranges`: where its address must be; empty: anywhere.
    """

    vm: HostVm
    needs_address: bool
    needs_guest: bool
    port: int | None
    ranges: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether there is something to ask."""
        return self.needs_address or self.needs_guest or self.port is not None

    def answered(self, link: HostLink, of_hosts: frozenset[str]) -> HostVm:
        """Ask the host and the guest; return the VM with the answers.

        `of_hosts`: the addresses of the fleet's hosts, which are no desktop's. What the guest says of its address does
        not count: its user is sent there, and types a password.
        """
        vm, host = self.vm, link.host()
        if self.needs_address:
            with suppress(VgpuctlError):
                seen = [one.address for one in host.show_address(vm.uuid, seen_by_host=True).data.addresses]
                vm = replace(vm, address=choose_address(seen, self.ranges, of_hosts))
        if self.needs_guest:
            with suppress(VgpuctlError):
                host.wait(vm.uuid, event="guest", timeout_seconds=CONNECT_SECONDS)
                vm = replace(vm, guest_answers=True)
        if self.port is not None and vm.address is not None:
            with suppress(OSError), socket.create_connection((vm.address, self.port), CONNECT_SECONDS):
                vm = replace(vm, port_open=True)
        return vm


class GuestProbes:
    """Asks the guests of one host, some at a time; those that were asked longest ago come first."""

    def __init__(self, host_name: str, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(PROBES_AT_A_TIME, thread_name_prefix=f"probe-{host_name}")
        self._asked_at: dict[str, float] = {}

    def ask(self, link: HostLink, questions: Sequence[GuestQuestion]) -> Iterator[HostVm]:
        """Return the VMs of some of the questions, with the answers; the others wait for the next look."""
        at = {one.vm.uuid: self._asked_at.get(one.vm.uuid, 0.0) for one in questions}
        asked = sorted(questions, key=lambda one: at[one.vm.uuid])[:MAX_PROBES]
        self._asked_at = at | {one.vm.uuid: self._store.clock.monotonic() for one in asked}
        asks = any(one.needs_address for one in asked)
        of_hosts = self._store.rooms.own_addresses() if asks else frozenset()
        return self._threads.map(lambda question: question.answered(link, of_hosts), asked)

    def stop(self) -> None:
        """Ask nothing more."""
        self._threads.shutdown(wait=True, cancel_futures=True)


def ask_guest(desktop: Desktop, pool: Pool, vm: HostVm) -> GuestQuestion:
    """Return what has to be asked of the guest of a running VM: what was answered once holds while it runs.

    A refresh between two looks is a boot that none of them saw.
    """
    report, kind = desktop.report, pool.spec.ready_when
    was_ready = (
        report is not None
        and report.ready
        and report.running_since is not None
        and not (vm.mark is not None and was_refreshed(report, vm, vm.mark))
    )
    address = pool.spec.dns_name.replace("{name}", desktop.name) if pool.spec.dns_name else None
    if address is None and report is not None:
        address = report.address
    answers = vm.guest_answers or vm.guest_users is not None or was_ready
    has_reader = desktop.user is not None or kind is ReadyWhen.PORT or pool.spec.kind is PoolKind.FIXED
    return GuestQuestion(
        replace(vm, address=address, guest_answers=answers, port_open=was_ready),
        needs_address=address is None and has_reader,
        needs_guest=kind is ReadyWhen.GUEST and not answers and not vm.is_preparing,
        port=pool.spec.port if kind is ReadyWhen.PORT and not was_ready and not vm.is_preparing else None,
        ranges=pool.spec.addresses,
    )


def vm_of(row: VmRowResult) -> HostVm:
    """Return a VM of a host's list."""
    return HostVm(
        name=row.name,
        uuid=row.uuid,
        state=str(row.state),
        generation=row.generation,
        mark=row.desktop,
        image=row.image,
        guest_users=row.guest_users,
        guest_answers=row.driver is not None,
        driver=row.driver,
        should_run=row.should_run is True,
        off_after_setup=row.off_after_setup is True,
        prepared=row.prepared is True,
        stop_reason=row.stop_reason,
        vgpus=tuple(
            DesktopVgpu(one.gpu, one.profile, one.framebuffer_mib, one.placement_id)
            for one in row.vgpus
            if one.present or row.reserve == "always"
        ),
    )


def disks_of(link: HostLink, uuid: str) -> tuple[str, ...]:
    """Return the files of a VM's disks, in their order; empty where one has none, and where the host does not say."""
    with suppress(VgpuctlError):
        paths = [disk.path for disk in link.host().show_vm(uuid).data.disks if disk.device == "disk"]
        return tuple(path for path in paths if path is not None) if None not in paths else ()
    return ()
