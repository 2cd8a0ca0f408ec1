# SPDX-License-Identifier: Apache-2.0
"""The host agent: what a command through it takes, compared with the command by itself, and what the agent costs idle.

On a real host the command by itself also connects to libvirt and reads a driver's files, which the simulated host does
faster: the ratios are for the worst case.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.agent import full_host
from tests.agent.conftest import process
from tests.agent.test_metrics import LIVELY
from tests.agent.test_metrics_port import free_port
from tests.bench.conftest import Tell
from tests.bench.paired import FULL, environment, paired, runs, seconds, vgpuctl
from tests.bench.test_many_vms import SCENARIO
from tests.callers import host_of
from tests.hosts import open_sim_host
from vgpuctl.agent.events import EventLog
from vgpuctl.agent.host_state import HostState
from vgpuctl.agent.metrics import render_metrics
from vgpuctl.agent.metrics_server import MetricsServer
from vgpuctl.config.agent_metrics import MetricsSpec
from vgpuctl.observe import observe
from vgpuctl.operations.usage import SCOPE, read_usage
from vgpuctl.value import replace

CREATE_LIMIT, LIST_LIMIT, CPU_LIMIT, MEMORY_LIMIT_MIB = 1.05, 0.5, 2.0, 150.0
"""The last two with the sampler of the use of GPUs."""
SCRAPE_LIMIT_MS = 50.0
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
        before = sum(map(cpu_seconds, family(agent.process.pid)))
        time.sleep(IDLE_SECONDS)
        processes = family(agent.process.pid)
        share = (sum(map(cpu_seconds, processes)) - before) / IDLE_SECONDS * 100
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in processes)
    what = f"{full_host.GPUS} GPUs with {full_host.VGPUS_EACH} vGPUs each, {IDLE_SECONDS:g} s"
    bench("idle agent, share of a core", share, CPU_LIMIT, what, " %")
    bench("idle agent, memory", pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20), MEMORY_LIMIT_MIB, what, " MiB")


def family(pid: int) -> list[int]:
    """Return a process and those that it has started: the one that samples the GPUs is a child of the agent."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_what_a_scrape_costs(tmp_path: Path, bench: Tell) -> None:
    """16 GPUs with 256 vGPUs each. The text is made with each sample, once; a scrape sends it."""
    host = open_sim_host(tmp_path, text=LIVELY)
    host_of(host, None).create_vm("a", profile="L40S-4Q")
    usage, snapshot = read_usage(host.ports).data, observe(host.ports, SCOPE)
    gpus = tuple(replace(usage.gpus[0], address=f"0000:{number:02x}:00.0") for number in range(16))
    vgpus = tuple(
        replace(usage.vgpus[0], vm=f"vdi-{number:04}", vm_uuid=str(number), gpu=gpus[number // 256].address)
        for number in range(16 * 256)
    )
    state = HostState(
        version="1",
        usage=replace(usage, gpus=gpus, vgpus=vgpus),
        snapshot=snapshot,
        profiles=(),
        counts=EventLog(host.ports.clock).counts.read(),
    )
    cpu = []
    for _ in range(runs(3, 9)):
        begin = time.process_time()
        text = render_metrics(state)
        cpu.append(1000 * (time.process_time() - begin))
    samples = sum(not line.startswith(b"#") for line in text.splitlines())
    bench(
        "metrics of 4,096 vGPUs, made with each sample", min(cpu), 15_000 * CPU_LIMIT / 100, f"{samples} series", " ms"
    )
    server = MetricsServer(MetricsSpec(f"127.0.0.1:{free_port()}"), lambda: text)
    cpu = []

    async def scrape() -> None:
        serving = asyncio.create_task(server.serve())
        while not server.server.started:
            await asyncio.sleep(0.01)
        for _ in range(runs(3, 9)):
            begin = time.process_time()
            reader, writer = await asyncio.open_connection(*server.socket.getsockname())
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert len(await reader.read(-1)) > len(text)
            cpu.append(1000 * (time.process_time() - begin))
            writer.close()
        await server.close(serving)

    asyncio.run(scrape())
    bench("scrape of 4,096 vGPUs, with its reader", min(cpu), SCRAPE_LIMIT_MS, f"{len(text) >> 20} MiB", " ms")
