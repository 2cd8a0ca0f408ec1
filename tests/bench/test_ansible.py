# SPDX-License-Identifier: Apache-2.0
"""A task against the command that it runs: what Ansible's module adds."""

from __future__ import annotations

import time
from pathlib import Path

from tests.ansible.plays import Site, Task
from tests.bench.conftest import Tell
from tests.bench.paired import Pair, paired, runs

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


def test_a_hundred_desktops_in_one_task_cost_what_the_command_costs(bench: Tell, tmp_path: Path) -> None:
    scenario = tmp_path / "host.yaml"
    scenario.write_text(SCENARIO)
    site = Site(tmp_path, {"gpu-1": str(scenario)})
    words = {"name": "vdi-{:03}", "count": 100, "profile": "A16-1Q"}

    def by_task() -> float:
        command(site, "sim", "reset")
        return took(site, {"vgpuctl.vgpuctl.vm": words})

    def by_command() -> float:
        command(site, "sim", "reset")
        return command(site, "create-vm", "vdi-{:03}", "--count", "100", "--profile", "A16-1Q")

    pair: Pair = paired(by_task, by_command, runs(1, 7))
    bench("100 desktops in one Ansible task", pair.ratio, HUNDRED_LIMIT, f"create-vm --count 100: {pair.medians()}")
    assert len(site.vgpuctl("gpu-1", "list-vms")["data"]) == 100
    with_empty = paired(by_task, lambda: by_command() + took(site, EMPTY), runs(1, 7))
    bench(
        "100 desktops in one Ansible task, beside an empty one",
        with_empty.ratio,
        HUNDRED_LIMIT,
        f"create-vm --count 100 and ping: {with_empty.medians()}",
    )
