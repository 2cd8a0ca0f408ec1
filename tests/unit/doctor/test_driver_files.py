# SPDX-License-Identifier: Apache-2.0
"""Memory of Intel's VFs, overcommitted memory of Moore Threads' cards, and both makers' schedulers."""

from __future__ import annotations

import pytest

from tests.hosts import open_sim_host
from tests.meanwhile import rebooted, with_calls
from tests.schedulers import act
from tests.unit.operations.test_mtgpu_scheduler import MTT, TEN, mtt, write
from tests.unit.operations.test_xe_scheduler import EIGHT, ON, card, mode
from vgpuctl.errors import HostCannot
from vgpuctl.operations.diagnose import diagnose


def finding(ports, check):
    return next(row for row in diagnose(ports, (check,)).checks if row.id == check)


def seen(ports, check):
    row = finding(ports, check)
    return row.verdict, " ".join(row.evidence)


def test_memory_of_vfs_is_compared_with_host_yaml(tmp_path):
    host = card(tmp_path)
    assert seen(host.ports, "vf-memory")[0] == "not-applicable"
    mode(host.ports, 2, 2048)
    assert seen(host.ports, "vf-memory") == ("ok", f"{ON}: each VF has 2GiB")
    host = rebooted(host)
    verdict, text = seen(host.ports, "vf-memory")
    assert (verdict, text) == ("warn", f"{ON}: 2GiB are configured, its VFs have 11776MiB")


def test_a_scheduler_of_xe_that_does_not_run_is_found_and_needs_no_drain(tmp_path):
    host = card(tmp_path)
    act(host.ports, EIGHT, gpu=ON)
    assert finding(host.ports, "scheduler").verdict == "ok"
    host.ports.sysfs.write(f"/sys/bus/pci/devices/{ON}/sriov_admin/vf1/profile/exec_quantum_ms", "9\n")
    row = finding(host.ports, "scheduler")
    assert (row.verdict, row.fix) == ("warn", "vgpuctl restore-host")
    assert "unknown (vf1 and the host (pf) differ" in " ".join(row.evidence)


def test_hosts_without_such_cards_read_nothing_for_it(tmp_path):
    host = open_sim_host(tmp_path)
    paths = []

    def record(call):
        def recorded(path):
            paths.append(path)
            return call(path)

        return recorded

    sysfs = host.ports.sysfs
    ports = with_calls(host.ports, "sysfs", read=record(sysfs.read), listdir=record(sysfs.listdir))
    assert {seen(ports, check)[0] for check in ("vf-memory", "overcommit")} == {"not-applicable"}
    assert not [path for path in paths if "mtgpu" in path or "sriov_admin" in path]


@pytest.mark.parametrize(
    ("options", "verdict", "text"),
    [
        ("", "ok", "memory is not overcommitted"),
        ("vgpu_overcommit_enable=1 vgpu_overcommit_num=3", "ok", "3 more vGPUs on each card"),
        ("vgpu_overcommit_enable=1 vgpu_overcommit_num=9", "warn", "vgpu_overcommit_num is '9', and 1 to 6 are valid"),
    ],
)
def test_overcommitted_memory_is_shown_with_its_rules(tmp_path, options, verdict, text):
    host = mtt(tmp_path)
    write(host, f"options mtgpu {options}\n")
    row = seen(rebooted(host).ports, "overcommit")
    assert row[0] == verdict
    assert text in row[1]


def test_a_scheduler_of_mtgpu_that_the_module_was_not_loaded_with_is_found(tmp_path):
    host = mtt(tmp_path)
    with pytest.raises(HostCannot):
        act(host.ports, TEN, gpu=MTT)
    row = finding(host.ports, "scheduler")
    assert row.verdict == "warn"
    assert (
        row.fix
        == f"vgpuctl set-scheduler {MTT} --policy equal_share --time-slice 10 shows the line for modprobe's files"
    )
