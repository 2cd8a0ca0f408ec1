# SPDX-License-Identifier: Apache-2.0
"""Claims: exclusive, only ever removed by their own VM."""

from __future__ import annotations

import pytest

from tests.faults import failing
from tests.hosts import open_sim_host
from tests.values import A4C, a100, assigned, claim
from vgpuctl.errors import Failed, InUse
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import GPU_SETUP_CLAIM
from vgpuctl.operations.steps.claims import ReleaseClaim, TakeClaim
from vgpuctl.value import replace

MINE, THEIRS = claim(assigned(a100(), A4C), 1), claim(assigned(a100(), A4C), 2)


def test_another_vms_claim_is_neither_overwritten_nor_removed(tmp_path):
    ports = open_sim_host(tmp_path).ports
    TakeClaim(THEIRS).perform(ports)
    with pytest.raises(InUse) as raised:
        TakeClaim(MINE).perform(ports)
    assert "claimed for VM vdi-002, by process 100: vgpuctl create-vm" in str(raised.value)
    assert "vgpuctl reconcile-host" in str(raised.value.hint)
    assert (raised.value.facts["carrier"], raised.value.facts["pid"]) == (MINE.carrier, 100)
    TakeClaim(MINE).undo(ports)
    ReleaseClaim(MINE.carrier, MINE.vm_uuid).perform(ports)
    assert ports.claims.all() == (THEIRS,)


def test_a_gpu_in_setup_is_claimed_without_vm(tmp_path):
    ports = open_sim_host(tmp_path).ports
    TakeClaim(replace(THEIRS, vm=GPU_SETUP_CLAIM, command="vgpuctl set-mig 0000:3b:00.0 --off")).perform(ports)
    with pytest.raises(InUse) as raised:
        TakeClaim(MINE).perform(ports)
    assert "is claimed to set it up, by process 100: vgpuctl set-mig 0000:3b:00.0 --off" in str(raised.value)
    assert raised.value.facts["vm"] is None


def test_an_unreadable_claim_is_in_use_and_shown_with_its_path(tmp_path):
    host = open_sim_host(tmp_path)
    TakeClaim(THEIRS).perform(host.ports)
    file = host.sim.run_dir / "claims" / MINE.carrier
    file.write_text("{")
    with pytest.raises(InUse) as raised:
        TakeClaim(MINE).perform(host.ports)
    assert f"the owner cannot be read: {file}" in str(raised.value)
    assert f"rm {file}" in str(raised.value.hint)
    assert raised.value.facts == {"carrier": MINE.carrier, "path": str(file)}
    TakeClaim(MINE).undo(host.ports)
    assert file.read_text() == "{"


@pytest.mark.parametrize(("broken", "message"), [(False, "until a moment ago"), (True, "cannot be read")])
def test_a_vanished_or_unreadable_claim_is_a_vgpuctl_error(tmp_path, broken, message):
    ports = open_sim_host(tmp_path).ports

    class Racing:
        def add(self, claim):
            raise FileExistsError(17, "File exists", "/run/vgpuctl/claims/x")

        def read(self):
            if broken:
                raise OSError(5, "Input/output error")
            return ports.claims.read()

    with pytest.raises(InUse, match=message):
        TakeClaim(MINE).perform(replace(ports, claims=Racing()))


@pytest.mark.parametrize("step", [TakeClaim(MINE), ReleaseClaim(MINE.carrier, MINE.vm_uuid)])
def test_a_claim_that_cannot_be_written_or_removed_is_an_error_with_its_number(tmp_path, step):
    with pytest.raises(Failed) as raised:
        step.perform(failing(open_sim_host(tmp_path).ports, 1))
    assert {key: raised.value.facts[key] for key in ("carrier", "errno")} == {"carrier": MINE.carrier, "errno": 28}
    assert "/run" in str(raised.value.hint)


def test_texts_name_what_and_where():
    assert TakeClaim(MINE).describe() == "claim 0000:3b:00.4 on GPU 0000:3b:00.0 for A100-4C"
    setting_up = replace(MINE, vm=GPU_SETUP_CLAIM, carrier=MINE.gpu, backend=Backend.PASSTHROUGH, profile=None)
    assert TakeClaim(setting_up).describe() == "claim all of GPU 0000:3b:00.0 while it is set up"
    assert ReleaseClaim("x", "y").describe() == "release the claim on x"
