# SPDX-License-Identifier: Apache-2.0
"""What a host that is to get a VM from another one has, and the two of them as the checks of a move see them."""

from __future__ import annotations

from collections.abc import Mapping

from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.move_facts import MoveFacts, parse_move_facts
from vgpuctl.model.numbers import parse_version
from vgpuctl.model.port_values import HypervisorCapabilities, NetworkInfo, PoolInfo
from vgpuctl.model.results.migration import MigrationHostResult, MigrationOfferResult, MigrationReasonResult
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.operations.plans.guest_devices import BridgeInfo, HostTopology
from vgpuctl.value import EMPTY_MAPPING, Value


class TargetFacts(Value):
    """Facts of the host to which a VM is to move.

    `networks`: libvirt's networks that the VM needs, None for one that is missing. `interfaces`: the host's network
    interfaces, None where they cannot be listed. `bridges`: those that a network card with a VLAN is on.
    `memory_mib`, `free_memory_mib`: all of the host's, and what is left, None where unknown. `pools`: the storage pools
    that its disks are in, by name. `files`: whether there is a file of each path that the VM needs; a path of which
    that is not known is left out. `has_ecc`: by GPU, where it is known. `pair_limits`: by carrier and GPU, NVML's words
    for why the GPU does not take that vGPU while its VM runs.
    """

    host: MigrationHostResult
    snapshot: Snapshot
    capabilities: HypervisorCapabilities
    networks: Mapping[str, NetworkInfo | None] = EMPTY_MAPPING
    interfaces: frozenset[str] | None = None
    bridges: Mapping[str, BridgeInfo | None] = EMPTY_MAPPING
    topology: HostTopology = HostTopology()
    memory_mib: int | None = None
    free_memory_mib: int | None = None
    pools: Mapping[str, PoolInfo | None] = EMPTY_MAPPING
    files: Mapping[str, bool] = EMPTY_MAPPING
    has_ecc: Mapping[str, bool] = EMPTY_MAPPING
    pair_limits: Mapping[tuple[str, str], tuple[str, ...]] = EMPTY_MAPPING


class Pair(Value):
    """A VM that is offered, and the facts of the target. `domain`, `vm`: what the offered definition says."""

    offer: MigrationOfferResult
    facts: TargetFacts
    domain: MoveFacts
    vm: Vm
    copies_disks: bool
    offline: bool
    needs_tls: bool

    @property
    def source(self) -> str:
        """The name of the source."""
        return self.offer.host.name

    @property
    def target(self) -> str:
        """The name of the target."""
        return self.facts.host.name

    @property
    def has_older_qemu(self) -> bool:
        """Whether the target's QEMU is older than the one in which the VM runs."""
        old, new = parse_version(self.offer.host.qemu_version), parse_version(self.facts.host.qemu_version)
        return not self.offline and old is not None and new is not None and new[:2] < old[:2]

    @property
    def lacks_machine(self) -> bool:
        """Whether the target's QEMU is older than the VM's machine type."""
        needed, qemu = parse_version(self.domain.machine_version), parse_version(self.facts.host.qemu_version)
        return needed is not None and qemu is not None and qemu[:2] < needed

    def here(self, what: str, hint: str | None) -> MigrationReasonResult:
        """Return what the source has to do with."""
        return MigrationReasonResult(self.source, what, hint)

    def there(self, what: str, hint: str | None) -> MigrationReasonResult:
        """Return what the target has to do with."""
        return MigrationReasonResult(self.target, what, hint)

    def on_source(self, hint: str) -> str:
        """Return a hint of a reason of the target that says that it is to be done on the source."""
        return f"on {self.source}: {hint}"

    def on_target(self, hint: str) -> str:
        """Return a hint that says that it is to be done on the target: its reader is mostly at the source."""
        return f"on {self.target}: {hint}"


def pair_of(
    offer: MigrationOfferResult, facts: TargetFacts, *, copies_disks: bool, offline: bool, needs_tls: bool
) -> Pair:
    """Return both together.

    Raises:
        LibvirtFailed: the definition that the source sent cannot be read.
    """
    return Pair(
        offer=offer,
        facts=facts,
        domain=parse_move_facts(offer.definition),
        vm=parse_domain(offer.definition, VmState.STOPPED, offer.host.machine_id),
        copies_disks=copies_disks,
        offline=offline,
        needs_tls=needs_tls,
    )


def copied_file(disk_pool: PoolInfo | None, volume: str | None) -> str | None:
    """Return the path that a copied disk would get on the target; None where its pool has no directory."""
    return None if disk_pool is None or disk_pool.path is None or not volume else f"{disk_pool.path}/{volume}"
