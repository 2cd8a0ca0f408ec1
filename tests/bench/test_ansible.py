# SPDX-License-Identifier: Apache-2.0
"""Compares an Ansible task with the command that it runs, to show the time that Ansible's module adds.

The simulated kernel takes no time to create a vGPU, and the simulated libvirt takes none to start a VM. So a hundred
VMs take little more than the start of Ansible. Two more comparisons correct for this: one adds an empty task to the
command, and one makes each vGPU take a driver's time (`slow_driver`).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.ansible.plays import PROGRAMS, Site, Task
from tests.bench.conftest import Tell
from tests.bench.paired import Pair, paired, runs
from tests.bench.slow_driver import DRIVER_SECONDS

NOTHING_LIMIT, HUNDRED_LIMIT = 1.3, 1.2
EMPTY: Task = {"name": "empty", "ansible.builtin.ping": {}}
SCENARIO = "version: 1\ngpus: [{model: A16, count: 8}]\n"


def took(site: Site, *tasks: Task) -> float:
    """Return the seconds that a play takes. It must succeed."""
    started = time.perf_counter()
    play = site.play(*tasks)
    elapsed = time.perf_counter() - started
    assert play.status == 0, play.output
    return elapsed


def command(site: Site, *words: str) -> float:
    """Return the seconds that a vgpuctl command takes. It must succeed."""
    started = time.perf_counter()
    document = site.vgpuctl("gpu-1", *words)
    assert document["ok"], document
    return time.perf_counter() - started


def test_time_of_a_task_without_changes(bench: Tell, tmp_path: Path) -> None:
    site = Site(tmp_path, {"gpu-1": "a100-40"})
    vm: Task = {"vgpuctl.vgpuctl.vm": {"name": "vdi-001", "profile": "A100-4C"}}
    took(site, vm)
    times = runs(2, 15)
    pair = paired(lambda: took(site, vm), lambda: took(site, EMPTY) + command(site, "show-vm", "vdi-001"), times)
    bench("an Ansible task that changes nothing", pair.ratio, NOTHING_LIMIT, f"show-vm and ping: {pair.medians()}")


def by_task(site: Site) -> float:
    """Reset the host; return the seconds that a task takes to create a hundred VMs."""
    command(site, "sim", "reset")
    return took(site, {"vgpuctl.vgpuctl.vm": {"name": "vdi-{:03}", "count": 100, "profile": "A16-1Q"}})


def by_command(site: Site) -> float:
    """Reset the host; return the seconds that the command takes to create a hundred VMs."""
    command(site, "sim", "reset")
    return command(site, "create-vm", "vdi-{:03}", "--count", "100", "--profile", "A16-1Q")


def a16s(directory: Path, program: Path = PROGRAMS / "vgpuctl") -> Site:
    """Return a host with room for a hundred VMs."""
    scenario = directory / "host.yaml"
    scenario.write_text(SCENARIO)
    return Site(directory, {"gpu-1": str(scenario)}, program=program)


def test_100_desktops_by_task_and_by_command(bench: Tell, tmp_path: Path) -> None:
    site = a16s(tmp_path)
    pair: Pair = paired(lambda: by_task(site), lambda: by_command(site), runs(1, 7))
    bench("100 desktops in one Ansible task", pair.ratio, HUNDRED_LIMIT, f"create-vm --count 100: {pair.medians()}")
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 100
    with_empty_task = paired(lambda: by_task(site), lambda: by_command(site) + took(site, EMPTY), runs(1, 7))
    bench(
        "100 desktops in one Ansible task, beside an empty one",
        with_empty_task.ratio,
        HUNDRED_LIMIT,
        f"create-vm --count 100 and ping: {with_empty_task.medians()}",
    )


def test_100_desktops_by_task_and_by_command_with_a_slow_driver(bench: Tell, tmp_path: Path) -> None:
    program = tmp_path / "vgpuctl"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom tests.bench.slow_driver import main\nsys.exit(main())\n")
    program.chmod(0o755)
    site = a16s(tmp_path, program)
    pair = paired(lambda: by_task(site), lambda: by_command(site), runs(1, 7))
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 100
    name = f"100 desktops in one Ansible task, a driver's {DRIVER_SECONDS * 1000:.0f} ms for each, 4 at a time"
    bench(name, pair.ratio, HUNDRED_LIMIT, f"create-vm --count 100: {pair.medians()}")
    assert min(pair.theirs) > 100 * DRIVER_SECONDS / 4, "each vGPU was made by the slow driver"
