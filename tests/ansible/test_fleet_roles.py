# SPDX-License-Identifier: Apache-2.0
"""The roles controller and fleet_host on one bare host: a real controller logs in at a real sshd and asks an agent.

The agent's host is simulated; systemd and vgpuctl's package are stand-ins.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ansible.bare import Bare
from tests.ansible.debs import write_deb
from tests.ansible.plays import ROOT, Ran
from tests.ansible.stand_ins import PROGRAMS, SYSTEMCTL

pytestmark = pytest.mark.long
SIMULATED = "sim:a100-40"
VGPUCTL = f"""\
#!/bin/sh
# The host of the agent is simulated; the controller's machine, and what its login starts, are not.
case "$*" in *controller*|*"agent dial"*) unset VGPUCTL_HOST ;; esac
export PYTHONPATH={ROOT}
exec {sys.executable} -m vgpuctl "$@"
"""
START_AGENT = f"""\
#!/bin/sh
getent group vgpuctl >/dev/null || groupadd --system vgpuctl
export VGPUCTL_HOST={SIMULATED}
setsid vgpuctl agent run >/fake/agent.log 2>&1 </dev/null &
timeout 60 sh -c 'until [ -S /run/vgpuctl-agent/agent.sock ]; do sleep 0.1; done'
"""
START_POSTGRESQL = """\
#!/bin/sh
set -e
cd /
programs=$(ls -d /usr/lib/postgresql/*/bin | tail -n 1)
install -d -o nobody -m 700 /srv/postgresql
as_nobody="setpriv --reuid nobody --regid nogroup --clear-groups"
$as_nobody $programs/initdb -D /srv/postgresql/data -A trust -U fleet --no-sync >/fake/postgresql.log
$as_nobody setsid $programs/postgres -D /srv/postgresql/data -k /srv/postgresql -c listen_addresses=127.0.0.1 \\
    -c fsync=off >>/fake/postgresql.log 2>&1 </dev/null &
timeout 60 sh -c "until $programs/createdb -h 127.0.0.1 -U fleet fleet 2>>/fake/postgresql.log; do sleep 0.1; done"
"""
SERVICE = "vgpuctl-controller.service"
WITH_CONTROLLER = f"""\
#!/bin/sh
# Runs the controller as its unit does; all else as in the stand-in below.
stop() {{
    [ -f /fake/controller.pid ] && kill "$(cat /fake/controller.pid)" && rm /fake/controller.pid
    timeout 60 sh -c 'while [ -S /run/vgpuctl-controller/controller.sock ]; do sleep 0.1; done'
    sed -i /active/d /fake/units/{SERVICE}
    echo "stop {SERVICE}" >>/fake/done
}}
start() {{
    install -d -o vgpuctl-controller -m 700 /run/vgpuctl-controller
    . /etc/default/vgpuctl-controller
    HOME=/var/lib/vgpuctl-controller setsid setpriv --reuid vgpuctl-controller --regid vgpuctl-controller \\
        --clear-groups vgpuctl controller run $OPTIONS >>/fake/controller.log 2>&1 </dev/null &
    echo $! >/fake/controller.pid
    timeout 60 sh -c 'until [ -S /run/vgpuctl-controller/controller.sock ]; do sleep 0.1; done'
}}
case "$1 $2" in
    "start {SERVICE}") start ;;
    "restart {SERVICE}") stop; start ;;
    "stop {SERVICE}") stop; exit 0 ;;
    "reload ssh.service") kill -HUP "$(cat /run/sshd.pid)"; echo "$*" >>/fake/done; exit 0 ;;
esac
"""
SSHD = '#!/bin/sh\nexec /usr/sbin/sshd -f /fake/sshd_config "$@"\n'
PROGRAMS_OF_A_FLEET = {
    **PROGRAMS,
    "/usr/bin/systemctl": WITH_CONTROLLER + SYSTEMCTL.removeprefix("#!/bin/sh\n"),
    "/fake/start-agent": START_AGENT,
    "/fake/start-postgresql": START_POSTGRESQL,
    "/fake/sshd": SSHD,
}
SETTINGS = "Include /etc/ssh/sshd_config.d/*.conf\n"
FLEET = {
    "fleet_host_controllers": ["bare"],
    "fleet_host_from": ["127.0.0.1"],
    "fleet_host_labels": {"site": "berlin"},
    "fleet_host_allow": {"folders": ["/srv/images"], "networks": ["default"]},
    "fleet_host_key_file": "/fake/host_key.pub",
    "fleet_host_sshd": "/fake/sshd",
}


class FleetHost(Bare):
    """A host, and the package that the roles install there."""

    def __init__(self, place: Path, ansible: Path) -> None:
        super().__init__(place, {}, PROGRAMS_OF_A_FLEET, SETTINGS, ansible)
        self.write("/fake/host_key.pub", (place / "host_key.pub").read_text())
        self.write("/fake/units/ssh.service", "enabled\nactive\n")
        self.deb = write_deb(place, "vgpuctl", {"/usr/bin/vgpuctl": VGPUCTL})

    def play(self, *tasks: dict[str, Any], arguments: tuple[str, ...] = (), **variables: Any) -> Ran:
        path = self.place / "play.yml"
        path.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": list(tasks)}]))
        return self.playbook(path, *arguments, **variables)

    def role(self, name: str, *arguments: str, **variables: Any) -> Ran:
        task = {"ansible.builtin.include_role": {"name": f"vgpuctl.vgpuctl.{name}"}}
        return self.play(task, arguments=arguments, vgpuctl_deb=str(self.deb), **variables)

    def fleet(self, **options: str) -> dict[str, Any]:
        """Return what the controller has."""
        (done,) = self.play({"vgpuctl.vgpuctl.fleet_info": options}).tasks
        assert done.status == "ok", done.result
        return done.result


@pytest.fixture
def host(tmp_path: Path, ansible: Path) -> Iterator[FleetHost]:
    one = FleetHost(tmp_path, ansible)
    try:
        yield one
    finally:
        one.close()


def names(ran: Ran) -> set[str]:
    """Return the tasks that changed something, without the role's name."""
    return {task.rpartition(" : ")[2] for _, task in ran.changed}


def mode(host: FleetHost, path: str) -> int:
    return (host.root / path.lstrip("/")).stat().st_mode & 0o7777


def test_a_controller_and_its_host_are_set_up_once_and_go_again(host: FleetHost) -> None:
    before = host.layer()
    checked = host.role("controller", "--check", "--diff")
    assert checked.status == 0, checked.output
    assert host.layer() == before

    first = host.role("controller", "-vvv")
    assert first.status == 0, first.output
    secret = host.text("/etc/vgpuctl/controller.token").strip()
    assert secret.startswith("vgpuctl_")
    assert secret not in first.output
    assert (
        mode(host, "/etc/vgpuctl/controller.token")
        == mode(host, "/var/lib/vgpuctl-controller/.ssh/id_ed25519")
        == 0o600
    )
    key = host.text("/var/lib/vgpuctl-controller/.ssh/id_ed25519")
    assert "User=vgpuctl-controller\n" in host.text(f"/etc/systemd/system/{SERVICE}")
    again = host.role("controller")
    assert (again.status, again.changed) == (0, []), again.output
    assert host.role("controller", "--check").changed == []

    listening = host.role("controller", controller_listen="127.0.0.1:8443")
    assert names(listening) == {"Write what it runs with", "Restart a controller that ran with other files"}
    assert (
        host.text("/etc/vgpuctl/controller.token").strip(),
        host.text("/var/lib/vgpuctl-controller/.ssh/id_ed25519"),
    ) == (secret, key)
    assert host.fleet(controller="http://127.0.0.1:8443", token_file="/etc/vgpuctl/controller.token")["hosts"] == []

    _assert_the_host_is_set_up_and_goes_again(host)


def _assert_the_host_is_set_up_and_goes_again(host: FleetHost) -> None:
    assert host.play({"ansible.builtin.command": {"argv": ["/fake/start-agent"]}}).status == 0
    before = host.fleet(), host.text("/etc/passwd"), (host.root / "etc/ssh/sshd_config.d/vgpuctl.conf").exists()
    checked = host.role("fleet_host", "--check", "--diff", **FLEET)
    assert checked.status == 0, checked.output
    after = host.fleet(), host.text("/etc/passwd"), (host.root / "etc/ssh/sshd_config.d/vgpuctl.conf").exists()
    assert after == before
    first = host.role("fleet_host", **FLEET)
    assert first.status == 0, first.output
    assert names(checked) | {"Register the host", "Reload sshd"} == names(first)
    assert "reload ssh.service" in host.text("/fake/done").splitlines()
    (line,) = host.text("/var/lib/vgpuctl-fleet/.ssh/authorized_keys").splitlines()
    assert line.startswith('from="127.0.0.1",command="vgpuctl agent dial",restrict ssh-ed25519 AAAA')
    assert line.split()[-1] in host.text("/var/lib/vgpuctl-controller/.ssh/id_ed25519.pub")
    (fleet_host,) = host.fleet()["hosts"]
    assert (fleet_host["address"], fleet_host["labels"], fleet_host["state"]) == (
        "ssh://fleet@127.0.0.1",
        {"site": "berlin"},
        "active",
    )
    assert fleet_host["machine_id"] is not None
    again = host.role("fleet_host", **FLEET)
    assert (again.status, again.changed) == (0, []), again.output
    assert host.role("fleet_host", "--check", **FLEET).changed == []

    more = {**FLEET, "fleet_host_allow": {"folders": ["/srv/more"]}}
    assert names(host.role("fleet_host", **more)) == {"Give the account its rights in host.yaml"}
    (shown,) = host.play({"ansible.builtin.command": {"argv": ["vgpuctl", "export"]}}).tasks
    assert "folders: [/srv/images, /srv/more]" in shown.result["stdout"]
    assert "fleet: fleet" in shown.result["stdout"]

    absent = {**FLEET, "fleet_host_state": "absent"}
    checked = host.role("fleet_host", "--check", **absent)
    assert host.fleet()["hosts"] != []
    gone = host.role("fleet_host", **absent)
    assert (gone.status, names(checked)) == (0, names(gone)), gone.output
    assert host.fleet()["hosts"] == []
    assert not (host.root / "var/lib/vgpuctl-fleet").exists()
    assert not (host.root / "etc/ssh/sshd_config.d/vgpuctl.conf").exists()
    assert "fleet:" not in host.text("/etc/passwd")
    assert host.role("fleet_host", **absent).changed == []


def test_a_database_of_postgresql_has_its_tables_before_the_controller_starts(host: FleetHost) -> None:
    assert host.play({"ansible.builtin.command": {"argv": ["/fake/start-postgresql"]}}).status == 0
    url = "postgresql://fleet:hidden-word@127.0.0.1/fleet"
    first = host.role("controller", "-vvv", "--diff", controller_database=url, controller_token_name="")
    assert first.status == 0, first.output
    assert names(first) >= {"Ask whether the tables are those of this version", "Make or upgrade the tables"}
    assert "hidden-word" not in first.output
    assert (host.text("/etc/vgpuctl/database"), mode(host, "/etc/vgpuctl/database")) == (f"{url}\n", 0o600)
    assert host.fleet(gather="hosts")["hosts"] == []
    assert not (host.root / "etc/vgpuctl/controller.token").exists()
    assert not (host.root / "var/lib/vgpuctl-controller/fleet.db").exists()
    again = host.role("controller", controller_database=url, controller_token_name="")
    assert (again.status, again.changed) == (0, []), again.output


def test_what_is_wrong_is_refused_before_any_change(host: FleetHost) -> None:
    before = host.layer()
    for variables in (
        {"controller_listen": "0.0.0.0:8443"},
        {"controller_listen": "8443"},
        {"controller_tls_key": "/etc/hosts"},
        {
            "controller_listen": "0.0.0.0:8443",
            "controller_tls_key": "/none.key",
            "controller_tls_certificate": "/none.pem",
        },
    ):
        (refused,) = host.role("controller", **variables).failed
        assert "one that is not of loopback needs both files" in refused.result["msg"], refused.result
    ran = host.role("controller", "-vvv", controller_database="mysql://fleet:hidden-word@db/fleet")
    assert "hidden-word" not in ran.output
    (refused,) = ran.failed
    assert "is no URL like postgresql://" in refused.result["msg"]
    (refused,) = host.role("fleet_host", **{**FLEET, "fleet_host_from": ['10.0.0.1",command="sh']}).failed
    assert "the addresses from which controllers log in" in refused.result["msg"]
    assert host.layer() == before
    (no_agent,) = host.role("fleet_host", **FLEET).failed
    assert "vgpuctl install-host --agent" in no_agent.result["msg"]
    assert host.layer() == before
