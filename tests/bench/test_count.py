"""`create-vm --count 200` on a simulated host: a VM costs what it costs with --count 20."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from tests.bench.conftest import Tell
from tests.bench.paired import Pair, environment, paired, runs, vgpuctl
from tests.bench.test_many_vms import SCENARIO

FEW, MANY = 20, 200
GROWTH_LIMIT = 1.2


def test_a_vm_of_two_hundred_costs_what_one_of_twenty_costs(
    bench: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    file = tmp_path / "host.yaml"
    file.write_text(SCENARIO)
    host = f"sim:{file}"

    def whole(count: int) -> float:
        """Make so many on the host as new, and return the seconds of the command."""
        run("--host", host, "--yes", "sim", "reset", env=env)
        begun = time.perf_counter()
        out = run(
            "--host", host, "--json", "create-vm", "vdi-{:03}", "--count", str(count), "--profile", "A16-1Q", env=env
        )
        took = time.perf_counter() - begun
        made = json.loads(out)["data"]["vms"]
        assert len(made) == len({v["carrier"] for vm in made for v in vm["vgpus"]}) == count
        assert {vm["state"] for vm in made} == {"running"}
        return took

    times = runs(3, 15)
    pair = paired(lambda: whole(MANY) / MANY, lambda: whole(FEW) / FEW, times)
    bench(
        f"create-vm --count {MANY}",
        pair.ratio,
        GROWTH_LIMIT,
        f"a VM of {MANY} against a VM of {FEW}, the whole command divided by its VMs: {pair.medians()}",
    )
    one = statistics.median(whole(1) for _ in range(times))
    further = Pair(
        tuple((took * MANY - one) / (MANY - 1) for took in pair.ours),
        tuple((took * FEW - one) / (FEW - 1) for took in pair.theirs),
    )
    bench(
        f"create-vm --count {MANY}, without the start",
        further.ratio,
        GROWTH_LIMIT,
        f"the same less {one:.3f} s, what the command takes for one VM: {further.medians()}",
    )


def run(*words: str, env: dict[str, str]) -> str:
    """Run a command line in a process of its own and return what it printed."""
    ran = subprocess.run(vgpuctl(*words), env=env, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
