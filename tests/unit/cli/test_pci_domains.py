# SPDX-License-Identifier: Apache-2.0
"""PCI domains of more than four digits, as under Intel's VMD, work with every kind of card and every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran
from vgpuctl.sim.scenario_gpu import load_models

MODELS = tuple(name for name in load_models() if name != "mtty")
DOMAINS = ("10000", "fffff", "10000000")


@pytest.mark.parametrize("model", MODELS)
def test_every_kind_of_card_has_a_vm(vgpuctl: Callable[..., Ran], tmp_path: Path, model: str) -> None:
    domain = DOMAINS[MODELS.index(model) % len(DOMAINS)]
    address = f"{domain}:01:00.0"
    scenario = tmp_path / "wide.yaml"
    scenario.write_text(f'version: 1\ngpus:\n  - {{model: {model}, address: "{address}"}}\n')

    def run(*words: str, status: tuple[int, ...] = (0,)) -> Ran:
        ran = vgpuctl("--host", f"sim:{scenario}", *words)
        assert ran.status in status, (words, ran.out, ran.err)
        return ran

    (gpu,) = run("--json", "list-gpus").document["data"]
    assert gpu["address"] == address
    profiles = run("--json", "list-profiles").document["data"]
    ways = [("--profile", profile["profile"], "--gpu", f"{domain.upper()}:1:0.0") for profile in profiles[:1]]
    ways += [("--mode", mode, "--gpu", address) for mode in ("sriov", "passthrough")]
    results = (run("--json", "create-vm", "web", *way, status=(0, 3, 4, 6)) for way in ways)
    made = next(result for result in results if result.status == 0)
    (vgpu,) = made.document["data"]["vm"]["vgpus"] if "vm" in made.document["data"] else made.document["data"]["vgpus"]
    assert vgpu["gpu"] == address
    assert vgpu["carrier"].startswith(f"{domain}:") or "-" in vgpu["carrier"]
    for words in (("list-vgpus",), ("show-gpu", address), ("show-vm", "web")):
        assert address in run(*words).out
    assert "create-vm web" in run("log", "--gpu", address).out
    run("doctor", status=(0, 1, 7))
    run("stop-vm", "web", "--force", "--yes")
    run("start-vm", "web")
    run("apply", "--set", f"gpus[{address}].cordoned=true", "--yes", status=(0, 3))
    run("delete-vm", "web", "--yes")
    assert json.loads(run("--json", "list-vms").out)["data"] == []
