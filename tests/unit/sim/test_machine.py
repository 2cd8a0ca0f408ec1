# SPDX-License-Identifier: Apache-2.0
"""The hardware made from a compiled scenario."""

from __future__ import annotations

import json

import pytest

from vgpuctl.model.names import is_pci_address
from vgpuctl.sim.host import SCENARIOS, _read_source
from vgpuctl.sim.machine import build_machine, version_number
from vgpuctl.sim.scenario import compile_scenario


@pytest.mark.parametrize("name", SCENARIOS)
def test_addresses_paths_and_groups_are_unique(name: str) -> None:
    compiled = compile_scenario(_read_source(name)[0], name)
    machine = build_machine(json.loads(json.dumps(compiled)))
    of_gpus = [function for gpu in machine.gpus.values() for function in gpu.functions]
    assert len({function.address for function in of_gpus}) == len(of_gpus)
    everything = list(machine.functions.values())
    assert {f.address for f in of_gpus} <= machine.functions.keys()
    assert len({function.path for function in everything}) == len(everything)
    virtual = [function.group for function in everything if function.kind == "vf"]
    assert len(set(virtual)) == len(virtual)
    names = [f.serial for f in everything if f.kind in ("pf", "vf", "extra", "nvswitch")]
    groups = [f.group for f in everything if f.kind in ("port", "nvswitch")]
    assert len(set(groups)) == len(groups)
    assert len(set(names)) == len(names)
    assert all(is_pci_address(f.address) for f in everything if f.kind != "parent")


def test_versions() -> None:
    assert version_number("10.0.0") == 10_000_000
    assert version_number("8.2") == 8_002_000
    machine = build_machine(compile_scenario('version: 1\nkernel: "5.14.0-427.el9"\nnvidia: {driver: "535"}\n', "x"))
    assert (machine.kernel, machine.driver_major) == ((5, 14), 535)
