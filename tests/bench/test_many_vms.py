"""200 VMs on a simulated host: the last ones take as long as the first; the lock is held for milliseconds.

The test alternates between two hosts, one with few VMs and one with many, so that a busy machine slows both equally. It
times one process per VM, as people and playbooks start them. This process creates the many VMs beforehand.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.conftest import Tell
from tests.bench.paired import Pair, environment, vgpuctl
from vgpuctl.cli import entry

VMS, COMPARED = 200, 20
GROWTH_LIMIT, LOCK_LIMIT_MS = 1.2, 20.0
CALLERS = 4
Held = tuple[float, float]
"""Wall-clock seconds and CPU seconds."""

SCENARIO = """version: 1
title: room for 256 vGPUs of 1 GiB
kernel: 5.14.0-427.el9_4.x86_64
storage:
  filesystem_gib: 100000
  pools:
    - {name: default}
gpus:
  - {model: A16, count: 16, profiles: [A16-1Q]}
"""


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return two new simulated hosts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    files = (tmp_path / "few.yaml", tmp_path / "many.yaml")
    for file in files:
        file.write_text(SCENARIO)
    return f"sim:{files[0]}", f"sim:{files[1]}"


def in_this_process(words: list[str]) -> str:
    """Run a command line in this process and return its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert entry.main(words) == 0, out.getvalue()
    return out.getvalue()


def in_a_process(words: list[str], env: dict[str, str]) -> str:
    """Run a command line in its own process and return its output."""
    completed = subprocess.run(vgpuctl(*words), env=env, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout


def test_the_last_vms_take_as_long_as_the_first(hosts: tuple[str, str], bench: Tell, tmp_path: Path) -> None:
    few, many = hosts
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    for number in range(VMS - COMPARED):
        in_this_process(create(many, number))
    in_a_process(["--host", few, "list-vms"], env)
    first: list[float] = []
    last: list[float] = []
    first_cpu: list[float] = []
    last_cpu: list[float] = []
    for number in range(COMPARED):
        sides = [
            (first, first_cpu, create(few, number)),
            (last, last_cpu, create(many, VMS - COMPARED + number)),
        ]
        for walls, cpus, words in sides[:: -1 if number % 2 else 1]:
            started, cpu_before = time.perf_counter(), children_seconds()
            in_a_process(words, env)
            walls.append(time.perf_counter() - started)
            cpus.append(children_seconds() - cpu_before)
    check_vms(in_a_process(["--host", few, "--json", "list-vms"], env), COMPARED)
    check_vms(in_a_process(["--host", many, "--json", "list-vms"], env), VMS)
    pair = Pair(tuple(last), tuple(first))
    bench(
        "200 VMs",
        pair.ratio,
        GROWTH_LIMIT,
        f"a VM at {VMS - COMPARED + 1}..{VMS} against one at 1..{COMPARED}, means "
        f"{statistics.fmean(last) * 1000:.0f} ms and {statistics.fmean(first) * 1000:.0f} ms; of CPU "
        f"{statistics.fmean(last_cpu) * 1000:.0f} ms and {statistics.fmean(first_cpu) * 1000:.0f} ms, ratio "
        f"{Pair(tuple(last_cpu), tuple(first_cpu)).ratio:.2f}",
    )


def children_seconds() -> float:
    """Return the CPU time of this process's children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def create(host: str, number: int) -> list[str]:
    """Return the command line that creates the n-th VM."""
    return ["--host", host, "--json", "create-vm", f"vdi-{number:03d}", "--profile", "A16-1Q"]


def check_vms(text: str, count: int) -> None:
    """Check that all VMs exist and run, each with its own vGPU."""
    vms = json.loads(text)["data"]
    assert [vm["name"] for vm in vms] == [f"vdi-{n:03d}" for n in range(count)]
    assert {vm["state"] for vm in vms} == {"running"}
    assert len({v["carrier"] for vm in vms for v in vm["vgpus"]}) == count


def test_how_long_the_lock_is_held(hosts: tuple[str, str], bench: Tell, tmp_path: Path) -> None:
    host = hosts[1]
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    alone, together = held_alone(host, env), held_together(host, env)
    vms = json.loads(in_a_process(["--host", host, "--json", "list-vms"], env))["data"]
    assert len(vms) == VMS
    assert len(alone) == VMS // 2
    assert len(together) >= VMS // 2  # more if a GPU filled up between the first read and the lock
    for what, held in (("one caller", alone), (f"{CALLERS} callers on {os.cpu_count()} CPUs", together)):
        walls, cpus = [wall * 1000 for wall, _ in held], [cpu * 1000 for _, cpu in held]
        details = f"median {statistics.median(walls):.1f} ms, longest {max(walls):.1f} ms; of that CPU "
        details += f"{statistics.median(cpus):.1f} ms, p99 {percentile(cpus):.1f} ms; {len(held)} create-vm --no-start"
        bench(f"lock held by {what}, p99", percentile(walls), LOCK_LIMIT_MS, details, " ms")


def percentile(values: list[float]) -> float:
    """Return the 99th percentile."""
    return statistics.quantiles(values, n=100, method="inclusive")[-1]


def held_alone(host: str, env: dict[str, str]) -> list[Held]:
    """Return the lock times of one process that creates half of the VMs."""
    return _lock_times([_driver(host, "alone", VMS // 2, env)])


def held_together(host: str, env: dict[str, str]) -> list[Held]:
    """Return the lock times of several processes that start together."""
    drivers = [_driver(host, f"caller-{n}", VMS // 2 // CALLERS, env) for n in range(CALLERS)]
    return _lock_times(drivers)


def _driver(host: str, prefix: str, count: int, env: dict[str, str]) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.bench.lock_driver", host, prefix, str(count)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _lock_times(drivers: list[subprocess.Popen[str]]) -> list[Held]:
    held: list[Held] = []
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.close()
        driver.stdin = None
    for driver in drivers:
        out, err = driver.communicate(timeout=600)
        assert driver.returncode == 0, err
        held += [(float(wall), float(cpu)) for wall, cpu in (line.split() for line in out.splitlines())]
    return held
