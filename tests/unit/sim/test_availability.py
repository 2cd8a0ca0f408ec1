# SPDX-License-Identifier: Apache-2.0
"""The drivers' rules of how many fit."""

from __future__ import annotations

import pytest

from vgpuctl.sim.availability import count_available, count_available_on
from vgpuctl.sim.machine import Machine, build_machine
from vgpuctl.sim.scenario import compile_scenario
from vgpuctl.sim.state import State


def host(text: str) -> State:
    machine: Machine = build_machine(compile_scenario(f"version: 1\n{text}", "test.yaml"))
    return State(machine)


@pytest.mark.parametrize(("key", "most"), [("nvidia-468", 10), ("nvidia-473", 1), ("nvidia-474", 0)])
def test_an_empty_card(key: str, most: int) -> None:
    state = host("gpus: [{model: A100}]\n")
    (gpu,) = state.machine.gpus.values()
    assert count_available(state, gpu, gpu.types[key]) == most
    assert count_available_on(state, gpu, gpu.vfs[0], gpu.types[key]) == min(1, most)


@pytest.mark.parametrize(("driver", "left"), [("550.1", 7), ("535.1", 0)])
def test_series_mix_on_new_drivers(driver: str, left: int) -> None:
    state = host(f'nvidia: {{driver: "{driver}"}}\ngpus: [{{model: A16, backend: mdev-vf}}]\n')
    (gpu,) = state.machine.gpus.values()
    state.apply([["mdev", "u", gpu.vfs[0].address, "nvidia-712", 1]])
    assert count_available(state, gpu, gpu.types["nvidia-710"]) == left
    assert count_available(state, gpu, gpu.types["nvidia-712"]) == 7
    assert count_available(state, gpu, gpu.types["nvidia-713"]) == 0


def test_never_more_than_the_driver_has_slots_for() -> None:
    state = host(
        "gpus: [{model: X, backend: vendor-vf, profiles: [{name: X-1Q, id: 5, framebuffer_mib: 1, max: 99}]}]\n"
    )
    (gpu,) = state.machine.gpus.values()
    assert count_available(state, gpu, gpu.types["nvidia-5"]) == 32
