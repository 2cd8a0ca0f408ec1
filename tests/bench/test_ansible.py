# SPDX-License-Identifier: Apache-2.0
"""A task against the command that it runs: what Ansible's module adds.

The simulated kernel takes no time to make a vGPU and its libvirt none to start a VM: a hundred of them take little more
than Ansible's own start. So they are made beside an empty task as well, and with a driver's time (`slow_driver`).
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
    """Return the seconds of a play, which must succeed."""
    begun = time.perf_counter()
    ran = site.play(*tasks)
    seconds = time.perf_counter() - begun
    assert ran.status == 0, ran.output
    return seconds


def command(site: Site, *words: str) -> float:
    """Return the seconds of a command of vgpuctl's, which must succeed."""
    begun = time.perf_counter()
    document = site.vgpuctl("gpu-1", *words)
    assert document["ok"], document
    return time.perf_counter() - begun


def test_a_task_that_changes_nothing_costs_a_look_and_an_empty_module(bench: Tell, tmp_path: Path) -> None:
    site = Site(tmp_path, {"gpu-1": "a100-40"})
    vm: Task = {"vgpuctl.vgpuctl.vm": {"name": "vdi-001", "profile": "A100-4C"}}
    took(site, vm)
    times = runs(2, 15)
    pair = paired(lambda: took(site, vm), lambda: took(site, EMPTY) + command(site, "show-vm", "vdi-001"), times)
    bench("an Ansible task that changes nothing", pair.ratio, NOTHING_LIMIT, f"show-vm and ping: {pair.medians()}")


def by_task(site: Site) -> float:
    """Return the seconds of a task that makes a hundred VMs on a host as new."""
    command(site, "sim", "reset")
    return took(site, {"vgpuctl.vgpuctl.vm": {"name": "vdi-{:03}", "count": 100, "profile": "A16-1Q"}})


def by_command(site: Site) -> float:
    """Return the seconds of the command that makes them."""
    command(site, "sim", "reset")
    return command(site, "create-vm", "vdi-{:03}", "--count", "100", "--profile", "A16-1Q")


def a16s(directory: Path, program: Path = PROGRAMS / "vgpuctl") -> Site:
    """Return a host with room for them."""
    scenario = directory / "host.yaml"
    scenario.write_text(SCENARIO)
    return Site(directory, {"gpu-1": str(scenario)}, program=program)


def test_a_hundred_desktops_in_one_task_cost_what_the_command_costs(bench: Tell, tmp_path: Path) -> None:
    site = a16s(tmp_path)
    pair: Pair = paired(lambda: by_task(site), lambda: by_command(site), runs(1, 7))
    bench("100 desktops in one Ansible task", pair.ratio, HUNDRED_LIMIT, f"create-vm --count 100: {pair.medians()}")
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 100
    with_empty = paired(lambda: by_task(site), lambda: by_command(site) + took(site, EMPTY), runs(1, 7))
    bench(
        "100 desktops in one Ansible task, beside an empty one",
        with_empty.ratio,
        HUNDRED_LIMIT,
        f"create-vm --count 100 and ping: {with_empty.medians()}",
    )


def test_a_hundred_desktops_by_task_and_command_with_driver_time(bench: Tell, tmp_path: Path) -> None:
    program = tmp_path / "vgpuctl"
    program.write_text(f"#!{sys.executable}\nimport sys\nfrom tests.bench.slow_driver import main\nsys.exit(main())\n")
    program.chmod(0o755)
    site = a16s(tmp_path, program)
    pair = paired(lambda: by_task(site), lambda: by_command(site), runs(1, 7))
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 100
    name = f"100 desktops in one Ansible task, a driver's {DRIVER_SECONDS * 1000:.0f} ms for each, 4 at a time"
    bench(name, pair.ratio, HUNDRED_LIMIT, f"create-vm --count 100: {pair.medians()}")
    assert min(pair.theirs) > 100 * DRIVER_SECONDS / 4, "each vGPU was made by the slow driver"
