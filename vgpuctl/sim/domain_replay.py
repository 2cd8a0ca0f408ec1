# SPDX-License-Identifier: Apache-2.0
"""The domains of a simulated host, as the replay of its journal: a part of `State`, which says how it works."""

from __future__ import annotations

from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.objects import RunningDomain, SavedMemory, SimDomain


class DomainReplay:
    """The records of domains."""

    domains: dict[str, SimDomain]
    uuids_by_name: dict[str, str]
    running: dict[str, RunningDomain]
    carrier_users: dict[str, str]
    next_pid: int

    def _on_driver(self, address: str, name: str | None) -> None:
        raise NotImplementedError

    def _on_domain(self, uuid: str, name: str, xml: str, persistent: bool = True) -> None:
        former = self.domains.get(uuid)
        reason, saved = (former.stop_reason, former.saved) if former else (None, None)
        self.domains[uuid] = SimDomain(uuid, name, xml, persistent, reason, saved)
        self.uuids_by_name[name] = uuid

    def _on_splice(self, uuid: str, start: int, end: int, text: str) -> None:
        domain = self.domains[uuid]
        domain.xml = domain.xml[:start] + text + domain.xml[end:]

    def _on_splice_live(self, uuid: str, start: int, end: int, text: str) -> None:
        running = self.running[uuid]
        running.xml = running.xml[:start] + text + running.xml[end:]

    def _on_transient(self, uuid: str) -> None:
        self.domains[uuid].persistent = False

    def _on_undefine(self, uuid: str) -> None:
        domain = self.domains.pop(uuid, None)
        if domain is not None:
            self.uuids_by_name.pop(domain.name, None)

    def _on_run(
        self,
        uuid: str,
        pid: int,
        carriers: list[str],
        previous_drivers: dict[str, str | None],
        xml: str | None = None,
        reason: str = "booted",
    ) -> None:
        """Start a domain, for the reason of libvirt's event. Memory that was saved is used up."""
        domain = self.domains[uuid]
        domain.saved = None
        for address in previous_drivers:
            self._on_driver(address, "vfio-pci")
        self.running[uuid] = RunningDomain(
            uuid, domain.name, pid, xml if xml is not None else domain.xml, tuple(carriers), dict(previous_drivers)
        )
        self.carrier_users.update((carrier, uuid) for carrier in carriers)
        self.next_pid = max(self.next_pid, pid + 1)

    def _on_off(self, uuid: str, reason: str | None = None) -> None:
        """Stop a domain, for libvirt's reason; old journals have none."""
        running = self.running.pop(uuid, None)
        if running is None:
            return
        for carrier in running.carriers:
            self.carrier_users.pop(carrier, None)
        for address, driver in running.previous_drivers.items():
            self._on_driver(address, driver)
        domain = self.domains.get(uuid)
        if domain is None:
            return
        domain.stop_reason = reason
        if not domain.persistent:
            self._on_undefine(uuid)

    def _on_stopped(self, uuid: str, reason: str) -> None:
        """Say why a domain that is off is off."""
        self.domains[uuid].stop_reason = reason

    def _on_saved(self, uuid: str, xml: str, state: str) -> None:
        """Keep a domain's memory, with its definition while it ran (managed save)."""
        self.domains[uuid].saved = SavedMemory(xml, state)

    def _on_resets(self, uuid: str, number: int) -> None:
        self.running[uuid].resets = number

    def _on_halt(self, uuid: str, state: str, reason: str | None = None) -> None:
        """Stop a guest without its domain being off ("paused"), or have it go on ("running").

        `reason`: of libvirt's event; None: QEMU stopped it at a full disk.
        """
        self.running[uuid].state = state

    def _on_moving(self, uuid: str, pid: int) -> None:
        """Say which process of this machine moves a domain to another host; 0: none does."""
        self.running[uuid].moved_by = pid

    def _on_plug(self, uuid: str, carrier: str, previous_drivers: dict[str, str | None], xml: str) -> None:
        """Add a device to a running domain."""
        running = self.running[uuid]
        for address in previous_drivers:
            self._on_driver(address, "vfio-pci")
        running.previous_drivers.update(previous_drivers)
        running.carriers = (*running.carriers, carrier)
        running.xml = xml
        self.carrier_users[carrier] = uuid

    def _on_unplug(self, uuid: str, carrier: str, xml: str) -> None:
        """Remove a device from a running domain."""
        running = self.running[uuid]
        running.carriers = tuple(c for c in running.carriers if c != carrier)
        running.xml = xml
        self.carrier_users.pop(carrier, None)
        if carrier in running.previous_drivers:
            self._on_driver(carrier, running.previous_drivers.pop(carrier))

    def domain_records(self) -> list[JournalRecord]:
        """Return the records that make these domains in a fresh state."""
        domains, running = self.domains.values(), self.running.values()
        journal: list[JournalRecord] = [["domain", one.uuid, one.name, one.xml] for one in domains]
        journal += [["run", one.uuid, one.pid, list(one.carriers), one.previous_drivers, one.xml] for one in running]
        journal += [["resets", one.uuid, one.resets] for one in running if one.resets]
        journal += [["halt", one.uuid, one.state] for one in running if one.state != "running"]
        journal += [["moving", one.uuid, one.moved_by] for one in running if one.moved_by]
        journal += [["transient", one.uuid] for one in domains if not one.persistent]
        journal += [["stopped", one.uuid, one.stop_reason] for one in domains if one.stop_reason is not None]
        journal += [["saved", one.uuid, one.saved.xml, one.saved.state] for one in domains if one.saved is not None]
        return journal
