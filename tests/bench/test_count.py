"""`create-vm --count 200` on a simulated host: each VM takes as long as with --count 20."""

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


def test_time_per_vm_of_200_and_of_20(bench: Tell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    file = tmp_path / "host.yaml"
    file.write_text(SCENARIO)
    host = f"sim:{file}"

    def seconds_for(count: int) -> float:
        """Reset the host, create this many VMs, and return the seconds that the command takes."""
        run("--host", host, "--yes", "sim", "reset", env=env)
        started = time.perf_counter()
        out = run(
            "--host", host, "--json", "create-vm", "vdi-{:03}", "--count", str(count), "--profile", "A16-1Q", env=env
        )
        elapsed = time.perf_counter() - started
        vms = json.loads(out)["data"]["vms"]
        assert len(vms) == len({v["carrier"] for vm in vms for v in vm["vgpus"]}) == count
        assert {vm["state"] for vm in vms} == {"running"}
        return elapsed

    times = runs(3, 15)
    pair = paired(lambda: seconds_for(MANY) / MANY, lambda: seconds_for(FEW) / FEW, times)
    bench(
        f"create-vm --count {MANY}",
        pair.ratio,
        GROWTH_LIMIT,
        f"a VM of {MANY} against a VM of {FEW}, the whole command divided by its VMs: {pair.medians()}",
    )
    one_vm_seconds = statistics.median(seconds_for(1) for _ in range(times))
    without_start = Pair(
        tuple((elapsed * MANY - one_vm_seconds) / (MANY - 1) for elapsed in pair.ours),
        tuple((elapsed * FEW - one_vm_seconds) / (FEW - 1) for elapsed in pair.theirs),
    )
    bench(
        f"create-vm --count {MANY}, without the start",
        without_start.ratio,
        GROWTH_LIMIT,
        f"the same less {one_vm_seconds:.3f} s, what the command takes for one VM: {without_start.medians()}",
    )


def run(*words: str, env: dict[str, str]) -> str:
    """Run a command line in its own process and return its output."""
    completed = subprocess.run(vgpuctl(*words), env=env, capture_output=True, text=True, check=False)
    assert completed.returncode == 0, completed.stderr
    return completed.stdout
