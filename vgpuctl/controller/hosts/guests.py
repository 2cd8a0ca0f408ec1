# SPDX-License-Identifier: Apache-2.0
"""What is asked of a desktop beyond what its host's list says: its address, whether it is ready, its disks."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

from vgpuctl.controller.database.store import Store
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.model import Desktop, DesktopVgpu, Pool, PoolKind, ReadyWhen
from vgpuctl.controller.planning.desktop_address import NAME, choose_address, is_in_ranges
from vgpuctl.controller.planning.host_look import HostVm, was_refreshed
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.results.vms import VmRowResult
from vgpuctl.value import Value, replace

if TYPE_CHECKING:
    from vgpuctl.agent.client import AgentHost

MAX_PROBES, PROBES_AT_A_TIME = 16, 8
"""So many guests of a host are asked in one look, and at a time."""
ADDRESS_SECONDS = 300.0
"""So often a host is asked again for an address that is known."""
CONNECT_SECONDS = 1.0
"""So long a guest may take to answer one question; at the next look it is asked again."""


class GuestQuestion(Value):
    """A running VM, with what is known of its guest, and what is not and somebody needs to know.

    `checks_address`: the address that is known may be another one by now. `port`: the one that has to answer, None for
    none. `ranges`: where its address must be; empty: anywhere.
    """

    vm: HostVm
    needs_address: bool
    needs_guest: bool
    port: int | None
    ranges: tuple[str, ...] = ()
    checks_address: bool = False

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
        if self.needs_address or self.checks_address:
            vm = self._with_address(host, of_hosts)
        if self.needs_guest:
            with suppress(VgpuctlError):
                host.wait(vm.uuid, event="guest", timeout_seconds=CONNECT_SECONDS)
                vm = replace(vm, guest_answers=True)
        if self.port is not None and vm.address is not None:
            with suppress(OSError), socket.create_connection((vm.address, self.port), CONNECT_SECONDS):
                vm = replace(vm, port_open=True)
        return vm

    def _with_address(self, host: AgentHost, of_hosts: frozenset[str]) -> HostVm:
        """Return the VM with the address that its host sees; one that is known stays while the host sees none."""
        try:
            known = host.show_address(self.vm.uuid, seen_by_host=True).data
        except VgpuctlError as error:
            return self.vm if self.vm.address is not None else replace(self.vm, address_problem=error.message)
        seen = [one.address for one in known.addresses]
        chosen = choose_address(seen, self.ranges, of_hosts, of_leases=known.source == "lease")
        return replace(self.vm, address=chosen.address, address_problem=chosen.problem)


class GuestProbes:
    """Asks the guests of one host, some at a time; those that were asked longest ago come first."""

    def __init__(self, host_name: str, store: Store) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(PROBES_AT_A_TIME, thread_name_prefix=f"probe-{host_name}")
        self._asked_at: dict[str, float] = {}

    def ask(self, link: HostLink, questions: Sequence[GuestQuestion]) -> Iterator[HostVm]:
        """Return the VMs of some of the questions, with the answers; the others wait for the next look.

        Addresses that are known are asked for again from time to time, after what is not known.
        """
        now = self._store.clock.monotonic()
        at = {one.vm.uuid: self._asked_at.get(one.vm.uuid, 0.0) for one in questions}
        due = [one for one in questions if one.is_open or now - at[one.vm.uuid] >= ADDRESS_SECONDS]
        asked = sorted(due, key=lambda one: (not one.is_open, at[one.vm.uuid]))[:MAX_PROBES]
        self._asked_at = at | {one.vm.uuid: now for one in asked}
        asks = any(one.needs_address or one.checks_address for one in asked)
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
    is_same_boot = report is not None and not (vm.mark is not None and was_refreshed(report, vm, vm.mark))
    was_ready = report is not None and is_same_boot and report.ready and report.running_since is not None
    address = pool.spec.dns_name.replace(NAME, desktop.name) if pool.spec.dns_name else None
    known = None if report is None or not is_same_boot else report.address
    if address is None and known is not None and is_in_ranges(known, pool.spec.addresses):
        address = known
    answers = vm.guest_answers or vm.guest_users is not None or was_ready
    has_reader = desktop.user is not None or kind is ReadyWhen.PORT or pool.spec.kind is PoolKind.FIXED
    return GuestQuestion(
        replace(vm, address=address, guest_answers=answers, port_open=was_ready),
        needs_address=address is None and has_reader,
        needs_guest=kind is ReadyWhen.GUEST and not answers and not vm.is_preparing,
        port=pool.spec.port if kind is ReadyWhen.PORT and not was_ready and not vm.is_preparing else None,
        ranges=pool.spec.addresses,
        checks_address=address is not None and has_reader and pool.spec.dns_name is None,
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
