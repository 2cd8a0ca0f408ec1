"""A user's way through a desktop: L2 is the guest, with the real helper, systemd-logind and PAM.

The controller and the agent, on L1, are the real ones. The agent's host is simulated: the channel of its VM leads to
L2's virtio port, and where the VM's disk is made again, L2 goes back to the state of its image. What refresh-vm does to
disks is in test_refresh.py.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.agent.guest_network import GuestNetwork, running_with_guests
from tests.controller.conftest import add_image, add_pool
from tests.guests.helper import listen_for
from tests.lab.errors import LabError
from tests.lab.machine import Lab
from vgpuctl.agent import guest_helpers, helper_link
from vgpuctl.controller.clock import ControllerClock
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.engine import Engine, connect_host
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import Desktop, FleetCaller, Role
from vgpuctl.sim.host import open_host as open_sim

ADMIN = FleetCaller("test", Role.ADMIN)
HOST = "sim:a100-40"
NAME = "desk-1"
SECONDS = 240.0
IMAGE_STATE = "desktop-image"
SERVICE = "/etc/pam.d/lightdm"
"""A service through which people log on; here with what the lab's `vgpulab-session` has."""
LOG_ON = "systemd-run --quiet --collect --unit desk-{user} --uid {user} -p PAMName=lightdm -p Type=exec {run}"
LEAVE_A_FILE = "sh -c 'echo mine > ~/left; sleep 600'"
PREPARE = f"""set -e
vgpuctl print-helper > /root/helper.py && python3 /root/helper.py install
for user in ada bob eve; do useradd --create-home $user; done
cp /etc/pam.d/vgpulab-session {SERVICE}
grep pam_access.so /etc/pam.d/vgpulab-session > /etc/pam.d/unseen
"""


class OffsetClock(ControllerClock):
    """This machine's time, and more."""

    offset = 0.0

    def now(self) -> float:
        return super().now() + self.offset


class Site:
    """A controller with one desktop, whose guest is L2."""

    def __init__(
        self, lab: Lab, store: Store, clock: OffsetClock, service: FleetService, network: GuestNetwork
    ) -> None:
        self.lab = lab
        self.network = network
        self.store = store
        self.clock = clock
        self.service = service
        self.problem: BaseException | None = None
        self.refreshes = 0

    @property
    def row(self) -> Desktop:
        return self.store.desktops.find(NAME)

    def phase(self) -> str:
        return self.service.show_desktop(ADMIN, NAME).data.phase

    def until(self, condition: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
        end = time.monotonic() + seconds
        while not condition():
            assert self.problem is None, f"the guest's disk was not made again: {self.problem}"
            assert time.monotonic() < end, f"not within {seconds:g} s: {what}; {self.service.show_desktop(ADMIN, NAME)}"
            time.sleep(0.1)

    def until_ready(self) -> None:
        self.until(lambda: self.phase() == "ready", "a desktop that is ready")

    def assign(self, user: str) -> None:
        self.service.assign(ADMIN, "office", user)
        self.until(lambda: self.row.handed_out, f"{user}'s assignment")

    def users(self) -> tuple[str, ...] | None:
        return None if self.row.report is None else self.row.report.guest_users

    def log_on(self, user: str, run: str = LEAVE_A_FILE, service: str = "lightdm") -> bool:
        """Begin a session; return whether PAM allowed it."""
        words = LOG_ON.format(user=user, run=run).replace("PAMName=lightdm", f"PAMName={service}")
        started = self.lab.run(words, check=False).returncode == 0
        return started and self.lab.run(f"systemctl is-active desk-{user}", check=False).returncode == 0

    def log_off(self, user: str) -> None:
        self.lab.run(f"systemctl stop desk-{user}")

    def left_by(self, user: str) -> str:
        return self.lab.run(f"cat /home/{user}/left", check=False).stdout.strip()

    def stays(self, times: int = 3) -> None:
        """Assert that an hour, and some more looks at it, change nothing about whose desktop it is."""
        before = (self.row.user, self.row.generation)
        self.clock.offset += 3600
        for _ in range(times):
            seen = self.store.hosts.find("gpu01").seen_at or 0.0
            self.until(lambda seen=seen: (self.store.hosts.find("gpu01").seen_at or 0.0) > seen, "another look")
            self.clock.offset += 60
        assert (self.row.user, self.row.generation) == before
        assert self.row.report is not None
        assert (self.row.report.dirty, self.row.report.user) == (True, self.row.user)


class Bridge(threading.Thread):
    """Joins the channel of the simulated VM to L2's virtio port, for each time that the VM runs."""

    def __init__(self, site: Site, listening: socket.socket) -> None:
        super().__init__(daemon=True)
        self._site = site
        self._listening = listening
        self._generation: int | None = None
        self.is_over = False

    def run(self) -> None:
        self._listening.settimeout(0.2)
        while not self.is_over:
            with suppress(TimeoutError):
                host_end, _ = self._listening.accept()
                with host_end:
                    try:
                        self._serve(host_end)
                    except (OSError, LabError) as error:
                        self._site.problem = error
                        return

    def _serve(self, host_end: socket.socket) -> None:
        row = self._site.row
        if self._generation not in (None, row.generation) and row.user is None:
            self._site.lab.load(IMAGE_STATE)
            self._site.refreshes += 1
        self._generation = row.generation
        with socket.socket(socket.AF_UNIX) as guest_end:
            guest_end.connect(str(self._site.lab.work / "helper"))
            ends = {host_end: guest_end, guest_end: host_end}
            while not self.is_over:
                for end in select.select([*ends], [], [], 0.2)[0]:
                    try:
                        data = end.recv(4096)
                    except ConnectionError:
                        data = b""
                    if not data:
                        return
                    ends[end].sendall(data)


@contextmanager
def desktop_in(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: str = "", **spec: object
) -> Iterator[Site]:
    """Yield a controller whose only desktop is L2. `prepare`: makes its image, after PREPARE."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    monkeypatch.delenv("VGPUCTL_HOST", raising=False)
    monkeypatch.setattr(helper_link, "ANSWER_SECONDS", SECONDS)  # an emulated processor, and others on the machine
    lab.run(PREPARE + prepare)
    lab.save(IMAGE_STATE)
    url, clock = f"sqlite:///{tmp_path}/fleet.db", OffsetClock()
    upgrade(url)
    store = open_store(url, clock=clock)
    engine = Engine(store)
    with running_with_guests(HOST, tmp_path) as (agent, network):
        service = FleetService(store, connect_host)
        service.add_host(ADMIN, "gpu01", f"agent:{agent.path}")
        add_image(store)
        site = Site(lab, store, clock, service, network)
        engine.start()
        try:
            add_pool(store, names="desk-{}", maximum=1, spare=1, **spec)
            site.until(lambda: bool(store.desktops.list()), "the desktop's row")
            state = open_sim(HOST.removeprefix("sim:")).host_file.parent.parent.parent
            with listen_for(state, site.row.id) as listening:
                bridge = Bridge(site, listening)
                bridge.start()
                try:
                    yield site
                finally:
                    bridge.is_over = True
                    bridge.join(30)
        finally:
            engine.stop()
            store.close()


@pytest.mark.quick
@pytest.mark.deadline(900)
def test_a_user_leaves_nothing_to_the_next_one(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with desktop_in(lab, tmp_path, monkeypatch, logon="domain") as site:
        site.until_ready()
        assert not site.log_on("eve"), "a spare lets nobody in"
        site.assign("ada")
        assert not site.log_on("eve")
        assert site.log_on("ada")
        site.until(lambda: site.users() == ("ada",), "her log-on")
        assert site.left_by("ada") == "mine"
        site.log_off("ada")
        site.until(lambda: site.users() == (), "her log-off")
        site.clock.offset += 60
        site.until_ready()
        assert (site.row.user, site.left_by("ada")) == (None, "")
        site.assign("bob")
        assert not site.log_on("ada"), "it is bob's"
        assert site.log_on("bob")


@pytest.mark.deadline(900)
def test_nothing_is_refreshed_under_a_user_while_the_helper_is_dead(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desktop_in(lab, tmp_path, monkeypatch, logon="domain") as site:
        site.until_ready()
        site.assign("ada")
        assert site.log_on("ada")
        site.until(lambda: site.users() == ("ada",), "her log-on")
        lab.run("mv /usr/local/sbin/vgpuctl-guest /root/ && systemctl kill --signal KILL vgpuctl-guest")
        lab.wait_until("! systemctl is-active vgpuctl-guest")
        with monkeypatch.context() as short:
            short.setattr(guest_helpers, "SILENT_SECONDS", 1.0)
            site.until(lambda: site.users() is None, "its silence")
        site.stays()
        assert site.left_by("ada") == "mine"
        site.log_off("ada")
        site.stays()
        assert site.left_by("ada") == "mine", "whether she has logged off is not known"
        lab.run("mv /root/vgpuctl-guest /usr/local/sbin/ && systemctl restart vgpuctl-guest")
        site.until(lambda: site.users() == () or site.row.user is None, "the helper again")
        site.clock.offset += 60
        site.until_ready()
        assert site.left_by("ada") == ""


@pytest.mark.deadline(900)
def test_nothing_is_refreshed_where_log_ons_are_not_seen(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with desktop_in(lab, tmp_path, monkeypatch) as site:
        site.until_ready()
        site.assign("ada")
        assert site.log_on("ada", service="unseen"), "a session without logind"
        site.until(lambda: site.left_by("ada") == "mine", "her file")
        site.until(lambda: site.users() == (), "the helper, which sees nobody")
        site.stays()
        assert site.left_by("ada") == "mine"
        site.until(lambda: site.phase() == "assigned", "a look after the hour")
        assert "no log-on was seen in 30 minutes" in (site.service.show_desktop(ADMIN, NAME).data.why or "")
        site.service.release(ADMIN, NAME)
        site.until(lambda: site.refreshes == 1, "its refresh")
        assert site.left_by("ada") == ""


@pytest.mark.deadline(900)
def test_a_local_account_logs_on_with_its_password_and_must_change_it(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def log_on(*lines: str) -> str:
        """Log on as cleo by su, and answer what it asks; return who she is then."""
        text = "".join(f"{line}\n" for line in lines)
        printed = lab.run("runuser -u bob -- su cleo -c id\\ -un", stdin=text, check=False).stdout
        return printed.split()[-1] if printed.endswith("cleo\n") else ""

    with desktop_in(lab, tmp_path, monkeypatch, logon="local") as site:
        site.until_ready()
        given = site.service.assign(ADMIN, "office", "cleo")
        password = given.data.password
        assert password is not None, given.warnings
        assert lab.run("passwd --status cleo").stdout.split()[1:3] == ["P", "1970-01-01"]
        assert log_on("another-password-1") == ""
        new = "Correct-Horse-27-staple"
        assert log_on(password, password, new, new) == "cleo"
        assert (log_on(password), log_on(new)) == ("", "cleo")
        searched = f"grep -rl -e {password} /etc /var/log /var/lib /run /home /root 2>/dev/null; "
        searched += f"journalctl --no-pager | grep -c -e {password}"
        assert lab.run(searched, check=False).stdout.split() == ["0"]
        again = site.service.assign(ADMIN, "office", "cleo", new_password=True).data.password
        assert again not in (None, password)
        assert log_on(new) == ""
        assert lab.run("passwd --status cleo").stdout.split()[2] == "1970-01-01"
        other = site.service.assign(ADMIN, "office", "cleo").data
        assert (other.password, other.user) == (None, "cleo")
