# SPDX-License-Identifier: Apache-2.0
"""What the agent watches, and the events that it makes of it: libvirt's domains, and the kernel's log for Xids.

    sources = EventSources(host, log, on_change=snapshot.drop)
    sources.start()         # before the library's first call: libvirt's event loop comes before any connection
    sources.answers()       # for systemd's watchdog
    sources.close()

The operations' events are the server's to publish; `host_changes.py` makes those of whole looks at the host.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from vgpuctl.agent.events import EventLog, shorten_reason
from vgpuctl.agent.known_vms import KnownVms, VmStep
from vgpuctl.model.event import EventType, Severity
from vgpuctl.model.names import normalize_device
from vgpuctl.model.port_values import DomainEventKind
from vgpuctl.value import Value

if TYPE_CHECKING:
    from vgpuctl.model.port_values import DomainEvent, DomainStatus
    from vgpuctl.ports.host import Host
    from vgpuctl.ports.system import Watch

XID_MARK = "NVRM: Xid"
GPU_LOST_XID = 79
"""NVIDIA's Xid documentation: "GPU has fallen off the bus"."""
SERIOUS_XIDS = frozenset({48, 62, 64, 74, 79, 95, 119, 120})
"""Xids of the card or its driver, which mostly need a reset or a repair. 13, 31 and 43 are a guest program's faults."""
_XID = re.compile(
    rf"{XID_MARK} \((?:PCI:)?(?P<gpu>[0-9A-Fa-f:.]+)[^)]*\): (?P<xid>[0-9]{{1,9}})(?:, )?(?P<text>.*)",
    re.ASCII | re.DOTALL,
)


class Xid(Value):
    """An error that NVIDIA's driver logged. `gpu`: its PCI address, None if the log has no valid one."""

    number: int
    gpu: str | None
    text: str


def parse_xid(message: str) -> Xid | None:
    """Return the Xid in a message of the kernel's log, such as `NVRM: Xid (PCI:0000:3b:00): 79, GPU has ...`; or None.

    With MIG the parentheses also name the GPU instance (`PCI:0000:3b:00 GPU-I:05`); old drivers write no `PCI:`.
    """
    match = _XID.search(message)
    if match is None:
        return None
    return Xid(int(match["xid"]), normalize_device(match["gpu"]), match["text"].strip())


class EventSources:
    """The agent's watches. `on_change` is called in their threads whenever anything happened, and must not wait.

    `on_reboot`: is called so with the uuid of a VM whose guest boots again.
    """

    def __init__(
        self,
        host: Host,
        log: EventLog,
        on_change: Callable[[], None] = lambda: None,
        on_reboot: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._host = host
        self._log = log
        self._on_change = on_change
        self._on_reboot = on_reboot
        self._vms = KnownVms()
        self._watches: list[Watch] = []
        self._is_lost = False
        self._libvirt_returned: float | None = None

    def start(self) -> None:
        """Publish that the agent started, and start the watches that this host has."""
        self._log.publish(EventType.AGENT_STARTED, reason=f"run {self._log.boot}")
        if self._host.domain_events is not None:
            self._watches.append(
                self._host.domain_events.watch(
                    on_event=self._read_domain_event, on_lost=self._note_loss, on_back=self._read_domains
                )
            )
        if self._host.kernel_messages is not None:
            self._watches.append(
                self._host.kernel_messages.watch(
                    XID_MARK, on_message=self._read_kernel_message, on_lost=self._note_lost_messages
                )
            )

    def answers(self) -> bool:
        """Return whether every watch can still report something."""
        return all(watch.answers() for watch in self._watches)

    def libvirt_returned(self) -> float | None:
        """Return when libvirtd came back the last time, by the host's monotonic clock: now, while it is away.

        None: it never left.
        """
        return self._host.clock.monotonic() if self._is_lost else self._libvirt_returned

    def close(self) -> None:
        """End the watches."""
        while self._watches:
            self._watches.pop().close()

    # ------------------------------------------------------------- libvirt

    def _read_domain_event(self, event: DomainEvent) -> None:
        step = self._vms.read_event(event)
        if step is not None:
            self._publish_step(step)
        if event.kind is DomainEventKind.REBOOTED:
            self._on_reboot(event.uuid)
        self._on_change()

    def _note_loss(self, reason: str) -> None:
        self._is_lost = True
        self._log.publish(EventType.LIBVIRT_LOST, reason=shorten_reason(reason))
        self._on_change()

    def _read_domains(self, statuses: tuple[DomainStatus, ...]) -> None:
        if self._is_lost:
            self._libvirt_returned = self._host.clock.monotonic()
            self._log.publish(EventType.LIBVIRT_BACK)
            self._log.counts.note_reconnect()
        self._is_lost = False
        for step in self._vms.read_list(statuses):
            self._publish_step(step)
        self._on_change()

    def _publish_step(self, step: VmStep) -> None:
        if step.type is EventType.VM_CRASHED and step.vm_uuid is not None:
            self._log.counts.note_crash(step.vm_uuid)
        elif step.type is EventType.VM_STARTED and step.vm_uuid is not None:
            self._log.counts.note_start(step.vm_uuid)
        self._log.publish(step.type, vm=step.vm, vm_uuid=step.vm_uuid, reason=step.reason)

    # ---------------------------------------------------------- kernel's log

    def _read_kernel_message(self, message: str) -> None:
        xid = parse_xid(message)
        if xid is None:
            return
        if xid.gpu is not None:
            self._log.counts.note_xid(xid.gpu, xid.number)
        is_lost = xid.number == GPU_LOST_XID
        if not is_lost or xid.gpu is None or self._log.gpu_losses.report(xid.gpu, was_seen=False):
            self._log.publish(
                EventType.GPU_LOST if is_lost else EventType.GPU_XID,
                severity=Severity.ERROR if xid.number in SERIOUS_XIDS else None,
                gpu=xid.gpu,
                reason=shorten_reason(f"Xid {xid.number}: {xid.text}"),
                collapse=f"{xid.gpu} Xid {xid.number}",
            )
        self._on_change()

    def _note_lost_messages(self, reason: str) -> None:
        self._log.publish(EventType.GAP, reason=shorten_reason(reason))
        self._on_change()
