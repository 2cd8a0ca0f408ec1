# SPDX-License-Identifier: Apache-2.0
"""The host agent: nothing to check where nobody enabled it; else units, groups, socket, process and version."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import create, open_sim_host, request
from tests.unit.doctor.check_results import (
    FAIL,
    NOT_APPLICABLE,
    OK,
    UNKNOWN,
    WARN,
    assert_verdict,
    case,
    run_check,
)
from vgpuctl.doctor.agent import GROUP_FILE, SOCKETS_WANTS_DIRECTORY
from vgpuctl.doctor.check import SLICE_DIRECTORIES, FileContent, FolderListing, Verdict
from vgpuctl.doctor.own_files import UNIT_DIRECTORIES, WANTS_DIRECTORY
from vgpuctl.model.agent_service import IDENTITY_PATH, SERVICE_UNIT, SOCKET_PATH, SOCKET_UNIT, identity_text
from vgpuctl.model.port_values import FilePermissions
from vgpuctl.observe import ReadScope, observe
from vgpuctl.value import replace
from vgpuctl.version import __version__

GROUPS = "root:x:0:\nvgpuctl:x:970:alice\nvgpuctl-view:x:971:\nbroken\n"
PROCESSES = f"{SLICE_DIRECTORIES[0]}/{SERVICE_UNIT}/cgroup.procs"
FILES = {GROUP_FILE: GROUPS, PROCESSES: "4711\n4712\n", IDENTITY_PATH: identity_text(__version__, 4712)}
BOTH = (SERVICE_UNIT, SOCKET_UNIT)
FOLDERS = {
    UNIT_DIRECTORIES[0]: BOTH,
    WANTS_DIRECTORY: ("vgpuctl-restore.service", SERVICE_UNIT),
    SOCKETS_WANTS_DIRECTORY: (SOCKET_UNIT,),
    SLICE_DIRECTORIES[0]: (SERVICE_UNIT,),
}
SOCKET = FilePermissions(0o660, 0, 970)
SYSTEMD = {SLICE_DIRECTORIES[0]: ("libvirtd.service",)}


def agent(verdict, *words, files=None, folders=None, socket=SOCKET):
    """A host where the agent runs as it should, but for these files, directories and its socket."""
    permissions = {} if socket is None else {SOCKET_PATH: socket}
    seen = {"files": {**FILES, **(files or {})}, "folders": {**FOLDERS, **(folders or {})}, "permissions": permissions}
    return case("agent", verdict, *words, **seen)


CASES = {
    "nobody enabled it": case("agent", NOT_APPLICABLE, "vgpuctl install-host --agent", folders=SYSTEMD),
    "the package has it, disabled": case("agent", NOT_APPLICABLE, folders={**SYSTEMD, UNIT_DIRECTORIES[1]: BOTH}),
    "a host without systemd": case("agent", NOT_APPLICABLE),
    "it runs": agent(OK, "pid 4712", __version__),
    "the package's units": agent(OK, folders={UNIT_DIRECTORIES[0]: (), UNIT_DIRECTORIES[1]: BOTH}),
    "systemd's hierarchy of cgroups version 1": agent(
        OK, files={PROCESSES: FileContent(), f"{SLICE_DIRECTORIES[1]}/{SERVICE_UNIT}/cgroup.procs": "4712\n"}
    ),
    "groups of a directory service": agent(WARN, "no group vgpuctl-view", files={GROUP_FILE: "root:x:0:\n"}),
    "no groups and no socket": agent(
        FAIL, "no group vgpuctl\n", "no group vgpuctl-view", "vgpuctl install-host --agent",
        files={GROUP_FILE: "root:x:0:\n"}, socket=None,
    ),
    "an enabled unit that is gone": agent(
        FAIL, f"there is no {SERVICE_UNIT} in /etc/systemd/system", folders={UNIT_DIRECTORIES[0]: (SOCKET_UNIT,)}
    ),
    "a socket that is not enabled": agent(
        WARN, f"{SOCKET_UNIT} is not enabled", "vgpuctl install-host --agent", folders={SOCKETS_WANTS_DIRECTORY: ()}
    ),
    "it runs and is not enabled": agent(
        WARN, f"{SERVICE_UNIT} is not enabled", folders={SOCKETS_WANTS_DIRECTORY: (), WANTS_DIRECTORY: ()}
    ),
    "it does not run": agent(
        FAIL, "does not run", f"systemctl start {SERVICE_UNIT}", "journalctl", files={PROCESSES: FileContent()}
    ),
    "no socket": agent(FAIL, "nobody can connect", f"systemctl start {SOCKET_UNIT}", socket=None),
    "a socket for everybody": agent(
        FAIL, "mode 0666, not 0660", f"systemctl restart {SOCKET_UNIT} {SERVICE_UNIT}",
        socket=FilePermissions(0o666, 0, 970),
    ),
    "a socket for root alone": agent(WARN, "mode 0600", socket=FilePermissions(0o600, 0, 970)),
    "a socket of another group": agent(FAIL, "group 971", "vgpuctl (970)", socket=FilePermissions(0o660, 0, 971)),
    "a socket of another user": agent(FAIL, "owner 1000", socket=FilePermissions(0o660, 1000, 970)),
    "another version": agent(
        WARN, "version 0.0.1", __version__, f"systemctl restart {SERVICE_UNIT}", files={IDENTITY_PATH: "0.0.1 4712\n"}
    ),
    "a process that has not said who it is": agent(FAIL, "does not run", files={IDENTITY_PATH: FileContent()}),
    "what an agent that ended left behind": agent(FAIL, "does not run", files={PROCESSES: "4711\n"}),
    "what a removed agent left behind": case(
        "agent", NOT_APPLICABLE, folders=SYSTEMD, files={PROCESSES: "4711\n", IDENTITY_PATH: "0.0.1 4712\n"}
    ),
    "directories that cannot be read": case(
        "agent", UNKNOWN, "denied", folders={WANTS_DIRECTORY: FolderListing(problem="Permission denied")}
    ),
    "groups that cannot be read": agent(UNKNOWN, files={GROUP_FILE: FileContent(problem="Permission denied")}),
    "a captured tree without cgroups": agent(
        UNKNOWN, "not visible", folders={SLICE_DIRECTORIES[0]: FolderListing()}, files={PROCESSES: FileContent()}
    ),
}  # fmt: skip


@pytest.mark.parametrize("one", CASES.values(), ids=CASES)
def test_the_verdict_on(one):
    assert_verdict(one)


def test_all_that_is_wrong_is_told_with_each_fix_once():
    one = agent(
        FAIL, files={PROCESSES: FileContent(), GROUP_FILE: ""}, folders={SOCKETS_WANTS_DIRECTORY: ()}, socket=None
    )
    finding = run_check("agent", **one.seen)
    assert len(finding.evidence) == 5
    assert (finding.fix or "").count("vgpuctl install-host --agent") == 1


@pytest.mark.parametrize(("autostart", "verdict"), [("enabled", WARN), ("disabled", NOT_APPLICABLE)])
def test_a_vm_that_only_the_agent_would_start_needs_it(tmp_path: Path, autostart: str, verdict: Verdict) -> None:
    host = open_sim_host(tmp_path)
    create(host.ports, replace(request("A100-4C", name="vdi-001"), autostart=autostart))
    finding = run_check("agent", snapshot=observe(host.ports, ReadScope()), folders=SYSTEMD)
    assert finding.verdict is verdict
    assert any("nobody starts vdi-001" in line for line in finding.evidence) is (verdict is WARN)
    assert finding.fix == ("vgpuctl install-host --agent" if verdict is WARN else None)
