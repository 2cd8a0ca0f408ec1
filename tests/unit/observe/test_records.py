# SPDX-License-Identifier: Apache-2.0
"""Claims and stuck writes: unreadable ones warn or are errors, never none; under the lock few processes are checked."""

from __future__ import annotations

import pytest

from tests.faults import counted
from tests.hosts import create, living_operation, open_sim_host, request
from tests.values import A4C, a100, assigned, claim, vm
from vgpuctl.errors import Failed, FileFailed
from vgpuctl.model.port_values import ClaimList
from vgpuctl.observe import ReadScope, observe, observe_devices
from vgpuctl.observe.claims import (
    is_claim_in_use,
    living_operations,
    read_claims,
)
from vgpuctl.value import replace

WANT = ReadScope(models=False)


class Records:
    """Claims that cannot all be listed."""

    is_locked = False

    def __init__(self, read=None, stuck_writes=None):
        self._read, self._stuck = read, stuck_writes

    def read(self, carriers=None):
        if self._read is not None:
            raise self._read
        return ClaimList((), ("0000:3b:00.4",))

    def stuck_writes(self):
        if self._stuck is not None:
            raise self._stuck
        return ()


def closed(name):
    return PermissionError(13, "Permission denied", f"/run/vgpuctl/{name}")


@pytest.mark.parametrize(
    ("read", "stuck", "output"),
    [
        (closed("claims"), None, "the claims (/run/vgpuctl/claims) cannot be read without root"),
        (None, closed("stuck"), "the records of stuck writes (/run/vgpuctl/stuck) cannot be read without root"),
        (
            closed("claims"),
            closed("stuck"),
            "the claims (/run/vgpuctl/claims) and the records of stuck writes (/run/vgpuctl/stuck) cannot be read",
        ),
    ],
)
def test_files_only_for_root_warn(tmp_path, read, stuck, output):
    observed = observe(replace(open_sim_host(tmp_path).ports, claims=Records(read, stuck)), WANT)
    (warning,) = [w for w in observed.warnings if "without root" in w]
    assert warning.startswith(output)
    assert observed.gpus


def test_an_unreadable_claim_counts_as_taken(tmp_path):
    observed = observe(replace(open_sim_host(tmp_path).ports, claims=Records()), WANT)
    assert observed.unreadable_claims == ("0000:3b:00.4",)
    assert "the claim on 0000:3b:00.4 cannot be read; 0000:3b:00.4 counts as taken" in observed.warnings
    assert [v.carrier for v in observed.vgpus] == ["0000:3b:00.4"]


@pytest.mark.parametrize("name", ["claims", "stuck"])
def test_other_read_failures_are_errors_and_not_empty(tmp_path, name):
    error = OSError(5, "Input/output error", f"/run/vgpuctl/{name}")
    records = Records(error) if name == "claims" else Records(stuck_writes=error)
    with pytest.raises(Failed) as raised:
        observe(replace(open_sim_host(tmp_path).ports, claims=records), WANT)
    assert raised.value.facts == {"errno": 5, "path": f"/run/vgpuctl/{name}"}
    assert name in str(raised.value)


def test_a_claim_lives_with_its_operation(tmp_path):
    host = open_sim_host(tmp_path)
    living = living_operation(host.ports).id
    ours, theirs, gone = (claim(assigned(a100(), A4C, n), n, by) for n, by in ((1, living), (2, living), (3, "dead")))
    for one in (ours, theirs, gone):
        host.ports.claims.add(one)

    def observed(watched):
        return observe_devices(watched, WANT, vms=(vm(1),), status=host.ports.hypervisor.status())

    assert observed(host.ports).live_claim_carriers == {ours.carrier, theirs.carrier}
    assert counted(host.ports, observed).count("operations.living") == 1
    with host.ports.claims.lock(0):
        assert observed(host.ports) == observed(host.ports)


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
