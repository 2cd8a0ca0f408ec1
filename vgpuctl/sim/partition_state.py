# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a simulated host are partitioned now: MIG, GPU instances, mixed sizes, and which vGPU is where.

A part of `State`: each record "partition" names one of the `_on_…` methods here, and `records` makes them again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vgpuctl.model.partition import GpuInstance, Span
from vgpuctl.sim.journal import Record


@dataclass(slots=True)
class Partitions:
    """`modes`: MIG now, and after the GPU's next reset. `places`: a vGPU's placement id and GPU instance.

    `schedulers`: those that NVML set for GPU instances.
    """

    modes: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    instances: dict[str, dict[int, GpuInstance]] = field(default_factory=dict)
    mixed: set[str] = field(default_factory=set)
    places: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)
    schedulers: dict[str, dict[int, list[Any]]] = field(default_factory=dict)

    def enabled(self, address: str) -> bool:
        """Say whether MIG is on."""
        return self.modes.get(address, (False, False))[0]

    def on(self, address: str) -> tuple[GpuInstance, ...]:
        """Return a GPU's instances."""
        return tuple(self.instances.get(address, {}).values())

    def placement(self, carrier: str) -> int | None:
        """Return where on a GPU of mixed sizes a vGPU begins."""
        return self.places.get(carrier, (None, None))[0]

    def instance(self, carrier: str) -> int | None:
        """Return the GPU instance that a vGPU is in."""
        return self.places.get(carrier, (None, None))[1]

    def boot(self, kept: set[str]) -> None:
        """Forget what a reload of the driver takes; MIG of the GPUs in `kept` is then as it was to be."""
        self.modes = {a: (pending, pending) for a, (_, pending) in self.modes.items() if a in kept}
        for table in (self.instances, self.mixed, self.places, self.schedulers):
            table.clear()

    def lose(self, address: str) -> None:
        """Forget what a GPU loses when the driver lets go of it: all but MIG's mode."""
        self.instances.pop(address, None)
        self.mixed.discard(address)
        self.schedulers.pop(address, None)

    # ------------------------------------------------------------------ replay

    def apply(self, name: str, *values: Any) -> None:
        """Carry out one record."""
        getattr(self, f"_on_{name}")(*values)

    def _on_mig(self, address: str, enabled: bool, pending: bool) -> None:
        self.modes[address] = (enabled, pending)

    def _on_make(self, address: str, gi_id: int, profile_id: int, start: int, size: int) -> None:
        self.instances.setdefault(address, {})[gi_id] = GpuInstance(gi_id, profile_id, Span(start, size))

    def _on_destroy(self, address: str, gi_id: int) -> None:
        for kept in (self.instances, self.schedulers):
            kept.get(address, {}).pop(gi_id, None)
            if not kept.get(address):
                kept.pop(address, None)

    def _on_mixed(self, address: str, enabled: bool) -> None:
        if enabled:
            self.mixed.add(address)
        else:
            self.mixed.discard(address)

    def _on_place(self, carrier: str, placement_id: int | None, gi_id: int | None) -> None:
        self.places[carrier] = (placement_id, gi_id)

    def _on_scheduler(self, address: str, gi_id: int, *values: Any) -> None:
        self.schedulers.setdefault(address, {})[gi_id] = list(values)

    def _on_lose(self, address: str) -> None:
        self.lose(address)

    def records(self) -> list[Record]:
        """Return the records of the partitions; those of vGPUs' places come last."""
        made: list[Record] = [["mig", address, *both] for address, both in self.modes.items()]
        for address, found in self.instances.items():
            made += [["make", address, i.gi_id, i.profile_id, i.span.start, i.span.size] for i in found.values()]
        for address, own in self.schedulers.items():
            made += [["scheduler", address, gi_id, *values] for gi_id, values in own.items()]
        made += [["mixed", address, True] for address in sorted(self.mixed)]
        made += [["place", carrier, *both] for carrier, both in self.places.items()]
        return [["partition", *record] for record in made]
