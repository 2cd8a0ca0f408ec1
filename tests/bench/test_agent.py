# SPDX-License-Identifier: Apache-2.0
"""The host agent: what a command through it takes, compared with the command by itself, and what the agent costs idle.

On a real host the command by itself also connects to libvirt and reads a driver's files, which the simulated host does
faster: the ratios are for the worst case.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.agent import full_host
from tests.agent.conftest import process
from tests.bench.conftest import Tell
from tests.bench.paired import FULL, environment, paired, runs, seconds, vgpuctl
from tests.bench.test_many_vms import SCENARIO

CREATE_LIMIT, LIST_LIMIT, CPU_LIMIT, MEMORY_LIMIT_MIB = 1.05, 0.5, 1.0, 100.0
IDLE_SECONDS = 120.0 if FULL else 20.0


@pytest.fixture
def env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of commands, with the state of simulated hosts in this test's directory."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    return environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])


def listed(host: str, env: dict[str, str]) -> object:
    """Return the VMs of a host."""
    text = subprocess.run(
        vgpuctl("--host", host, "--json", "list-vms"), env=env, capture_output=True, check=True
    ).stdout
    return json.loads(text)["data"]


@pytest.mark.parametrize("name", ["a100-40", "full"])
def test_list_vms_through_the_agent(name: str, tmp_path: Path, env: dict[str, str], bench: Tell) -> None:
    host = full_host.write_scenario(tmp_path) if name == "full" else f"sim:{name}"
    with process(host, tmp_path) as agent:
        through = f"agent:{agent.path}"
        vms = listed(host, env)
        assert listed(through, env) == vms
        lists = [vgpuctl("--host", each, "list-vms") for each in (through, host)]
        pair = paired(lambda: seconds(lists[0], env), lambda: seconds(lists[1], env), runs(9, 41))
    assert isinstance(vms, list)
    bench(f"list-vms of {len(vms)} VMs through the agent", pair.ratio, LIST_LIMIT, f"{pair.medians()} by itself")


def test_create_through_the_agent(tmp_path: Path, env: dict[str, str], bench: Tell) -> None:
    hosts = []
    for name in ("one", "other"):
        (tmp_path / f"{name}.yaml").write_text(SCENARIO)
        hosts.append(f"sim:{tmp_path}/{name}.yaml")
    made = {host: 0 for host in hosts}
    with process(hosts[0], tmp_path) as agent:

        def create(host: str, place: str) -> float:
            made[host] += 1
            return seconds(vgpuctl("--host", place, "create-vm", f"vdi-{made[host]}", "--profile", "A16-1Q"), env)

        pair = paired(lambda: create(hosts[0], f"agent:{agent.path}"), lambda: create(hosts[1], hosts[1]), runs(7, 41))
        assert len(agent.ask("GET", "/v1/list-vms").document["data"]) == made[hosts[0]] == made[hosts[1]]
    bench("create-vm through the agent", pair.ratio, CREATE_LIMIT, f"{pair.medians()} by itself")


def test_what_an_idle_agent_costs(tmp_path: Path, env: dict[str, str], bench: Tell) -> None:
    with process(full_host.write_scenario(tmp_path), tmp_path) as agent:
        assert len(agent.ask("GET", "/v1/list-vms").document["data"]) == full_host.VMS
        before = cpu_seconds(agent.process.pid)
        time.sleep(IDLE_SECONDS)
        share = (cpu_seconds(agent.process.pid) - before) / IDLE_SECONDS * 100
        pages = int(Path(f"/proc/{agent.process.pid}/statm").read_text().split()[1])
    what = f"{full_host.GPUS} GPUs with {full_host.VGPUS_EACH} vGPUs each, {IDLE_SECONDS:g} s"
    bench("idle agent, share of a core", share, CPU_LIMIT, what, " %")
    bench("idle agent, memory", pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), MEMORY_LIMIT_MIB, what, " MiB")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
