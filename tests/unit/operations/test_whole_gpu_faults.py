# SPDX-License-Identifier: Apache-2.0
"""A VM with several whole GPUs: every call fails once, fails for good, or is the last one of a killed process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.faults import CHANGING, Trial
from tests.hosts import SimulatedHost, context, create, delete, open_sim_host, picture, request, run_reconcile, start
from tests.unit.operations.test_faults import spawn
from vgpuctl.operations.attach import attach, detach
from vgpuctl.ports.host import Host

__all__ = ["spawn"]
TEXT = """version: 1
gpus:
  - {model: H100, driver: vfio-pci, numa_node: 0, count: 2}
  - {model: RTX 4090, numa_node: 1}
"""
GPUS = ("0000:3b:00.0", "0000:3f:00.0")
ACTS = ["create", "delete", "attach", "detach"]


def whole(count: int) -> object:
    return request(name="vm", mode="passthrough", gpus=count, image=None)


def prepared(directory: Path, act: str) -> SimulatedHost:
    """Return a host with the VM that the act needs."""
    host = open_sim_host(directory, text=TEXT)
    if act != "create":
        create(host.ports, whole(1 if act == "attach" else 2), start=act == "delete")  # type: ignore[arg-type]
    return host.again()


def do(ports: Host, act: str) -> object:
    """Run the act."""
    if act == "create":
        return create(ports, whole(2))  # type: ignore[arg-type]
    if act == "delete":
        return delete(ports, "vm")
    if act == "attach":
        return attach(ports, context(), whole(1))  # type: ignore[arg-type]
    return detach(ports, context(wait_seconds=5), "vm", gpus=GPUS[:1])


def agrees(host: SimulatedHost, where: str) -> None:
    """Check that record, definition and claims agree, and that a VM that is there starts with what it claims."""
    assert not run_reconcile(host.ports, dry_run=True).data.findings, where
    now = picture(host)
    if not now.domains:
        assert not now.claims, where
        return
    if not now.running:
        start(host.ports, "vm")
        now = picture(host)
    (held,) = now.running.values()
    assert set(held) == set(now.claims), where
    assert set(held) <= set(GPUS), where


def trial_of(directory: Path, act: str) -> Trial:
    return Trial(directory, partial(prepared, act=act), partial(do, act=act), agrees)


@pytest.mark.parametrize("act", ACTS)
def test_whatever_call_fails_it_is_undone_or_reconcile_makes_it_whole(tmp_path: Path, act: str) -> None:
    trial = trial_of(tmp_path, act)
    calls = trial.calls()
    assert len(set(calls) & CHANGING) >= 3
    assert trial.failures(calls) >= 2


@pytest.mark.parametrize("act", ACTS)
def test_whatever_call_a_process_dies_in_reconcile_makes_it_whole(tmp_path: Path, act: str, spawn) -> None:
    trial = trial_of(tmp_path, act)
    assert trial.deaths(trial.calls(), spawn) >= 1
