# SPDX-License-Identifier: Apache-2.0
"""What helpers in guests reported, as commands read it: to whom it is shown, and what it is waited for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.callers import ADA, BOB, OPERATOR, ROOT, VIEWER, host_of
from tests.hosts import SimulatedHost, context, create, open_sim_host, request, stop
from vgpuctl.errors import Busy, HostCannot
from vgpuctl.model.caller import Caller
from vgpuctl.model.guest_report import GuestReport, GuestUser
from vgpuctl.operations.queries import list_vms, show_vm, show_vms
from vgpuctl.operations.wait import wait
from vgpuctl.value import replace

REPORT = GuestReport(1_000_000.0, "1", (GuestUser("alice", "active", 75),), "570.211", "580.178", "r580_178", False)


def put_report(host: SimulatedHost, report: GuestReport) -> None:
    """Write the report of VM vm, as the agent does."""
    domain = host.ports.hypervisor.find_domain("vm")
    assert domain is not None
    assert host.ports.guest_reports is not None
    host.ports.guest_reports.write(domain.uuid, report)


@pytest.mark.parametrize(
    ("caller", "users"),
    [(None, ("alice",)), (ROOT, ("alice",)), (OPERATOR, ("alice",)), (ADA, ("alice",)), (BOB, None), (VIEWER, None)],
)
def test_who_may_change_a_vm_sees_its_users_and_others_its_driver(
    tmp_path: Path, caller: Caller | None, users: tuple[str, ...] | None
) -> None:
    host = open_sim_host(tmp_path, "a100-40")
    host_of(host, ADA).create_vm("vm", profile="A100-4C", networks="none")
    put_report(host, REPORT)
    asks = replace(context(), caller=caller)
    (row,) = list_vms(host.ports, asks).data
    assert (row.guest_users, row.driver) == (users, "570.211")
    for shown in (show_vm(host.ports, asks, "vm"), show_vms(host.ports, asks, ("vm",))["vm"]):
        report = shown.data.helper_report
        assert report is not None
        assert (report.users is None, report.host_driver, report.seen) == (
            users is None,
            "580.178",
            "1970-01-12T13:46:40Z",
        )
    stop(host.ports, "vm")
    (row,) = list_vms(host.ports, asks).data
    assert (row.guest_users, row.driver) == (None, None), "it is off"


def test_a_whole_gpus_driver_is_waited_for_by_the_helper(tmp_path: Path) -> None:
    host = open_sim_host(tmp_path, "h100-pcie-x8")
    create(host.ports, request(name="vm", mode="passthrough", gpus=1))
    with pytest.raises(HostCannot, match="cannot see the driver in vm"):
        wait(host.ports, context(), ["vm"], "driver", 5)
    put_report(host, replace(REPORT, driver=None))
    with pytest.raises(Busy, match="has not started NVIDIA's driver after 5 s"):
        wait(host.ports, context(), ["vm"], "driver", 5)
    put_report(host, REPORT)
    (seen,) = wait(host.ports, context(), ["vm"], "driver", 5).data
    assert seen.state == "running"
    with pytest.raises(HostCannot, match="cannot see the license"):
        wait(host.ports, context(), ["vm"], "license", 5)
