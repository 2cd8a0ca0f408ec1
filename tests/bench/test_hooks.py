"""Fifty VMs start at once after a boot: how long does one hook wait for the other hooks?"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench.conftest import Tell
from tests.bench.paired import environment
from tests.hosts import create, request
from vgpuctl.sim import open_host
from vgpuctl.simulated import open_simulated_host

HOOKS = 50
WAIT_LIMIT_SECONDS = 1.0
SCENARIO = "l40s-x4"


def test_how_long_a_hook_waits_for_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: Tell) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    ports = open_simulated_host(SCENARIO)
    xmls = []
    for number in range(HOOKS):
        uuid = str(create(ports, request("L40S-1Q", name=f"vdi-{number:02}"), start=False).data.uuid)
        record = ports.hypervisor.find_domain(uuid)
        assert record is not None
        xmls.append(record.xml)
    subprocess.run(driver(), env=env, input=xmls[0], text=True, check=True, capture_output=True)  # compiles modules
    open_host(SCENARIO).reboot()
    pipe = subprocess.PIPE
    children = [subprocess.Popen(driver(), env=env, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in xmls]
    for child, xml in zip(children, xmls, strict=True):
        assert child.stdin is not None
        child.stdin.write(xml)
        child.stdin.flush()
    for child in children:  # all processes are ready; they start together
        assert child.stdin is not None
        child.stdin.close()
        child.stdin = None
    results = [(child.communicate(timeout=120), child.returncode) for child in children]
    assert [(err, status) for (_, err), status in results] == [("", 0)] * HOOKS
    assert len(open_simulated_host(SCENARIO).claims.all()) == HOOKS
    waited, held = zip(*((float(a), float(b)) for (out, _), _ in results for a, b in [out.split()]), strict=True)
    details = f"median {statistics.median(waited):.2f} s; held {statistics.median(held) * 1000:.1f} ms, longest "
    details += f"{max(held) * 1000:.1f} ms; {HOOKS} processes on {os.cpu_count()} CPUs"
    bench(f"{HOOKS} hooks at once, the longest wait for the host lock", max(waited), WAIT_LIMIT_SECONDS, details, " s")


def driver() -> list[str]:
    """Return the command that runs one hook."""
    return [sys.executable, "-m", "tests.bench.hook_driver", SCENARIO]
