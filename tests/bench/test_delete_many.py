"""delete-vm of 50 VMs on a host with 64 GPUs and 500 VMs, against one list-vms there: a ratio of CPU times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.bench.conftest import Tell
from tests.bench.paired import FULL, environment
from tests.bench.test_many_vms import children_seconds, in_a_process, in_this_process

GPUS, VMS, DELETED = (64, 500, 50) if FULL else (16, 60, 20)
RATIO_LIMIT = 5.0
SCENARIO = f"""version: 1
title: {GPUS} GPUs with 32 VFs each
kernel: 6.8.0-45-generic
storage:
  filesystem_gib: 1000000
  pools: [{{name: default}}]
gpus: [{{model: L40S, count: {GPUS}, profiles: [L40S-4Q]}}]
"""


def test_deleting_many_costs_few_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: Tell) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "big.yaml").write_text(SCENARIO)
    host = f"sim:{tmp_path / 'big.yaml'}"
    env = environment(tmp_path / "cache", XDG_STATE_HOME=os.environ["XDG_STATE_HOME"])
    in_this_process(["--host", host, "create-vm", "vdi-{}", "--count", str(VMS), "--profile", "L40S-4Q"])
    in_a_process(["--host", host, "list-vms"], env)

    def cpu_seconds(*words: str) -> float:
        before = children_seconds()
        in_a_process(["--host", host, *words], env)
        return children_seconds() - before

    listing = cpu_seconds("list-vms")
    deleting = cpu_seconds("delete-vm", f"vdi-{{1..{DELETED}}}", "--yes")
    bench(
        f"delete {DELETED} of {VMS} VMs on {GPUS} GPUs",
        deleting / listing,
        RATIO_LIMIT,
        f"CPU of delete-vm {deleting:.2f} s against one list-vms {listing:.2f} s",
    )
