# SPDX-License-Identifier: Apache-2.0
"""Claims and stuck writes in a look: what may not be read is told, and under the lock few processes are asked about."""

from __future__ import annotations

import pytest

from tests.faults import counted
from tests.values import A4C, a100, claim, promised, vm
from tests.worlds import open_host
from vgpuctl.engine.observe import Want, observe, observe_devices
from vgpuctl.errors import Failed
from vgpuctl.model.records import ClaimsRead
from vgpuctl.model.vm import ProcessId
from vgpuctl.value import replace

WANT = Want(models=False)


class Records:
    """Claims that cannot be listed, or not all of them."""

    held = False

    def __init__(self, read=None, stuck=None):
        self._read, self._stuck = read, stuck

    def read(self, carriers=None):
        if self._read is not None:
            raise self._read
        return ClaimsRead((), ("0000:3b:00.4",))

    def stuck(self):
        if self._stuck is not None:
            raise self._stuck
        return ()


def closed(name):
    return PermissionError(13, "Permission denied", f"/run/vgpuctl/{name}")


@pytest.mark.parametrize(
    ("read", "stuck", "said"),
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
def test_what_only_root_may_read_is_told(tmp_path, read, stuck, said):
    look = observe(replace(open_host(tmp_path).world, claims=Records(read, stuck)), WANT)
    (warning,) = [w for w in look.warnings if "without root" in w]
    assert warning.startswith(said)
    assert look.gpus


def test_a_claim_that_cannot_be_understood_counts_as_taken(tmp_path):
    look = observe(replace(open_host(tmp_path).world, claims=Records()), WANT)
    assert look.unreadable_claims == ("0000:3b:00.4",)
    assert "the claim on 0000:3b:00.4 cannot be read; 0000:3b:00.4 counts as taken" in look.warnings
    assert [v.carrier for v in look.vgpus] == ["0000:3b:00.4"]


@pytest.mark.parametrize("name", ["claims", "stuck"])
def test_records_that_fail_otherwise_are_an_error_and_not_none(tmp_path, name):
    error = OSError(5, "Input/output error", f"/run/vgpuctl/{name}")
    records = Records(error) if name == "claims" else Records(stuck=error)
    with pytest.raises(Failed) as raised:
        observe(replace(open_host(tmp_path).world, claims=records), WANT)
    assert raised.value.facts == {"errno": 5, "path": f"/run/vgpuctl/{name}"}
    assert name in str(raised.value)


def test_under_the_lock_only_processes_of_vms_not_seen_are_asked_about(tmp_path):
    world = open_host(tmp_path).world
    me, dead = world.processes.this(), ProcessId(1, 1)
    ours, theirs, gone = (claim(promised(a100(), A4C, n), n, process) for n, process in ((1, me), (2, me), (3, dead)))
    for one in (ours, theirs, gone):
        world.claims.add(one)
    status = world.hypervisor.status()

    def look(watched):
        return observe_devices(watched, WANT, vms=(vm(1),), status=status)

    free = look(world)
    assert free.live_claims == {ours.carrier, theirs.carrier}
    assert counted(world, look).count("processes.alive") == 2
    with world.claims.lock(0):
        held = look(world)
        assert held.live_claims == {theirs.carrier}
        assert counted(world, look).count("processes.alive") == 2
    assert held.vgpus == free.vgpus
    world.claims.remove(gone.carrier, gone.vm_uuid)
    world.claims.remove(theirs.carrier, theirs.vm_uuid)
    with world.claims.lock(0):
        assert "processes.alive" not in counted(world, look)
