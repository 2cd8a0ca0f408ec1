# SPDX-License-Identifier: Apache-2.0
"""Binding functions to drivers: driver_override, bind, unbind, drivers_probe."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from vgpuctl.model.names import normalize_pci
from vgpuctl.sim.journal import JournalRecord
from vgpuctl.sim.machine import SimFunction, SimGpu
from vgpuctl.sim.refusals import KernelRefusal, WriteWouldBlock, raise_refusal
from vgpuctl.sim.scenario_gpu import GENERIC_DRIVERS
from vgpuctl.sim.sriov import vf_carriers
from vgpuctl.sim.state import State
from vgpuctl.sim.tree import DirectoryNode, FileNode, LinkNode, Node


def nodes(state: State, function: SimFunction) -> dict[str, Node]:
    """Return the files and links that driver binding adds to a function's directory."""
    address = function.address
    children: dict[str, Node] = {
        "driver_override": FileNode(
            show=lambda: f"{state.driver_overrides.get(address, '(null)')}\n",
            store=lambda written: [["override", address, written.strip()]],
        )
    }
    driver = state.driver(function)
    if driver is not None:
        children["driver"] = LinkNode(f"/sys/bus/pci/drivers/{driver}")
    return children


def driver_directories(state: State) -> Mapping[str, Node]:
    """Return /sys/bus/pci/drivers."""
    own_drivers = {function.driver for function in state.machine.functions.values() if ":" in function.address}
    drivers = sorted({name for name in own_drivers if name} | set(GENERIC_DRIVERS))
    return {name: DirectoryNode(partial(_driver_nodes, state, name)) for name in drivers}


def probe_node(state: State) -> FileNode:
    """Return /sys/bus/pci/drivers_probe."""
    return FileNode(store=partial(_write_probe, state))


def dependent_carriers(state: State, gpu: SimGpu, function: SimFunction) -> tuple[str, ...]:
    """Return every carrier that disappears when a function is unbound, the function itself first."""
    own_carriers = (function.address, *(mdev.uuid for mdev in state.mdevs_on(function.address)))
    return own_carriers + (vf_carriers(state, gpu) if function.kind == "pf" else ())


def unbind_function(state: State, function: SimFunction) -> list[JournalRecord]:
    """Return the records that unbind a function from its driver.

    Raises:
        WouldPark: a running VM holds the function or something on it.
    """
    records: list[JournalRecord] = [["driver", function.address, None]]
    held = state.used_carriers(dependent_carriers(state, state.machine.gpus[function.gpu], function))
    if held:
        raise WriteWouldBlock(held, records)
    return records


def matches_driver(state: State, driver: str, function: SimFunction) -> bool:
    """Say whether a driver matches a function: by driver_override if it is set, else by the PCI ids."""
    override = state.driver_overrides.get(function.address)
    return driver == override if override else driver == function.driver


def _driver_nodes(state: State, name: str) -> Mapping[str, Node]:
    children: dict[str, Node] = {
        function.address: LinkNode(function.path)
        for function in state.machine.functions.values()
        if state.exists(function.address) and state.driver(function) == name
    }
    children["bind"] = FileNode(store=partial(_write_bind, state, name))
    children["unbind"] = FileNode(store=partial(_write_unbind, state, name))
    return children


def _find_function(state: State, written: str) -> SimFunction:
    address = normalize_pci(written)
    if address is None or not state.exists(address):
        raise_refusal(KernelRefusal.BIND_NO_DEVICE)
    return state.machine.functions[address]


def _write_bind(state: State, name: str, written: str) -> list[JournalRecord]:
    function = _find_function(state, written)
    if not matches_driver(state, name, function):
        raise_refusal(KernelRefusal.BIND_NO_DEVICE)
    if state.driver(function) is not None:
        raise_refusal(KernelRefusal.BIND_BUSY)
    _check_vfio_bind(state, name, function)
    return [["driver", function.address, name]]


def _write_unbind(state: State, name: str, written: str) -> list[JournalRecord]:
    function = _find_function(state, written)
    if state.driver(function) != name:
        raise_refusal(KernelRefusal.BIND_NO_DEVICE)
    return unbind_function(state, function)


def _write_probe(state: State, written: str) -> list[JournalRecord]:
    function = _find_function(state, written)
    name = state.driver_overrides.get(function.address) or function.driver
    if state.driver(function) is not None or name is None or name == "none":
        return []
    _check_vfio_bind(state, name, function)
    return [["driver", function.address, name]]


def _check_vfio_bind(state: State, name: str, function: SimFunction) -> None:
    backend = state.machine.gpus[function.gpu].backend
    if name == "vfio-pci" and backend == "vendor-vf" and function.kind == "vf":
        raise_refusal(KernelRefusal.BIND_VENDOR_VF)
