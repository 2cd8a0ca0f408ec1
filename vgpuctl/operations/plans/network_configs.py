# SPDX-License-Identifier: Apache-2.0
"""What the network configurations of new VMs leave in doubt: cards that they do not fit, and addresses in use.

The record of a VM keeps its static addresses. VMs that an earlier version created have none there, and nothing is
guessed about those.
"""

from __future__ import annotations

from collections.abc import Iterable

from vgpuctl.config.vm_request import VmRequest
from vgpuctl.model.snapshot import Snapshot
from vgpuctl.model.vm import Vm
from vgpuctl.operations.plans.vm_diff import ADDRESSES_FIELD
from vgpuctl.operations.plans.windows import WINDOWS_11


def check_network_configs(snapshot: Snapshot, requests: Iterable[VmRequest]) -> tuple[str, ...]:
    """Return warnings about the files for cloud-init of new VMs.

    Raises:
        InvalidInput: one names a MAC address that no card of its VM has.
    """
    from vgpuctl.config import network_config

    users = {address: vm for vm in snapshot.vms for address in _recorded_addresses(vm)}
    warnings: dict[str, None] = {}
    for request in requests:
        seed = request.seed
        if seed is None:
            continue
        if request.os == WINDOWS_11:
            warnings[f"{', '.join(seed.paths)}: Windows applies it only if cloudbase-init is in the image"] = None
        if seed.network_config is not None:
            warnings |= dict.fromkeys(network_config.match_cards(seed.network_config, request.nics))
        for address in request_addresses(request):
            if address in users:
                name = users[address].name
                warnings[f"VM {name} has the static address {address} too: the two cannot be on one network"] = None
    return tuple(warnings)


def request_addresses(request: VmRequest) -> tuple[str, ...]:
    """Return the static addresses of a request, without prefix lengths."""
    from vgpuctl.config import network_config

    seed = request.seed
    if seed is None or seed.network_config is None:
        return ()
    return tuple(address.partition("/")[0].lower() for address in network_config.static_addresses(seed.network_config))


def _recorded_addresses(vm: Vm) -> tuple[str, ...]:
    addresses = vm.record.request_fields.get(ADDRESSES_FIELD) if vm.record is not None else None
    return tuple(str(address) for address in addresses) if isinstance(addresses, list) else ()
