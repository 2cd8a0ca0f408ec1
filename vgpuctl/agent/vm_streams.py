# SPDX-License-Identifier: Apache-2.0
"""Connects a controller to its desktops over WebSockets: to a port of one, or to its screen (RFB, as VNC has it).

`GET /v1/vms/{name}/ports/{port}?generation=N&address=A` and `GET /v1/vms/{name}/screen?generation=N`, for accounts with
`fleet` and root. The VM is a desktop of the controller that this host obeys, and N the generation of its mark: whoever
had the desktop before reaches nobody else's. A is an address that the host itself sees of the VM; the controller
chooses, as it knows which are other hosts', and it decides which ports users get. `on_behalf_of`: for whom, in the
journal. A stream ends with the VM's run, with its generation, and with the agent.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

from starlette.requests import HTTPConnection
from starlette.routing import WebSocketRoute

from vgpuctl.agent.byte_streams import ConnectionStream, ServerStream, StreamEndpoint, join
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.fleet_api import require_fleet_rights
from vgpuctl.agent.fleet_fence import FleetFence
from vgpuctl.agent.protocol import Stopping, TooMany
from vgpuctl.agent.watcher import SCOPE
from vgpuctl.domain.console import parse_consoles
from vgpuctl.errors import Busy, HostCannot, InUse, InvalidInput, NotFound, Refused, Unreachable, stale_error
from vgpuctl.model.caller import Caller
from vgpuctl.model.desktop import MAX_COUNT, MAX_TEXT_CHARACTERS
from vgpuctl.model.event import EventType
from vgpuctl.model.port_values import DomainInfo
from vgpuctl.model.vm import NOT_RUNNING_STATES, Vm
from vgpuctl.observe import observe
from vgpuctl.operations.guards import find_vm
from vgpuctl.operations.seen_addresses import sees_address
from vgpuctl.ports.host import Host, for_another_operation
from vgpuctl.value import Value, replace

log = logging.getLogger("vgpuctl.agent")

MAX_STREAMS = 32
"""So many at once; an account has 64 connections, and a controller needs some for its requests."""
CHECK_SECONDS = 2.0
CONNECT_SECONDS = 10.0


class Identities(Protocol):
    """Who asks."""

    def caller_of(self, uid: int) -> Caller:
        """Return who a user id is; NotAllowed: it may do nothing."""


class StreamRequest(Value):
    """A request for a stream. `port`, `address`: None for the screen. `person`: for whom, as the controller says."""

    caller: Caller
    name: str
    generation: int
    port: int | None
    address: str | None
    person: str

    @property
    def what(self) -> str:
        """What it is about, for events: they name no users."""
        return "screen" if self.port is None else f"port {self.port}"


class _Screen:
    """A screen that is open. `replaced`: the same person opened it again; `ended`: nothing of it is left."""

    def __init__(self, person: str) -> None:
        self.person = person
        self.replaced = asyncio.Event()
        self.ended = asyncio.Event()


class VmStreams:
    """The streams of one host; its methods without `async` may ask libvirt: they run in threads."""

    def __init__(self, host: Host, fence: FleetFence, events: EventLog, identities: Identities) -> None:
        self._host = host
        self._fence = fence
        self._events = events
        self._identities = identities
        self._stopping = asyncio.Event()
        self._count = 0
        self._screens: dict[str, _Screen] = {}
        """Those that are open, by the uuid of the VM."""

    def routes(self, prefix: str) -> list[WebSocketRoute]:
        """Return the paths below `prefix`."""
        return [
            WebSocketRoute(f"{prefix}/vms/{{name}}/ports/{{port}}", StreamEndpoint("port", self._serve)),
            WebSocketRoute(f"{prefix}/vms/{{name}}/screen", StreamEndpoint("screen", self._serve)),
        ]

    def close(self) -> None:
        """End all streams, and begin none."""
        self._stopping.set()

    async def _serve(self, connection: HTTPConnection, stream: ServerStream) -> None:
        client = connection.scope.get("client")
        caller = await asyncio.to_thread(self._identities.caller_of, int(client[0]) if client else -1)
        request = read_request(caller, connection)
        if self._stopping.is_set():
            raise Stopping("the host agent stops")
        if self._count >= MAX_STREAMS:
            raise TooMany(f"{self._count} streams run on this host already", hint="try again when others have ended")
        self._count += 1
        try:
            domain = await asyncio.to_thread(self._find_desktop, request)
            opened = self._open_screen if request.port is None else self._open_port
            async with opened(request, domain) as guest:
                self._note(EventType.STREAM_BEGIN, request, domain)
                try:
                    await join(stream, guest, self._watch(request, domain.uuid))
                finally:
                    self._note(EventType.STREAM_END, request, domain)
        finally:
            self._count -= 1

    def _note(self, kind: EventType, request: StreamRequest, domain: DomainInfo) -> None:
        log.info("%s: %s of %s, %s for %s", kind, request.what, domain.name, request.caller.account, request.person)
        self._events.publish(kind, vm=domain.name, vm_uuid=domain.uuid, reason=request.what)

    def _find_desktop(self, request: StreamRequest) -> DomainInfo:
        """Return the domain of the desktop that a request names.

        Raises:
            NotFound, Refused, Stale: there is none that this controller may reach, or not any more.
        """
        uuid = self._check(replace(self._host, snapshots=None), request).uuid
        domain = self._host.hypervisor.find_domain(uuid)
        if domain is None or domain.live_xml is None:
            raise _is_off(request.name)
        return domain

    def _check(self, host: Host, request: StreamRequest) -> Vm:
        """Refuse a request for what is no desktop of the controller any more, or does not run."""
        other = for_another_operation(host)
        try:
            vm = find_vm(observe(other, SCOPE), request.name)
        finally:
            other.operations.end()
        mark, state = None if vm.record is None else vm.record.desktop, self._fence.state
        if mark is None or state is None or mark.incarnation != state.incarnation:
            raise Refused(
                f"{vm.name} is no desktop of the controller that this host obeys",
                hint="vgpuctl show-vm shows whose it is; an admin's SSH reaches every VM",
                vm=vm.name,
            )
        if mark.generation != request.generation:
            raise stale_error(vm.name, mark.generation, request.generation)
        if vm.state in NOT_RUNNING_STATES:
            raise _is_off(vm.name)
        return vm

    async def _watch(self, request: StreamRequest, uuid: str) -> None:
        """Wait until a stream must end, and say why by an error."""
        screen = self._screens[uuid] if request.port is None else None
        events = (self._stopping,) if screen is None else (self._stopping, screen.replaced)
        waiting = [asyncio.ensure_future(one.wait()) for one in events]
        try:
            while True:
                await asyncio.wait(waiting, timeout=CHECK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if self._stopping.is_set():
                    raise Stopping("the host agent stops", hint="connect again in a minute")
                if screen is not None and screen.replaced.is_set():
                    raise Refused(f"{request.person} opened this screen again elsewhere", person=request.person)
                vm = await asyncio.to_thread(self._check_again, request)
                if vm is not None and vm.uuid != uuid:
                    raise NotFound(f"{request.name} was deleted")
        finally:
            for one in waiting:
                one.cancel()

    def _check_again(self, request: StreamRequest) -> Vm | None:
        """Check a request whose stream runs; None: libvirt does not answer, which ends no stream."""
        try:
            return self._check(self._host, request)
        except HostCannot:
            return None

    @asynccontextmanager
    async def _open_port(self, request: StreamRequest, domain: DomainInfo) -> AsyncIterator[ConnectionStream]:
        assert domain.live_xml is not None
        address = str(request.address)
        shown = f"{address:.60}"
        if not await asyncio.to_thread(sees_address, self._host, domain.uuid, domain.live_xml, address):
            raise Busy(
                f"this host does not see {domain.name} at {shown!a} now",
                hint=f"vgpuctl show-address {domain.name} --seen-by-host",
                vm=domain.name,
            )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(address, request.port)
        except (OSError, TimeoutError) as error:
            why = getattr(error, "strerror", None) or f"no answer within {CONNECT_SECONDS:g} s"
            raise Unreachable(
                f"{request.what} of {domain.name} ({address}) cannot be reached: {why}",
                hint="in the guest, something must listen there, and its firewall must let this host in",
                vm=domain.name,
                port=request.port,
            ) from error
        async with _closed_after(ConnectionStream(reader, writer)) as guest:
            yield guest

    @asynccontextmanager
    async def _open_screen(self, request: StreamRequest, domain: DomainInfo) -> AsyncIterator[ConnectionStream]:
        assert domain.live_xml is not None
        kinds = [device.kind for device in parse_consoles(domain.live_xml).graphics]
        if "vnc" not in kinds:
            raise HostCannot(f"{domain.name} has no VNC screen", hint="virsh dumpxml shows its graphics", check="vnc")
        async with self._alone(request, domain):
            open_graphics: Callable[[], Any] = partial(
                self._host.hypervisor.open_graphics, domain.uuid, kinds.index("vnc")
            )
            connection = await asyncio.to_thread(open_graphics)
            connection.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=connection)
            async with _closed_after(ConnectionStream(reader, writer)) as guest:
                yield guest

    @asynccontextmanager
    async def _alone(self, request: StreamRequest, domain: DomainInfo) -> AsyncIterator[None]:
        """Have one screen of a VM open: who opens it again has it there, as his other browser may have vanished.

        Raises:
            InUse: another person has it. Busy: the former one does not end.
        """
        while (former := self._screens.get(domain.uuid)) is not None:
            if former.person != request.person:
                raise InUse(
                    f"{former.person} has the screen of {domain.name} open",
                    hint=f"one person at a time: ask {former.person} to close it",
                    vm=domain.name,
                    person=former.person,
                )
            former.replaced.set()
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    await former.ended.wait()
            except TimeoutError:
                raise Busy(f"the screen of {domain.name} does not close", hint="try again in a minute") from None
        screen = self._screens[domain.uuid] = _Screen(request.person)
        try:
            yield
        finally:
            del self._screens[domain.uuid]
            screen.ended.set()


@asynccontextmanager
async def _closed_after(stream: ConnectionStream) -> AsyncIterator[ConnectionStream]:
    try:
        yield stream
    finally:
        await stream.close()


def _is_off(name: str) -> Refused:
    return Refused(f"{name} does not run", hint=f"vgpuctl controller start-desktop {name}", vm=name)


def read_request(caller: Caller, connection: HTTPConnection) -> StreamRequest:
    """Return what a request asks for.

    Raises:
        NotAllowed: the caller controls no fleet.
        InvalidInput: a number is missing or wrong, or something is not known.
    """
    require_fleet_rights(caller)
    query, path = connection.query_params, connection.path_params
    if unknown := sorted(query.keys() - {"address", "generation", "on_behalf_of"}):
        raise InvalidInput(f"{', '.join(unknown)}: not known", fields=unknown)
    person = query.get("on_behalf_of", caller.account)
    if not 0 < len(person) <= MAX_TEXT_CHARACTERS or not person.isprintable():
        raise InvalidInput(f"on_behalf_of: 1 to {MAX_TEXT_CHARACTERS} printable characters")
    generation, address = _number("generation", query.get("generation"), MAX_COUNT), query.get("address")
    if (address is None) is ("port" in path):
        raise InvalidInput("address: a port is at one, and a screen has none")
    port = _number("port", path["port"], 65535) if "port" in path else None
    return StreamRequest(caller, path["name"], generation, port, address, person)


def _number(name: str, text: str | None, most: int) -> int:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18 or int(text) > most:
        raise InvalidInput(f"{name}: {text!a} is not a number from 0 to {most}")
    return int(text)
