# SPDX-License-Identifier: Apache-2.0
"""Binding functions to drivers: driver_override, bind, unbind, drivers_probe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from vgpuctl.model.address import normal_pci
from vgpuctl.sim.journal import Record
from vgpuctl.sim.machine import SimFunction, SimGpu
from vgpuctl.sim.rules import Refusal, WouldPark, refuse
from vgpuctl.sim.sriov import below
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import Dir, File, Link, Node

ALWAYS_THERE = ("vfio-pci", "pci-stub")


def nodes(state: State, function: SimFunction) -> dict[str, Node]:
    """Return what binding adds to a function's directory."""
    address = function.address
    made: dict[str, Node] = {
        "driver_override": File(
            show=lambda: f"{state.overrides.get(address, '(null)')}\n",
            store=lambda written: [["override", address, written.strip()]],
        )
    }
    driver = state.driver(function)
    if driver is not None:
        made["driver"] = Link(f"/sys/bus/pci/drivers/{driver}")
    return made


def drivers(state: State) -> Mapping[str, Node]:
    """Return /sys/bus/pci/drivers."""
    names = {function.driver for function in state.machine.functions.values() if ":" in function.address}
    known = sorted({name for name in names if name} | set(ALWAYS_THERE))
    return {name: Dir(partial(_driver, state, name)) for name in known}


def probe_node(state: State) -> File:
    """Return /sys/bus/pci/drivers_probe."""
    return File(store=partial(_probe, state))


def losing(state: State, gpu: SimGpu, function: SimFunction) -> tuple[str, ...]:
    """Return every carrier that a function's unbinding takes away, itself first."""
    own = (function.address, *(mdev.uuid for mdev in state.mdevs_on(function.address)))
    return own + (below(state, gpu) if function.kind == "pf" else ())


def unbind(state: State, function: SimFunction) -> list[Record]:
    """Return the records of unbinding a function from its driver.

    Raises:
        WouldPark: a running VM holds the function or something on it.
    """
    done: list[Record] = [["driver", function.address, None]]
    held = state.used_by(losing(state, state.machine.gpus[function.gpu], function))
    if held:
        raise WouldPark(held, done)
    return done


def takes(state: State, driver: str, function: SimFunction) -> bool:
    """Say whether a driver matches a function: by driver_override, else by its ids."""
    override = state.overrides.get(function.address)
    return driver == override if override else driver == function.driver


def _driver(state: State, name: str) -> Mapping[str, Node]:
    made: dict[str, Node] = {
        function.address: Link(function.path)
        for function in state.machine.functions.values()
        if state.exists(function.address) and state.driver(function) == name
    }
    made["bind"] = File(store=partial(_bind, state, name))
    made["unbind"] = File(store=partial(_unbind, state, name))
    return made


def _named(state: State, written: str) -> SimFunction:
    address = normal_pci(written)
    if address is None or not state.exists(address):
        refuse(Refusal.BIND_NO_DEVICE)
    return state.machine.functions[address]


def _bind(state: State, name: str, written: str) -> list[Record]:
    function = _named(state, written)
    if not takes(state, name, function):
        refuse(Refusal.BIND_NO_DEVICE)
    if state.driver(function) is not None:
        refuse(Refusal.BIND_BUSY)
    _check_vendor(state, name, function)
    return [["driver", function.address, name]]


def _unbind(state: State, name: str, written: str) -> list[Record]:
    function = _named(state, written)
    if state.driver(function) != name:
        refuse(Refusal.BIND_NO_DEVICE)
    return unbind(state, function)


def _probe(state: State, written: str) -> list[Record]:
    function = _named(state, written)
    name = state.overrides.get(function.address) or function.driver
    if state.driver(function) is not None or name is None or name == "none":
        return []
    _check_vendor(state, name, function)
    return [["driver", function.address, name]]


def _check_vendor(state: State, name: str, function: SimFunction) -> None:
    backend = state.machine.gpus[function.gpu].backend
    if name == "vfio-pci" and backend == "vendor-vf" and function.kind == "vf":
        refuse(Refusal.BIND_VENDOR_VF)
