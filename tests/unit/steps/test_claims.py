# SPDX-License-Identifier: Apache-2.0
"""Claims: exclusive, only ever removed by their own VM."""

from __future__ import annotations

import pytest

from tests.faults import failing
from tests.values import A4C, a100, claim, promised
from tests.worlds import open_host
from vgpuctl.errors import Failed, VerifyFailed
from vgpuctl.steps.claims import HoldClaim, ReleaseClaim

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
    with pytest.raises(FileExistsError):
        HoldClaim(MINE).perform(world)
    HoldClaim(MINE).undo(world)
    ReleaseClaim(MINE.carrier, MINE.vm_uuid).perform(world)
    assert world.claims.all() == (THEIRS,)


@pytest.mark.parametrize("step", [HoldClaim(MINE), ReleaseClaim(MINE.carrier, MINE.vm_uuid)])
def test_a_claim_that_cannot_be_written_or_removed_is_an_error_with_its_number(tmp_path, step):
    with pytest.raises(Failed) as raised:
        step.perform(failing(open_host(tmp_path).world, 1))
    assert raised.value.facts == {"carrier": MINE.carrier, "errno": 28}
    assert "/run" in str(raised.value.hint)


def test_the_words_say_what_and_where():
    assert HoldClaim(MINE).describe() == "claim 0000:3b:00.4 on GPU 0000:3b:00.0 for A100-4C"
    assert ReleaseClaim("x", "y").describe() == "release the claim on x"
