# SPDX-License-Identifier: Apache-2.0
"""Many operations and events leave the agent as it was: memory, files, descriptors and threads do not grow."""

from __future__ import annotations

import gc
import http.client
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests import EVERYTHING
from tests.agent.conftest import RunningAgent, process, running
from vgpuctl.agent import operations
from vgpuctl.agent.events import KEPT_EVENTS

HOST = "sim:a100-40"
EVENTS = 10_000
EARLY_OPERATIONS, OPERATIONS, MIB = (200, 1000, 12.0) if EVERYTHING else (50, 100, 24.0)
"""When a process is measured, and how much it may have grown: garbage waits for its collection, at first up to 16 MiB.
Of operations, 1,000 are kept by rule."""
KEPT, IN_MEMORY = 40, 10
"""Limits that a short run reaches, too."""
OBJECTS = 400
"""So many more may be there after a run: what a look at the host happens to hold."""


class Size(NamedTuple):
    """What a process has. `memory`: its objects, or the MiB that it has in memory."""

    memory: float
    descriptors: int
    threads: int


def size_of(pid: int, memory: Callable[[], float]) -> Size:
    """Return what a process has."""
    descriptors, threads = (len(os.listdir(f"/proc/{pid}/{name}")) for name in ("fd", "task"))
    return Size(memory(), descriptors, threads)


def objects() -> float:
    """Return how many objects this process has, after a collection."""
    gc.collect()
    return len(gc.get_objects())


def mebibytes(pid: int) -> float:
    """Return how much memory a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def make_operations(agent: RunningAgent, count: int) -> None:
    """Make so many operations, one after the other, on one connection."""
    connection = http.client.HTTPConnection("agent")
    connection.sock = agent.dial()

    def ask(method: str, path: str, body: str | None = None) -> dict[str, Any]:
        connection.request(method, path, body)
        document: dict[str, Any] = json.loads(connection.getresponse().read())
        return document

    for _ in range(count):
        operation = ask("POST", "/v1/uncordon", '{"gpu": "A100"}')["id"]
        assert ask("GET", f"/v1/operations/{operation}?wait=60")["document"]["ok"]
    connection.close()


def make_events(agent: RunningAgent, host_directory: Path) -> None:
    """Have the kernel log so many messages, each an event of its own, and wait for them."""

    def count() -> int:
        return int(agent.ask("GET", "/v1/events").document["last"].rpartition("-")[2])

    start = count()
    with (host_directory / "kmsg").open("a") as log:
        log.writelines(f"NVRM: Xid (PCI:0000:3b:00): {1000 + start + number}, x\n" for number in range(EVENTS))
    while count() < start + EVENTS:
        time.sleep(0.05)
    assert len(agent.ask("GET", "/v1/events").document["events"]) == KEPT_EVENTS


def assert_same(before: Size, after: Size, more_memory: float) -> None:
    """Assert that a process did not grow."""
    assert after.descriptors <= before.descriptors + 1, "one may belong to a look at the host"
    assert after.threads <= before.threads + 2, "a pool may make another of its few threads"
    assert after.memory - before.memory <= more_memory, (before, after)


def test_operations_and_events_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MAX_KEPT_OF_ACCOUNT", KEPT)
    monkeypatch.setattr(operations, "MAX_IN_MEMORY", IN_MEMORY)
    with running(HOST, tmp_path) as agent:
        host_directory = tmp_path / "state-home/vgpuctl/a100-40"
        make_operations(agent, 1)
        make_events(agent, host_directory)
        make_operations(agent, KEPT + 10)
        before, names = size_of(os.getpid(), objects), {path.name for path in agent.state.iterdir()}
        make_events(agent, host_directory)
        make_operations(agent, 120)
        after = size_of(os.getpid(), objects)
        assert_same(before, after, OBJECTS)
        listed = agent.ask("GET", "/v1/operations").document["operations"]
        files = {path.name for path in (agent.state / "operations").iterdir()}
    assert files == {f"{one['id']}.json" for one in listed}
    assert KEPT <= len(files) <= KEPT + 1, "the last one may end after the others were counted"
    assert {path.name for path in agent.state.iterdir()} == names


def test_a_process_does_not_grow(tmp_path: Path) -> None:
    with process(HOST, tmp_path) as agent:
        pid, host_directory = agent.process.pid, tmp_path / "state-home/vgpuctl/a100-40"
        make_operations(agent, 1)
        make_events(agent, host_directory)
        make_operations(agent, EARLY_OPERATIONS)
        before = size_of(pid, lambda: mebibytes(pid))
        make_operations(agent, OPERATIONS - EARLY_OPERATIONS)
        make_events(agent, host_directory)
        assert_same(before, size_of(pid, lambda: mebibytes(pid)), MIB)
        assert len(os.listdir(agent.state / "operations")) <= operations.MAX_KEPT_OF_ACCOUNT + 1
