# SPDX-License-Identifier: Apache-2.0
"""The controller's link to a host by SSH: a key that reaches the agent alone, the host's key, one login for all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.conftest import running
from tests.remote.conftest import DIALLED, UNKNOWN
from tests.remote.network import Network
from tests.remote.test_agent import on_client

WORK = """
import sys, threading, uuid
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest

link = HostLink("gpu01", sys.argv[1], *sys.argv[2:])
fence = Fence("database", 1, "holder")
link.host().announce_fleet(fence)
mark = DesktopMark(str(uuid.uuid4()), "office", "database", 1)
link.host(FleetRequest(fence, mark)).create_vm("office-001", profile=("A100-4C",))
threads = [threading.Thread(target=lambda: link.host().list_vms()) for _ in range(12)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
(vm,) = link.host().list_vms().data
print(vm.desktop == mark, vm.uuid == mark.id, link.host_key.split()[1][:7])
print(link.host_key)
link.close()
print(len(link.host().list_vms().data), "after a new login")
link.close()
"""
LOGIN = """
import sys
from vgpuctl.controller.hosts.link import HostLink

link = HostLink("gpu01", sys.argv[1], *sys.argv[2:])
link.host().read_fleet()
print(link.host_key)
"""


STREAM = """
import asyncio, sys, uuid
from concurrent.futures import ThreadPoolExecutor
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.hosts.stream_link import opened_stream
from vgpuctl.model.desktop import DesktopMark, Fence, FleetRequest
from vgpuctl.sim.screen import BANNER, COLOUR, HEIGHT, WIDTH

link = HostLink("gpu01", sys.argv[1])
fence = Fence("database", 1, "holder")
link.host().announce_fleet(fence)
mark = DesktopMark(str(uuid.uuid4()), "office", "database", 1)
link.host(FleetRequest(fence, mark)).create_vm("office-001", profile=("A100-4C",))
link.close()

async def read(stream, size):
    data = b""
    while len(data) < size:
        data += await stream.read()
    return data

async def see():
    async with opened_stream(link, f"vms/{mark.id}/screen?generation=1", ThreadPoolExecutor(1)) as stream:
        banner = await read(stream, 12)
        await stream.write(BANNER)
        await read(stream, 2)
        await stream.write(b"\\x01")
        await read(stream, 4)
        await stream.write(b"\\x01")
        await read(stream, 39)
        for _ in range(20):
            await stream.write(b"\\x03\\0" + bytes(8))
        pixels = await read(stream, 20 * (16 + 4 * WIDTH * HEIGHT))
        print(banner == BANNER, pixels[16:16 + 4] == COLOUR)

async def refused():
    async with opened_stream(link, f"vms/{mark.id}/screen?generation=2", ThreadPoolExecutor(1)) as stream:
        await stream.read()

asyncio.run(see())
asyncio.run(see())
try:
    asyncio.run(refused())
except Exception as error:
    print(error.code)
"""


def test_a_stream_through_ssh(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    url = f"ssh://root@{network.hosts[DIALLED].address}"
    with running("sim:a100-40", tmp_path, path=f"{network.state(DIALLED)}/home/agent.sock"):
        done = on_client(network, STREAM, url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == ["True True", "True True", "stale", ""]


def test_a_controller_works_through_ssh(network: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    url = f"ssh://root@{network.hosts[DIALLED].address}"
    with running("sim:a100-40", tmp_path, path=f"{network.state(DIALLED)}/home/agent.sock"):
        done = on_client(network, WORK, url)
        assert done.returncode == 0, done.stderr
        first, key, last = done.stdout.splitlines()
        assert (first, last) == ("True True SHA256:", "1 after a new login")
        assert on_client(network, LOGIN, url, key).stdout == f"{key}\n"
        wrong = on_client(network, LOGIN, url, "SHA256:" + "A" * 43)
        assert wrong.returncode
        assert "HostKeyRefused" in wrong.stderr


def test_a_key_that_is_given_needs_no_known_hosts(network: Network, tmp_path: Path) -> None:
    url = f"ssh://root@{network.hosts[UNKNOWN].address}"
    refused = on_client(network, LOGIN, url, "SHA256:" + "A" * 43)
    assert "is ssh-ed25519 SHA256:" in refused.stderr
    actual = refused.stderr.rpartition("its key is ssh-ed25519 ")[2].split(",")[0]
    accepted = on_client(network, LOGIN, url, actual)
    assert "HostKeyRefused" not in accepted.stderr, "only its agent is missing"
