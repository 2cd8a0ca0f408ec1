# SPDX-License-Identifier: Apache-2.0
"""Reading claims: what cannot be read is never "none", and a dead operation is not waited for."""

from __future__ import annotations

import pytest

from tests.hosts import create, living_operation, open_sim_host, request
from vgpuctl.errors import Busy, FileFailed
from vgpuctl.observe.claims import (
    is_claim_in_use,
    living_operations,
    read_claims,
    refuse_claimed_name,
    refuse_concurrent_command,
)
from vgpuctl.value import replace


class Unreadable:
    def all(self):
        raise PermissionError(13, "Permission denied", "/run/vgpuctl/claims")

    def living(self, ids):
        raise OSError(5, "Input/output error", "/run/vgpuctl/operations")


def test_what_cannot_be_read_is_an_error_with_its_path(tmp_path):
    ports = replace(open_sim_host(tmp_path).ports, claims=Unreadable(), operations=Unreadable())
    with pytest.raises(FileFailed, match="the claims cannot be read: Permission denied") as denied:
        read_claims(ports)
    assert denied.value.hint == "run it as root"
    with pytest.raises(FileFailed, match="which operations are running cannot be read") as broken:
        living_operations(ports, ["a"])
    assert "ls -la /run/vgpuctl/operations" in str(broken.value.hint)


def test_a_claim_is_in_use_while_its_vm_runs_with_the_carrier_or_cannot_be_asked(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    (claim,) = read_claims(host.ports)
    assert is_claim_in_use(host.ports, claim)
    assert not is_claim_in_use(host.ports, replace(claim, carrier="0000:3b:01.0"))
    host.ports.hypervisor.destroy(claim.vm_uuid)
    assert not is_claim_in_use(host.ports, claim)


def test_another_live_operation_is_named_and_a_dead_one_is_not(tmp_path):
    host = open_sim_host(tmp_path)
    create(host.ports, request("A100-4C", name="vm"))
    (claim,) = read_claims(host.ports)
    other = host.again()
    refuse_concurrent_command(other.ports, "vm", claim.vm_uuid)
    other.ports.claims.replace(replace(claim, operation=living_operation(other.ports).id))
    with pytest.raises(Busy, match="works on VM vm"):
        refuse_concurrent_command(other.ports, "vm", claim.vm_uuid)
    host.ports.claims.replace(claim)
    with pytest.raises(Busy, match="was creating VM vm"):
        refuse_claimed_name(other.ports, claim.vm_uuid)
