# SPDX-License-Identifier: Apache-2.0
"""Making /run/vgpuctl private, and undoing that."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from vgpuctl.errors import Failed, VerifyFailed
from vgpuctl.operations.diagnose import RUN_PATH, RestrictRunDirectory
from vgpuctl.value import replace


@pytest.fixture
def host(tmp_path):
    opened = open_sim_host(tmp_path)
    opened.sim.run_dir.chmod(0o777)
    return opened


def mode(host) -> int:
    return host.ports.sysfs.permissions(RUN_PATH).mode


def test_it_is_changed_read_back_and_put_back(host):
    step = RestrictRunDirectory(0o777)
    assert step.describe() == "change the mode of /run/vgpuctl from 0777 to 0700"
    step.perform(host.ports)
    step.verify(host.ports)
    assert mode(host) == 0o700
    step.undo(host.ports)
    assert mode(host) == 0o777


def test_an_unset_mode_is_noticed_and_another_programs_mode_stays(host):
    step = RestrictRunDirectory(0o777)
    with pytest.raises(VerifyFailed):
        step.verify(host.ports)
    host.sim.run_dir.chmod(0o750)
    step.undo(host.ports)
    assert mode(host) == 0o750


def test_an_os_error_has_its_errno(host):
    class Refusing:
        def set_permissions(self, mode: int) -> None:
            raise PermissionError(1, "Operation not permitted", RUN_PATH)

    with pytest.raises(Failed) as caught:
        RestrictRunDirectory(0o777).perform(replace(host.ports, claims=Refusing()))
    assert caught.value.facts == {"path": RUN_PATH, "errno": 1}
