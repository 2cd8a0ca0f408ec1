# SPDX-License-Identifier: Apache-2.0
"""Making /run/vgpuctl private, and taking that back."""

from __future__ import annotations

import pytest

from tests.worlds import open_host
from vgpuctl.errors import Failed, VerifyFailed
from vgpuctl.steps.run_directory import RUN, MakePrivate
from vgpuctl.value import replace


@pytest.fixture
def host(tmp_path):
    opened = open_host(tmp_path)
    opened.sim.run_dir.chmod(0o777)
    return opened


def mode(host) -> int:
    return host.world.sysfs.permissions(RUN).mode


def test_it_is_changed_read_back_and_put_back(host):
    step = MakePrivate(0o777)
    assert step.describe() == "change the mode of /run/vgpuctl from 0777 to 0700"
    step.perform(host.world)
    step.verify(host.world)
    assert mode(host) == 0o700
    step.undo(host.world)
    assert mode(host) == 0o777


def test_a_mode_that_did_not_take_is_noticed_and_one_that_others_set_is_kept(host):
    step = MakePrivate(0o777)
    with pytest.raises(VerifyFailed):
        step.verify(host.world)
    host.sim.run_dir.chmod(0o750)
    step.undo(host.world)
    assert mode(host) == 0o750


def test_what_the_system_refuses_is_told_with_its_number(host):
    class Refusing:
        def set_mode(self, mode: int) -> None:
            raise PermissionError(1, "Operation not permitted", RUN)

    with pytest.raises(Failed) as caught:
        MakePrivate(0o777).perform(replace(host.world, claims=Refusing()))
    assert caught.value.facts == {"path": RUN, "errno": 1}
