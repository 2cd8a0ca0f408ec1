"""200 VMs on a simulated host: the last ones cost what the first ones cost, and the lock is held for milliseconds.

The smoke pass runs the command line in this process: what a process costs to start would only hide growth. The
full run starts one process for each VM, as people and playbooks do.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.conftest import Tell
from tests.bench.paired import FULL, environment, runs, vgpuctl
from vgpuctl.cli import entry

VMS, EARLY = 200, 20
GROWTH_LIMIT, LOCK_LIMIT_MS = 1.2, 20.0
CALLERS = 4
SCENARIO = """version: 1
title: room for 256 vGPUs of 1 GiB
kernel: 5.14.0-427.el9_4.x86_64
storage:
  filesystem_gib: 100000
  pools:
    - {name: default}
gpus:
  - {model: A16, count: 16}
"""


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A simulated host of its own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    file = tmp_path / "big.yaml"
    file.write_text(SCENARIO)
    return f"sim:{file}"


def in_this_process(words: list[str], env: dict[str, str]) -> str:
    """Run a command line here and return what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert entry.main(words) == 0, out.getvalue()
    return out.getvalue()


def in_a_process(words: list[str], env: dict[str, str]) -> str:
    """Run a command line in a process of its own and return what it printed."""
    return subprocess.run(vgpuctl(*words), env=env, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("way", [in_this_process, *([in_a_process] if FULL else [])])
def test_the_last_vms_cost_what_the_first_cost(
    way: Callable[[list[str], dict[str, str]], str], host: str, bench: Tell, tmp_path: Path
) -> None:
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    way(["--host", host, "list-profiles", "--json"], env)
    took: list[float] = []
    for number in range(VMS):
        begun = time.perf_counter()
        way(["--host", host, "--json", "create-vm", f"vdi-{number:03d}", "--profile", "A16-1Q"], env)
        took.append(time.perf_counter() - begun)
    made = json.loads(way(["--host", host, "--json", "list-vms"], env))["data"]
    assert [vm["name"] for vm in made] == [f"vdi-{n:03d}" for n in range(VMS)]
    assert {vm["state"] for vm in made} == {"running"}
    assert len({v["carrier"] for vm in made for v in vm["vgpus"]}) == VMS
    first, last = statistics.fmean(took[:EARLY]), statistics.fmean(took[-EARLY:])
    name = way.__name__.replace("_", " ")
    bench(
        f"200 VMs, {name}",
        last / first,
        GROWTH_LIMIT,
        f"{last * 1000:.1f} ms a VM at 181..200 against {first * 1000:.1f} ms at 1..20, {sum(took):.1f} s in all",
    )


def test_how_long_the_lock_is_held(host: str, bench: Tell, tmp_path: Path) -> None:
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    held = sorted(held_alone(host, env) + held_together(host, env))
    assert len(held) == VMS
    high = held[int(len(held) * 0.99) - 1] * 1000
    middle = statistics.median(held) * 1000
    bench(
        "lock held, p99",
        high,
        LOCK_LIMIT_MS,
        f"median {middle:.2f} ms, longest {held[-1] * 1000:.2f} ms, {len(held)} create-vm --no-start, "
        f"half of them from {CALLERS} processes at once",
        " ms",
    )


def held_alone(host: str, env: dict[str, str]) -> list[float]:
    """The times of one process that makes half of the VMs."""
    return _answers([_driver(host, "alone", VMS // 2, env)])


def held_together(host: str, env: dict[str, str]) -> list[float]:
    """The times of several processes that begin together."""
    drivers = [_driver(host, f"caller-{n}", VMS // 2 // CALLERS, env) for n in range(CALLERS)]
    return _answers(drivers)


def _driver(host: str, prefix: str, count: int, env: dict[str, str]) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "tests.bench.lock_driver", host, prefix, str(count)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _answers(drivers: list[subprocess.Popen[str]]) -> list[float]:
    held: list[float] = []
    for driver in drivers:
        assert driver.stdin is not None
        driver.stdin.close()
        driver.stdin = None
    for driver in drivers:
        out, err = driver.communicate(timeout=runs(300, 600))
        assert driver.returncode == 0, err
        held += [float(line) for line in out.split()]
    return held
