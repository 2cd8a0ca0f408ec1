# SPDX-License-Identifier: Apache-2.0
"""A controller's connections to ports and screens of its desktops, over WebSockets at the agent's real socket."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.agent.conftest import RunningAgent
from tests.agent.guest_network import GuestNetwork, echo, running_with_guests, serving
from tests.agent.test_fleet import DESKTOP, FENCE, GPU, HOST, HOST_FILE, MARK, OLGA, POOLS, Site, fleet
from tests.agent.test_members import BOB, Directory
from vgpuctl import library
from vgpuctl.agent.byte_streams import ConnectionStream
from vgpuctl.agent.http_server import MAX_CONNECTIONS
from vgpuctl.agent.rights import HostRights
from vgpuctl.agent.stream_client import ClientStream, open_stream
from vgpuctl.agent.vm_streams import MAX_STREAMS
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.agent_service import OPERATORS_GROUP
from vgpuctl.sim.screen import BANNER, COLOUR, HEIGHT, WIDTH

Result = TypeVar("Result")

IMAGE = "/srv/images/ubuntu-24.04.qcow2"
DIAL_AS = """import socket, sys
agent = socket.socket(socket.AF_UNIX)
agent.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [agent.fileno()])
"""
PORT = "vms/vdi/ports/22?generation=1&address={address}"
SCREEN = "vms/vdi/screen?generation=1"


class StreamSite(Site):
    """An agent whose guests have a network, with a desktop `vdi` that runs."""

    def __init__(self, agent: RunningAgent, host_file: Path, network: GuestNetwork) -> None:
        super().__init__(agent, host_file)
        self.network = network

        self._address = ""

    @property
    def address(self) -> str:
        """Where the desktop is."""
        if not self._address:
            answer = self.send(os.geteuid(), "show-address?name=vdi")
            self._address = str(answer["data"]["addresses"][0]["address"])
        return self._address

    def filled(self, path: str) -> str:
        """Return a path with the desktop's address."""
        return path.replace("{address}", self.address if "{address}" in path else "")

    def listen(self, port: int = 22) -> socket.socket:
        """Return a listening socket of the desktop."""
        return self.network.listen(self.address, port)

    def dial(self, uid: int) -> socket.socket:
        """Return a connection of a user."""
        if uid == os.geteuid():
            return self.agent.dial()
        ours, theirs = socket.socketpair()
        with ours, theirs:
            words = ["/usr/bin/python3", "-c", DIAL_AS, self.agent.path, str(theirs.fileno())]
            subprocess.run(words, user=uid, group=uid, extra_groups=[], check=True, pass_fds=[theirs.fileno()])
            _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=descriptor)

    async def open(self, path: str, uid: int = POOLS) -> ClientStream:
        """Return a stream. What the agent says about one that it refuses is raised by the first read."""
        connection = self.dial(uid)
        connection.setblocking(False)
        reader, writer = await asyncio.open_connection(sock=connection)
        return await open_stream(ConnectionStream(reader, writer), "the agent", "agent", f"/v1/{self.filled(path)}", {})

    def run(self, act: Callable[[ClientStream], Awaitable[Result]], path: str = PORT, uid: int = POOLS) -> Result:
        """Do something with a stream, and close it."""

        async def opened() -> Result:
            stream = await self.open(path, uid)
            try:
                async with asyncio.timeout(60):
                    return await act(stream)
            finally:
                await stream.close()

        return asyncio.run(opened())

    def code(self, uid: int, path: str, *_: object, **__: object) -> str:
        """Return the code of the error with which a stream ends; "" if it brings something."""
        try:
            return "" if self.run(lambda stream: stream.read(), path, uid) else "nothing"
        except VgpuctlError as error:
            return error.code


@pytest.fixture
def site(tmp_path: Path) -> Iterator[StreamSite]:
    host_file = tmp_path / "state-home/vgpuctl/a100-40/etc/vgpuctl/host.yaml"
    host_file.parent.mkdir(parents=True, exist_ok=True)
    host_file.write_text(HOST_FILE)
    users = Directory()
    users.names |= {POOLS: "pools", OLGA: "olga"}
    users.groups |= {"pools": {OPERATORS_GROUP}, "olga": {OPERATORS_GROUP}}
    rights = HostRights(library.open_ports(HOST), users, owner=os.geteuid())
    with running_with_guests(HOST, tmp_path, rights) as (agent, network):
        os.chmod(os.path.dirname(agent.path), 0o755)
        os.chmod(agent.path, 0o666)
        one = StreamSite(agent, host_file, network)
        one.announce()
        made = one.ask(os.geteuid(), "create-vm", fleet(MARK), name="vdi", image=IMAGE, **GPU)
        assert made["ok"], made["error"]
        yield one


async def read(stream: ClientStream, size: int) -> bytes:
    """Return so many bytes, or what came before the end."""
    data = b""
    while len(data) < size and (more := await stream.read()):
        data += more
    return data


def ends(site: StreamSite, path: str, act: Callable[[], object]) -> str | None:
    """Do something while a stream is open; return the code of the error with which it ends."""

    async def wait(stream: ClientStream) -> str | None:
        first = asyncio.ensure_future(read(stream, 1))
        await asyncio.wait([first])
        await asyncio.to_thread(act)
        try:
            while await stream.read():
                continue
        except VgpuctlError as error:
            return error.code
        return None

    return site.run(wait, path)


def greet(connection: socket.socket) -> None:
    """Say something, and wait."""
    connection.sendall(b"hello")
    connection.recv(1)


def test_bytes_go_both_ways(site: StreamSite) -> None:
    text = os.urandom(3 << 20)

    async def talk(stream: ClientStream) -> bytes:
        sending = asyncio.ensure_future(stream.write(text))
        data = await read(stream, len(text))
        await sending
        return data

    with serving(site.listen(), echo):
        assert site.run(talk) == text
        assert site.run(talk, uid=os.geteuid()) == text
    reasons = [(one["type"], one["reason"]) for one in site.send(BOB, "events")["events"] if "stream" in one["type"]]
    assert reasons == [("stream-begin", "port 22"), ("stream-end", "port 22")] * 2


def test_what_a_guest_sends_before_it_closes_arrives(site: StreamSite) -> None:
    text = os.urandom(1 << 20)
    with serving(site.listen(), lambda connection: connection.sendall(text)):
        assert site.run(lambda stream: read(stream, len(text) + 1)) == text


def test_who_gets_no_stream(site: StreamSite) -> None:
    with serving(site.listen(), greet):
        assert site.code(POOLS, PORT) == ""
        for uid in (OLGA, BOB):
            assert (site.code(uid, PORT), site.code(uid, SCREEN)) == ("not-allowed", "not-allowed")
        for wrong in ("0", "2", "1000"):
            assert site.code(POOLS, f"vms/vdi/ports/22?generation={wrong}&address={{address}}") == "stale"
            assert site.code(POOLS, f"vms/vdi/screen?generation={wrong}") == "stale"
        for bad in (
            "",
            "?generation=",
            "?generation=-1",
            "?generation=1",
            "?generation=1&address=&more=1",
            "?generation=1&address=&on_behalf_of=",
        ):
            assert site.code(POOLS, f"vms/vdi/ports/22{bad}") == "invalid-input"
        for port in ("65536", "ssh", "-1", "1e3"):
            assert site.code(POOLS, f"vms/vdi/ports/{port}?generation=1&address=") == "invalid-input"
        assert site.code(POOLS, PORT.replace("vdi", "other")) == "not-found"
        assert site.code(POOLS, PORT.replace("22", "23")) == "unreachable"
        assert site.code(POOLS, f"{SCREEN}&address={site.address}") == "invalid-input"
        for other in ("192.168.122.1", "127.0.0.1", "localhost", "", "::1"):
            assert site.code(POOLS, PORT.replace("{address}", other)) == "busy", "the host does not see it there"


def test_only_desktops_of_the_controller_that_the_host_obeys(site: StreamSite) -> None:
    assert site.ask(os.geteuid(), "create-vm", name="own", image=IMAGE, **GPU)["ok"]
    assert site.code(os.geteuid(), PORT.replace("vdi", "own")) == "refused"
    site.announce({**FENCE, "incarnation": "db-2"}, adopt=True)
    assert site.code(POOLS, PORT) == "refused"


def test_a_vm_that_is_off(site: StreamSite) -> None:
    assert site.address
    assert site.ask(os.geteuid(), "stop-vm", fleet(), name="vdi", force=True)["ok"]
    assert (site.code(POOLS, PORT), site.code(POOLS, SCREEN)) == ("refused", "refused")


def test_a_stream_ends_when_the_vm_stops(site: StreamSite) -> None:
    def stop() -> None:
        assert site.ask(os.geteuid(), "stop-vm", fleet(), name="vdi", force=True)["ok"]

    with serving(site.listen(), greet):
        assert ends(site, PORT, stop) == "refused"


def test_a_stream_ends_when_the_desktop_is_anothers(site: StreamSite) -> None:
    def hand_over() -> None:
        mark = {**MARK, "generation": 2, "user": "eve"}
        assert site.ask(os.geteuid(), "mark-desktop", fleet(mark), name="vdi")["ok"]

    with serving(site.listen(), greet):
        assert ends(site, PORT, hand_over) == "stale"
        assert site.code(POOLS, PORT.replace("=1", "=2")) == ""


def test_a_screen(site: StreamSite) -> None:
    async def see(stream: ClientStream) -> bytes:
        assert await read(stream, len(BANNER)) == BANNER
        await stream.write(BANNER)
        assert await read(stream, 2) == b"\x01\x01"
        await stream.write(b"\x01")
        assert await read(stream, 4) == bytes(4)
        await stream.write(b"\x01")
        assert (await read(stream, 39))[:4] == bytes((WIDTH >> 8, WIDTH & 255, 0, HEIGHT))
        await stream.write(b"\x03\0" + bytes(8))
        return await read(stream, 16 + 4 * WIDTH * HEIGHT)

    assert site.run(see, SCREEN)[16:] == COLOUR * WIDTH * HEIGHT


def test_one_screen_at_a_time(site: StreamSite) -> None:
    async def both(stream: ClientStream) -> str:
        await read(stream, 1)
        second = await site.open(SCREEN)
        try:
            await second.read()
        except VgpuctlError as error:
            return f"{error.code}: {error.message}"
        finally:
            await second.close()
        return ""

    assert site.run(both, f"{SCREEN}&on_behalf_of=ada") == "in-use: ada has the screen of vdi open"
    assert site.code(POOLS, SCREEN) == "", "the first one has ended"


def test_a_screen_ends_with_its_vm(site: StreamSite) -> None:
    def stop() -> None:
        assert site.ask(os.geteuid(), "stop-vm", fleet(), name="vdi", force=True)["ok"]

    assert ends(site, SCREEN, stop) in (None, "refused")
    assert site.ask(os.geteuid(), "start-vm", fleet(), name="vdi")["ok"]
    assert site.code(POOLS, SCREEN) == ""


def test_a_guest_waits_for_a_peer_that_does_not_read(site: StreamSite) -> None:
    waits, ended = threading.Event(), threading.Event()
    sent: list[int] = []

    def flood(connection: socket.socket) -> None:
        connection.settimeout(1)
        try:
            while len(sent) < 1000:
                connection.sendall(bytes(1 << 16))
                sent.append(1 << 16)
        except TimeoutError:
            waits.set()
        connection.settimeout(60)
        try:
            while connection.recv(1):
                continue
        except OSError:
            pass
        ended.set()

    async def never_read(stream: ClientStream) -> None:
        assert await asyncio.to_thread(waits.wait, 60), f"{sum(sent)} bytes were read for nobody"

    with serving(site.listen(), flood):
        site.run(never_read)
        assert ended.wait(60), "the guest's connection ends with the stream"


def test_a_peer_waits_for_a_guest_that_does_not_read(site: StreamSite) -> None:
    done = threading.Event()

    async def flood(stream: ClientStream) -> int:
        size = 0
        try:
            while size < 64 << 20:
                async with asyncio.timeout(1):
                    await stream.write(bytes(1 << 16))
                size += 1 << 16
        except TimeoutError:
            done.set()
        return size

    with serving(site.listen(), lambda connection: bool(done.wait(60)) and None):
        assert site.run(flood) < 64 << 20


def test_streams_give_their_connections_back(site: StreamSite) -> None:
    with serving(site.listen(), greet):
        for _ in range(MAX_CONNECTIONS + 1):
            assert site.code(POOLS, PORT) == ""
    assert site.send(POOLS, "fleet")["holder"] == "a"


def test_so_many_streams_at_once(site: StreamSite) -> None:
    async def open_all(first: ClientStream) -> list[str]:
        streams = [first, *[await site.open(PORT, os.geteuid()) for _ in range(MAX_STREAMS)]]
        codes = []
        for stream in streams:
            try:
                codes.append("" if await stream.read() else "nothing")
            except VgpuctlError as error:
                codes.append(error.code)
        for stream in streams[1:]:
            await stream.close()
        return codes

    with serving(site.listen(), greet):
        codes = site.run(open_all, uid=os.geteuid())
        assert (codes.count(""), codes.count("too-many")) == (MAX_STREAMS, 1)
        assert site.code(POOLS, PORT) == "", "they have ended"


def test_a_request_that_is_no_stream(site: StreamSite) -> None:
    assert site.agent.ask("GET", f"/v1/{site.filled(PORT)}").status == 404
    raw = site.agent.ask("GET", f"/v1/{site.filled(PORT)}", Connection="upgrade", Upgrade="websocket")
    assert raw.status == 400
    assert site.mark()["id"] == DESKTOP


def test_streams_end_with_the_agent(tmp_path: Path) -> None:
    results: list[bytes | str] = []
    reading = threading.Event()

    async def wait(stream: ClientStream) -> None:
        await read(stream, 1)
        reading.set()
        try:
            while data := await stream.read():
                results.append(data)
            results.append("closed")
        except VgpuctlError as error:
            results.append(error.code)

    with running_with_guests(HOST, tmp_path) as (agent, network):
        one = StreamSite(agent, tmp_path, network)
        one.announce(uid=os.geteuid())
        assert one.ask(os.geteuid(), "create-vm", fleet(MARK), name="vdi", image=IMAGE, **GPU)["ok"]
        thread = threading.Thread(target=one.run, args=(wait, SCREEN, os.geteuid()))
        thread.start()
        assert reading.wait(60), sys.exc_info()
    thread.join(60)
    assert results[-1] == "stopping"
