# SPDX-License-Identifier: Apache-2.0
"""With which hosts, and with what, VMs of an account may move: what host.yaml allows, for VMs that other hosts sign.

The definition of a VM that comes is run by root's libvirt. So it must be one that a host of `agent: allow: migrate_to`
has signed, and what it names of this host must be what the account's new VMs may have. The same holds for the place
that the target has made ready, by which the source sends a VM.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpuctl.agent.allowed_files import AllowedFiles
from vgpuctl.agent.allowed_values import check_params, not_allowed
from vgpuctl.config.allow_spec import AllowSpec
from vgpuctl.config.arguments import NONE
from vgpuctl.config.device_rules import parse_nic
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.errors import InvalidInput, NotAllowed
from vgpuctl.library.requests import read_spec_of_host
from vgpuctl.model.results.migration import MigrationOfferResult, MigrationPlaceResult
from vgpuctl.model.vm import Vm, VmState
from vgpuctl.operations.host_signature import find_signer

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host

MOVE_ARGUMENTS: Mapping[str, frozenset[str]] = {
    "migrate-out": frozenset({"place", "target_uri", "migrate_uri", "tls"}),
    "prepare-incoming": frozenset({"offer", "needs_tls"}),
}
"""Arguments that are checked here, by the call."""
_RULE = "agent.allow.migrate_to"
_KEY_HINT = (
    "on each of the two hosts, agent: {allow: {migrate_to: {NAME: {host_key: ...}}}} in host.yaml has the key of the "
    "other: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints it there"
)


def check_move(host: Host, allow: AllowSpec, call: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that a call of a move gets instead of those of an account; none for another call.

    Raises:
        NotAllowed: naming what, and the key of host.yaml. NotFound: a file that the VM needs is not here.
    """
    if call == "migrate-out":
        return _check_route(allow, arguments)
    if call == "prepare-incoming":
        _check_arrival(host, allow, arguments)
    return {}


def _check_route(allow: AllowSpec, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the URI and the address that host.yaml has for the named target, which must have signed the place."""
    name = str(arguments.get("target_uri"))
    target = allow.migrate_to.get(name)
    if target is None:
        known = ", ".join(allow.migrate_to) or "none"
        example = f"{name}: {{host_key: SHA256:...}}"
        raise not_allowed(f"{name} is no host that VMs may move to; host.yaml has: {known}", _RULE, example)
    if arguments.get("migrate_uri") is not None:
        raise NotAllowed("migrate_uri: only root says where memory is sent", hint="omit it", rule=_RULE)
    _refuse_unencrypted("tls", arguments.get("tls", True))
    place = arguments.get("place")
    if not isinstance(place, MigrationPlaceResult):
        raise InvalidInput("place: it is what the target's prepare-incoming returned")
    signer = find_signer(place, place.signature)
    if signer != target.fingerprint:
        text = f"the place for {place.name} is signed by {signer or 'nobody'}, and {name} has {target.fingerprint}"
        raise NotAllowed(text, hint=_KEY_HINT, rule=_RULE)
    address = None if target.address is None else f"tcp://{target.address}"
    return {"target_uri": target.uri(name), "migrate_uri": address}


def _check_arrival(host: Host, allow: AllowSpec, arguments: Mapping[str, Any]) -> None:
    """Refuse a VM that no host of host.yaml offers, or that names what the account's new VMs may not have."""
    offer = arguments.get("offer")
    if not isinstance(offer, MigrationOfferResult):
        raise InvalidInput("offer: it is what the source's offer-vm returned")
    signer = find_signer(offer, offer.signature)
    if signer is None or signer not in {target.fingerprint for target in allow.migrate_to.values()}:
        text = f"the offer of {offer.name} is signed by {signer or 'nobody'}, and no host in host.yaml has that key"
        raise NotAllowed(text, hint=_KEY_HINT, rule=_RULE)
    if not arguments.get("offline"):
        _refuse_unencrypted("needs_tls", arguments.get("needs_tls", True))
    vm = parse_domain(offer.definition, VmState.STOPPED, offer.host.machine_id)
    defaults = read_spec_of_host(host).defaults
    _check_networks(allow, vm, getattr(defaults, "networks", None) or ())
    mode = "vgpu" if vm.record is None else vm.record.requested("mode", str) or "vgpu"
    if mode not in allow.modes:
        raise not_allowed(f"the mode {mode} is not allowed", "agent.allow.modes", mode)
    check_params(allow, _params_of(vm))
    pools = (*allow.pools, getattr(defaults, "storage_pool", None))
    _check_files(AllowedFiles(host, allow), pools, offer, copies_disks=bool(arguments.get("copies_disks")))


def _refuse_unencrypted(argument: str, value: object) -> None:
    if value is not True:
        raise NotAllowed(
            f"{argument}: only root may send a VM's memory unencrypted",
            hint="sudo vgpuctl migrate-vm VM --to ssh://HOST --insecure-network",
            rule="root",
        )


def _check_networks(allow: AllowSpec, vm: Vm, defaults: Sequence[str]) -> None:
    """Refuse a card on a network that neither host.yaml lists nor new VMs here get by default."""
    known = {*allow.networks, *(parse_nic(card).network_text for card in defaults if card != NONE)}
    for nic in vm.nics:
        where = nic.network_text
        if where not in known:
            raise not_allowed(f"the network {where} is not allowed", "agent.allow.networks", where)


def _params_of(vm: Vm) -> Iterator[tuple[str, str]]:
    for vgpu in () if vm.record is None else vm.record.vgpus:
        for pair in filter(None, vgpu.params.split(",")):
            key, _, value = pair.partition("=")
            yield key, value


def _check_files(
    files: AllowedFiles, pools: Collection[str | None], offer: MigrationOfferResult, *, copies_disks: bool
) -> None:
    for disk in offer.disks:
        if disk.made and disk.pool not in pools:
            raise not_allowed(f"the storage pool {disk.pool} is not allowed", "agent.allow.pools", str(disk.pool))
        if disk.base is not None:
            files.image(disk.base)
        if not disk.made and not (copies_disks and disk.kind == "disk" and not disk.is_shared):
            files.image(disk.path)
