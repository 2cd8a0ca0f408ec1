# SPDX-License-Identifier: Apache-2.0
"""What controllers of a large fleet take: `python -m tests.bench.fleet --hosts 1000 --desktops 20000 --minutes 10`.

Each controller is a process with the program's engine and store on a PostgreSQL of its own, which this command starts
and removes. Its hosts are thin (tests/controller/thin_host.py) and in the controller's own process: a host has one
controller at a time, so that only this one's copy is used. SSH, HTTP and the reading of JSON are therefore not in these
numbers; the last line says what one look by HTTP takes.

A phase fills the fleet, the next one leaves it alone, in a last one users come and go. It prints a table for
docs/reports/numbers.md. CPU is in percent of one core; a look is a whole turn of a host's loop.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import event, select

from tests.agent.conftest import process
from tests.controller.conftest import Server, add_host, add_image, add_pool
from tests.controller.thin_host import PROFILE, VGPUS_PER_GPU, ThinHosts
from vgpuctl.controller.database import schema
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.engine import Engine
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.hosts.link import HostLink
from vgpuctl.controller.hosts.runner import HostRunner
from vgpuctl.controller.model import FleetCaller, Role
from vgpuctl.errors import VgpuctlError

POOL_DESKTOPS = 1000
POLL_SECONDS = 2.0
ADMIN = FleetCaller("bench", Role.ADMIN)
TICKS = os.sysconf("SC_CLK_TCK")
COLUMNS = (
    "controllers, phase", "CPU of each", "memory of each (MiB)", "threads", "statements/s", "writes/s",
    "look: median, p99 (ms)", "looks/s", "PostgreSQL's CPU",
)  # fmt: skip


class Meter:
    """What one controller did since it was asked last."""

    def __init__(self, store: Store) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._turns: list[float] = []
        event.listen(store.database.engine, "before_cursor_execute", self._count)
        take_turn = HostRunner._turn

        def timed(runner: HostRunner) -> float | None:
            begin = time.perf_counter()
            wait = take_turn(runner)
            with self._lock:
                self._turns.append(1000 * (time.perf_counter() - begin))
            return wait

        HostRunner._turn = timed  # type: ignore[method-assign]

    def _count(self, _: object, __: object, statement: str, *___: object) -> None:
        is_write = statement.split(None, 1)[0] in ("INSERT", "UPDATE", "DELETE")
        with self._lock:
            self._counts["statements"] += 1
            self._counts["writes"] += is_write

    def take(self) -> dict[str, Any]:
        """Return what was counted, and begin again."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            turns, self._turns = self._turns, []
        return {
            **counts,
            "looks": sorted(turns),
            "cpu": time.process_time(),
            "memory": int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20,
            "threads": threading.active_count(),
        }


def run_controller(url: str, names: Sequence[str], directory: Path, gpus: int) -> None:
    """Be one controller: answer each line on stdin with what was counted, until there is none."""
    store = open_store(url)
    hosts = ThinHosts(directory, gpus=gpus)
    for name in names:
        hosts.add(name)
    meter, engine = Meter(store), Engine(store, hosts.link)
    engine.start()
    print(store.holder, flush=True)
    for _ in sys.stdin:
        print(json.dumps(meter.take()), flush=True)
    os._exit(0)  # nothing is to be given back to anybody


class Controllers:
    """The processes of all controllers of one run."""

    def __init__(self, url: str, count: int, directory: Path, options: argparse.Namespace) -> None:
        words = [sys.executable, "-m", "tests.bench.fleet", "--hosts", str(options.hosts), "--gpus", str(options.gpus)]
        self.processes = [
            subprocess.Popen(
                [*words, "--controller", url, str(directory / f"{count}-{number}")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number in range(count)
        ]  # fmt: skip
        self.holders = [child.stdout.readline().strip() for child in self.processes if child.stdout is not None]

    def take(self) -> list[dict[str, Any]]:
        """Return what each counted since it was asked last."""
        answers = []
        for child in self.processes:
            assert child.stdin is not None
            assert child.stdout is not None
            child.stdin.write("\n")
            child.stdin.flush()
            answers.append(json.loads(child.stdout.readline()))
        return answers

    def close(self) -> None:
        for child in self.processes:
            child.kill()
            child.communicate()


def database_cpu(server: Server) -> float:
    """Return the seconds of CPU of PostgreSQL's processes, also of those that have ended."""
    assert server._process is not None
    parent, total = str(server._process.pid), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        fields = text.rpartition(")")[2].split()
        if path.parent.name == parent:
            total += sum(map(int, fields[11:15]))
        elif fields[1] == parent:
            total += int(fields[11]) + int(fields[12])
    return total / TICKS


def names_of(count: int) -> list[str]:
    return [f"gpu{number:04}" for number in range(1, count + 1)]


def make_fleet(store: Store, holders: Sequence[str], options: argparse.Namespace) -> None:
    """Add hosts, to each controller as many, and pools of at most a thousand desktops."""
    add_image(store)
    for number in range(0, options.desktops, POOL_DESKTOPS):
        size = min(POOL_DESKTOPS, options.desktops - number)
        name = f"p{number // POOL_DESKTOPS:02}"
        more = {"names": f"{name}-{{:04}}", "maximum": size, "spare": size, "placement": "spread"}
        add_pool(store, name, **more, starts_per_host=4)
    for number, name in enumerate(names_of(options.hosts)):
        store.hosts.take_lease(add_host(store, name).id, holders[number % len(holders)], 30.0)


def ready(store: Store) -> int:
    """Return how many desktops can take a user, by a query that is cheap."""
    with store.database.read() as connection:
        return len(
            connection.execute(
                select(schema.desktop.c.id).where(schema.desktop.c.can_take & schema.desktop.c.user.is_(None))
            ).all()
        )


class Phases:
    """The lines of the table, one for each phase of a run."""

    def __init__(self, controllers: Controllers, server: Server) -> None:
        self._controllers, self._server = controllers, server
        self._last = controllers.take()
        self._begin = time.monotonic(), database_cpu(server)

    def end(self, name: str) -> str:
        """Return the line of the phase that ends now."""
        answers, now = self._controllers.take(), (time.monotonic(), database_cpu(self._server))
        seconds = now[0] - self._begin[0]
        turns = sorted(turn for one in answers for turn in one["looks"])
        cells = [
            f"{len(answers)}, {name} ({seconds:.0f} s)",
            ", ".join(
                f"{100 * (one['cpu'] - old['cpu']) / seconds:.0f} %"
                for one, old in zip(answers, self._last, strict=True)
            ),
            ", ".join(str(one["memory"]) for one in answers),
            ", ".join(str(one["threads"]) for one in answers),
            *(f"{sum(one.get(key, 0) for one in answers) / seconds:.0f}" for key in ("statements", "writes")),
            f"{statistics.median(turns):.0f}, {turns[len(turns) * 99 // 100]:.0f}" if turns else "none",
            f"{len(turns) / seconds:.0f}",
            f"{100 * (now[1] - self._begin[1]) / seconds:.0f} %",
        ]
        self._last, self._begin = answers, now
        return f"| {' | '.join(cells)} |"


def fill(store: Store, options: argparse.Namespace) -> int:
    """Wait until all desktops are ready, or the time for it is over; return how many are."""
    end, count, shown = time.monotonic() + 60 * options.fill_minutes, 0, time.monotonic()
    while (count := ready(store)) < options.desktops and time.monotonic() < end:
        time.sleep(POLL_SECONDS)
        if time.monotonic() > shown + 30:
            shown = time.monotonic()
            print(f"  {count} of {options.desktops} ready", file=sys.stderr, flush=True)
    return count


def users_come_and_go(store: Store, seconds: float, per_second: float) -> tuple[int, int]:
    """Give desktops to users and take them away; return how many had one, and how many errors there were."""
    service = FleetService(store, lambda host: HostLink(host.name, "local"))
    pools = [pool.name for pool in store.pools.list()]
    begin, done, errors = time.monotonic(), 0, 0
    held: list[str] = []
    while (now := time.monotonic()) < begin + seconds:
        try:
            held.append(service.assign(ADMIN, pools[done % len(pools)], f"user{done}").data.name)
            if len(held) > 60 * per_second:
                service.release(ADMIN, held.pop(0))
        except VgpuctlError as error:
            errors += 1
            print(f"  {error}", file=sys.stderr, flush=True)
        done += 1
        time.sleep(max(0.0, begin + done / per_second - now))
    return done, errors


def measure(server: Server, count: int, directory: Path, options: argparse.Namespace) -> Iterator[str]:
    """Yield the lines of a run with so many controllers."""
    server.run(f"CREATE DATABASE fleet{count}")
    url = server.url(f"fleet{count}")
    upgrade(url)
    store = open_store(url)
    controllers = Controllers(url, count, directory, options)
    try:
        phases = Phases(controllers, server)
        make_fleet(store, controllers.holders, options)
        is_full = fill(store, options)
        yield phases.end(f"fills {is_full} of {options.desktops}")
        time.sleep(30 * options.minutes)
        yield phases.end("idle")
        done, errors = users_come_and_go(store, 30 * options.minutes, options.users_per_second)
        yield phases.end(f"{done} users, {errors} errors")
        lost = options.desktops - ready(store) - sum(one.user is not None for one in store.desktops.list())
        print(f"  {lost} desktops are neither ready nor a user's", file=sys.stderr, flush=True)
    finally:
        controllers.close()
        store.close()


def look_by_http(directory: Path, vms: int, rounds: int = 20) -> str:
    """Return what a list of a real agent's VMs takes a controller, without SSH."""
    os.environ["XDG_STATE_HOME"] = str(directory / "state-home")
    (directory / "agent").mkdir()
    with process("sim:l40s-x4", directory / "agent") as agent:
        link = HostLink("gpu01", f"agent:{agent.path}")
        link.host().create_vms("vdi-{:03}", count=vms, profile=("L40S-2Q",), start=False)
        link.host().list_vms()  # what it loads
        begin = time.process_time()
        for _ in range(rounds):
            assert len(link.host().list_vms().data) == vms
        milliseconds = 1000 * (time.process_time() - begin) / rounds
        link.close()
    return f"a real agent's list of {vms} VMs by HTTP, without SSH: {milliseconds:.1f} ms of the controller's CPU"


@contextmanager
def database() -> Iterator[tuple[Path, Server]]:
    with tempfile.TemporaryDirectory(prefix="vgpuctl-fleet-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        (directory / "pg").mkdir(mode=0o755)
        server = Server(directory / "pg")
        server.start()
        try:
            yield directory, server
        finally:
            server.stop()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.fleet", description=__doc__)
    parser.add_argument("--hosts", type=int, default=1000, help="how many hosts (1000)")
    parser.add_argument("--desktops", type=int, default=20_000, help="how many desktops (20000)")
    parser.add_argument("--minutes", type=float, default=10.0, help="how long each run is watched once it is full (10)")
    parser.add_argument("--fill-minutes", type=float, default=30.0, help="how long filling may take (30)")
    parser.add_argument("--controllers", type=int, nargs="+", default=[1, 2], help="runs with so many each (1 2)")
    parser.add_argument("--gpus", type=int, default=8, help=f"of each host, with {VGPUS_PER_GPU} {PROFILE} each (8)")
    parser.add_argument("--users-per-second", type=float, default=1.0, help="who come, each for a minute (1)")
    parser.add_argument("--controller", nargs=2, metavar=("URL", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.controller is not None:
        url, place = options.controller
        run_controller(url, names_of(options.hosts), Path(place), options.gpus)
    print(f"{options.hosts} hosts, {options.desktops} desktops\n\n| {' | '.join(COLUMNS)} |", flush=True)
    print(f"|{'---|' * len(COLUMNS)}", flush=True)
    with database() as (directory, server):
        for count in options.controllers:
            for line in measure(server, count, directory, options):
                print(line, flush=True)
        print(f"\n{look_by_http(directory, max(1, options.desktops // options.hosts))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
