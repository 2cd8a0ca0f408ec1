# SPDX-License-Identifier: Apache-2.0
"""A real PostgreSQL and SQLite, and stores on them; hosts with real agents on simulated hosts."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.agent.conftest import RunningAgent, running
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.model import AgentFacts, FleetHost, Image, Pool
from vgpuctl.controller.planning.pool_spec import parse_pool

SPEC = {"kind": "floating", "image": "office", "names": "office-{:03}", "maximum": 6, "spare": 2, "profile": "A100-4C"}
IMAGE = "/srv/images/ubuntu-24.04.qcow2"
_NUMBERS = itertools.count(1)


class Server:
    """A PostgreSQL of its own, on a Unix socket in its directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))[-1]
        self._user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", "nobody:nogroup", directory], check=True)
        initdb = [self._programs / "initdb", "-D", directory / "data", "-A", "trust", "-U", "fleet", "--no-sync"]
        subprocess.run([*self._user, *initdb], check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = ["-D", self._directory / "data", "-k", self._directory, "-c", "listen_addresses=", "-c", "fsync=off"]
        self._process = subprocess.Popen(
            [*self._user, self._programs / "postgres", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
        )
        for _ in range(600):
            try:
                self.run("SELECT 1")
                return
            except psycopg.OperationalError:
                time.sleep(0.05)
        raise AssertionError("PostgreSQL does not answer")

    def stop(self) -> None:
        """Stop it; who is connected is cut off."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait(30)

    def url(self, name: str) -> str:
        """Return the URL of a database."""
        return f"postgresql://fleet@/{name}?host={self._directory}"

    def program(self, name: str) -> Path:
        """Return one of its programs."""
        return self._programs / name

    def run(self, statement: str) -> None:
        """Run a statement of an admin."""
        with psycopg.connect(f"dbname=postgres user=fleet host={self._directory}", autocommit=True) as connection:
            connection.execute(statement.encode())


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="vgpuctl-pg-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        server = Server(path)
        server.start()
        try:
            yield server
        finally:
            server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    server: Server = request.getfixturevalue("postgresql")
    name = f"fleet_{os.getpid()}_{next(_NUMBERS)}"
    server.run(f"CREATE DATABASE {name}")
    return server.url(name)


@contextmanager
def opened(url: str) -> Iterator[Store]:
    store = open_store(url)
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """A store with its tables."""
    upgrade(url)
    with opened(url) as result:
        yield result


@pytest.fixture
def own_store(tmp_path: Path) -> Iterator[Store]:
    """A store on SQLite, where it does not matter which database it is."""
    url = f"sqlite:///{tmp_path}/fleet.db"
    upgrade(url)
    with opened(url) as result:
        yield result


def facts(machine: str = "m1") -> AgentFacts:
    return AgentFacts(machine, "boot-1", "550.90.05", "0.3.0")


def add_image(store: Store, name: str = "office", path: str = IMAGE) -> Image:
    return store.images.put(Image(id="", name=name, version="1", path=path, os="linux"), "test")[0]


def add_pool(store: Store, name: str = "office", **more: object) -> Pool:
    spec = {key: value for key, value in {**SPEC, **more}.items() if value is not None}
    return store.pools.put(name, parse_pool(spec, "spec"), "test")[0]


def add_host(store: Store, name: str = "gpu01", address: str = "local", machine: str | None = None) -> FleetHost:
    return store.hosts.add(name, address, None, {}, facts(machine or f"machine-{name}"), "test")


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait until something holds; a controller works at its own pace."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningAgent]:
    """The agent of a simulated host with one A100."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    directory = tmp_path / "agent"
    directory.mkdir()
    with running("sim:a100-40", directory) as result:
        yield result
