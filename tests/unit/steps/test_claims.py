# SPDX-License-Identifier: Apache-2.0
"""Claims: exclusive, only ever removed by their own VM."""

from __future__ import annotations

import pytest

from tests.faults import failing
from tests.values import A4C, a100, claim, promised
from tests.worlds import open_host
from vgpuctl.errors import Failed, InUse, VerifyFailed
from vgpuctl.model.gpu import Backend
from vgpuctl.model.vm import SETTING_UP
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim
from vgpuctl.value import replace

MINE, THEIRS = claim(promised(a100(), A4C), 1), claim(promised(a100(), A4C), 2)


def test_a_claim_is_held_seen_and_released(tmp_path):
    world = open_host(tmp_path).world
    step = HoldClaim(MINE)
    with pytest.raises(VerifyFailed):
        step.verify(world)
    step.perform(world)
    step.verify(world)
    step.perform(world)
    step.undo(world)
    assert world.claims.all() == ()
    step.undo(world)


def test_another_vms_claim_is_neither_overwritten_nor_removed(tmp_path):
    world = open_host(tmp_path).world
    HoldClaim(THEIRS).perform(world)
    with pytest.raises(InUse) as raised:
        HoldClaim(MINE).perform(world)
    assert "claimed for VM vdi-002, by process 100: vgpuctl create-vm" in str(raised.value)
    assert "vgpuctl reconcile" in str(raised.value.hint)
    assert (raised.value.facts["carrier"], raised.value.facts["pid"]) == (MINE.carrier, 100)
    HoldClaim(MINE).undo(world)
    ReleaseClaim(MINE.carrier, MINE.vm_uuid).perform(world)
    assert world.claims.all() == (THEIRS,)


def test_a_gpu_that_is_set_up_is_claimed_for_no_vm(tmp_path):
    world = open_host(tmp_path).world
    HoldClaim(replace(THEIRS, vm=SETTING_UP, command="vgpuctl set-mig 0000:3b:00.0 --off")).perform(world)
    with pytest.raises(InUse) as raised:
        HoldClaim(MINE).perform(world)
    assert "is claimed to set it up, by process 100: vgpuctl set-mig 0000:3b:00.0 --off" in str(raised.value)
    assert raised.value.facts["vm"] is None


def test_a_claim_that_cannot_be_read_is_somebody_elses_and_told_with_its_path(tmp_path):
    host = open_host(tmp_path)
    HoldClaim(THEIRS).perform(host.world)
    file = host.sim.run_dir / "claims" / MINE.carrier
    file.write_text("{")
    with pytest.raises(InUse) as raised:
        HoldClaim(MINE).perform(host.world)
    assert f"for whom cannot be read: {file}" in str(raised.value)
    assert f"rm {file}" in str(raised.value.hint)
    assert raised.value.facts == {"carrier": MINE.carrier, "path": str(file)}
    HoldClaim(MINE).undo(host.world)
    assert file.read_text() == "{"


@pytest.mark.parametrize(("broken", "message"), [(False, "until just now"), (True, "cannot be read")])
def test_a_claim_that_goes_or_cannot_be_looked_at_is_an_error_of_ours_too(tmp_path, broken, message):
    world = open_host(tmp_path).world

    class Racing:
        def add(self, claim):
            raise FileExistsError(17, "File exists", "/run/vgpuctl/claims/x")

        def read(self):
            if broken:
                raise OSError(5, "Input/output error")
            return world.claims.read()

    with pytest.raises(InUse, match=message):
        HoldClaim(MINE).perform(replace(world, claims=Racing()))


@pytest.mark.parametrize("step", [HoldClaim(MINE), ReleaseClaim(MINE.carrier, MINE.vm_uuid)])
def test_a_claim_that_cannot_be_written_or_removed_is_an_error_with_its_number(tmp_path, step):
    with pytest.raises(Failed) as raised:
        step.perform(failing(open_host(tmp_path).world, 1))
    assert {key: raised.value.facts[key] for key in ("carrier", "errno")} == {"carrier": MINE.carrier, "errno": 28}
    assert "/run" in str(raised.value.hint)


def test_the_words_say_what_and_where():
    assert HoldClaim(MINE).describe() == "claim 0000:3b:00.4 on GPU 0000:3b:00.0 for A100-4C"
    setting_up = replace(MINE, vm=SETTING_UP, carrier=MINE.gpu, backend=Backend.PASSTHROUGH, profile=None)
    assert HoldClaim(setting_up).describe() == "claim all of GPU 0000:3b:00.0 while it is set up"
    assert ReleaseClaim("x", "y").describe() == "release the claim on x"
