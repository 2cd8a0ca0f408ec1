# SPDX-License-Identifier: Apache-2.0
"""An hour of a fleet in some seconds: a pool fills, users come and go, a new image is rolled out, a host dies.

The controller's time is real while hosts work. While nothing is to be done it goes on as fast as the hosts can be
looked at, so that no host seems silent that is not.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime

from vgpuctl.controller.clock import SteppedClock
from vgpuctl.controller.database.store import Store, open_store, upgrade
from vgpuctl.controller.demo.fleet import CALLER, FIRST_IMAGE, POOL, SECOND_IMAGE, SPEC, add_fleet
from vgpuctl.controller.demo.hosts import IMAGES, DemoGuest, DemoHost, demo_hosts
from vgpuctl.controller.engine import Engine
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import Desktop
from vgpuctl.errors import Failed
from vgpuctl.model.controller_service import DATABASE_FILE
from vgpuctl.model.results.fleet import DemoEventResult, DesktopResult

BEGIN = datetime(2026, 1, 5, 7, 40, tzinfo=UTC)
"""A Monday."""
SCHEDULE = {"days": "weekdays", "from": "08:00", "until": "18:00", "spare": 4, "lead": "5m"}
ROLL_OUT = {"image": SECOND_IMAGE, "maximum": 10}
STEP_SECONDS, POLL_SECONDS = 4.0, 0.01
LATE_SECONDS = 38.0
"""Time is real while a host was not looked at for so long; an idle one is noted as seen every 35 seconds."""
MOST_SECONDS = 120.0
"""What does not happen in so long, by this machine's time, does not happen."""

Tell = Callable[[DemoEventResult], None]


def tell_story(tell: Tell) -> None:
    """Have the hour happen, and tell of it.

    Raises:
        VgpuctlError: a host cannot begin, or something does not happen.
    """
    with demo_hosts() as (directory, hosts):
        url = f"sqlite:///{directory / DATABASE_FILE}"
        upgrade(url)
        clock = SteppedClock(BEGIN.timestamp())
        store = open_store(url, clock=clock)
        engine = Engine(store)
        story = _Story(store, hosts, clock, tell)
        try:
            service = add_fleet(store, hosts.values(), schedules=[SCHEDULE])
            engine.start()
            _Hour(story, service).run()
        finally:
            story.close()
            engine.stop()
            store.close()


class _Story:
    """The time, who is logged on, and what is told."""

    def __init__(self, store: Store, hosts: dict[str, DemoHost], clock: SteppedClock, tell: Tell) -> None:
        self.store = store
        self.hosts = hosts
        self._clock = clock
        self._tell = tell
        self._guests: dict[str, DemoGuest] = {}

    def say(self, text: str) -> None:
        """Tell what happens now."""
        self._tell(DemoEventResult(datetime.fromtimestamp(self._clock.now(), UTC).strftime("%H:%M"), text))

    def wait_for(self, what: str, condition: Callable[[], bool], *, fast: bool = False) -> None:
        """Let time go on until something holds; as it does for people, or `fast`.

        Raises:
            Failed: it does not come to hold.
        """
        start = before = time.monotonic()
        while not condition():
            time.sleep(POLL_SECONDS)
            now = time.monotonic()
            if now - start > MOST_SECONDS:
                raise Failed(f"the demonstration waited {MOST_SECONDS:g} s in vain for {what}")
            self._clock.advance(STEP_SECONDS if fast and self._is_in_time() else now - before)
            before = now

    def pass_time(self, minutes: float) -> None:
        """Let some minutes go by."""
        end = self._clock.now() + 60 * minutes
        self.wait_for(f"{minutes:g} minutes to go by", lambda: self._clock.now() >= end, fast=True)

    def log_on(self, desktop: Desktop) -> None:
        """Have a desktop's user log on in its guest."""
        assert desktop.user is not None
        self._guest(desktop).log_on(desktop.user)

    def log_off(self, desktop: Desktop) -> None:
        """Have nobody logged on in a desktop's guest."""
        self._guest(desktop).log_on()

    def close(self) -> None:
        """End all guests."""
        for guest in self._guests.values():
            guest.close()

    def host_of(self, desktop: Desktop) -> DemoHost:
        """Return the host of a desktop that has one."""
        return next(self.hosts[one.name] for one in self.store.hosts.list() if one.id == desktop.host_id)

    def _guest(self, desktop: Desktop) -> DemoGuest:
        if desktop.id not in self._guests:
            self._guests[desktop.id] = self.host_of(desktop).guest(desktop.id)
        return self._guests[desktop.id]

    def _is_in_time(self) -> bool:
        """Return whether every host that runs was looked at a short time ago."""
        now = self._clock.now()
        live = [host for host in self.store.hosts.list() if self.hosts[host.name].is_running]
        return all(host.seen_at is None or now - host.seen_at < LATE_SECONDS for host in live)


class _Hour:
    """What happens in the hour."""

    def __init__(self, story: _Story, service: FleetService) -> None:
        self._story = story
        self._service = service

    def run(self) -> None:
        """Have it happen."""
        self._fill()
        self._begin_work()
        self._end_work()
        self._roll_out()
        self._lose_host()
        self._sum_up()

    def _fill(self) -> None:
        self._story.say(f"4 hosts with an A100 each; the pool {POOL} wants 2 desktops ready, and 4 from 08:00 on")
        self._wait_ready(2)
        self._story.say(f"ready: {self._ready_names()}")

    def _begin_work(self) -> None:
        self._begin_session("ada")
        self._begin_session("bob")
        self._wait_ready(4, fast=True)
        self._story.say(f"the schedule from 08:00 on begins 5 minutes early; ready: {self._ready_names()}")
        self._story.pass_time(8)
        self._begin_session("eve")
        self._story.say(f"the pool has its maximum of {SPEC['maximum']} desktops; ready: {self._ready_names()}")
        self._story.pass_time(4)

    def _end_work(self) -> None:
        desktop = self._desktop_of("ada")
        self._story.log_off(desktop)
        self._story.say(f"ada logs off from {desktop.name}")
        self._story.wait_for("the release", lambda: self._find_name(desktop.name).user is None, fast=True)
        self._story.say(f"nobody has been logged on there for 30 s: {desktop.name} is refreshed for the next user")
        self._wait_ready(4)
        self._story.say(f"ready: {self._ready_names()}")
        self._story.pass_time(5)

    def _roll_out(self) -> None:
        self._service.ensure_pool(CALLER, POOL, {**SPEC, **ROLL_OUT, "schedules": [SCHEDULE]})
        self._story.say(
            f"the image {SECOND_IMAGE} replaces {FIRST_IMAGE}, in at most 2 desktops at a time; the maximum is 10 now"
        )
        self._story.wait_for("the new image", self._is_rolled_out)
        bob = self._desktop_of("bob")
        self._story.say(f"{self._ready_names()} have it; {bob.name} gets it when bob has logged off")
        self._story.pass_time(5)

    def _lose_host(self) -> None:
        desktop = self._desktop_of("bob")
        host = self._story.host_of(desktop)
        host.kill()
        self._story.log_off(desktop)
        self._story.say(f"{host.name} dies, and bob's {desktop.name} with it")
        self._wait_phase(desktop.name, "unknown", fast=True)
        self._story.say(f"{host.name} has not answered for 45 s: its desktops are unknown, and nothing new goes there")
        other = self._begin_session("bob")
        self._story.pass_time(11)
        self._wait_ready(4, fast=True)
        self._story.say(f"after 10 minutes its spare desktops are replaced; ready: {self._ready_names()}")
        host.start()
        host.wait_until_ready()
        self._story.say(f"{host.name} answers again, and is looked at before anything is done there")
        self._story.wait_for("the release", lambda: len(self._desktops_of("bob")) == 1)
        self._story.say(f"bob keeps {other}, where he is logged on; {desktop.name} is nobody's any more")
        self._story.wait_for("the surplus to go", self._is_settled, fast=True)
        self._story.say(f"what is too much is deleted; ready: {self._ready_names()}")

    def _sum_up(self) -> None:
        end = BEGIN.timestamp() + 3600
        self._story.wait_for("the end of the hour", lambda: self._story.store.now() >= end, fast=True)
        pool = self._service.show_pool(CALLER, POOL).data
        count = self._story.store.journal.list()[-1].id
        text = f"{pool.ready} desktops are ready, {pool.assigned} have users; the journal has {count} entries"
        self._story.say(f"an hour is over: {text}")

    def _begin_session(self, user: str) -> str:
        """Give a user a desktop, and have him log on; return its name."""
        name = self._service.assign(CALLER, POOL, user).data.name
        self._story.wait_for(f"the address of {name}", lambda: self._shown(name).address is not None)
        self._story.log_on(self._find_name(name))
        self._wait_phase(name, "connected")
        desktop = self._shown(name)
        self._story.say(f"{user} gets {name} on {desktop.host} at {desktop.address}, and logs on")
        return name

    def _shown(self, name: str) -> DesktopResult:
        return self._service.show_desktop(CALLER, name).data

    def _find_name(self, name: str) -> Desktop:
        return self._story.store.desktops.find(name)

    def _desktop_of(self, user: str) -> Desktop:
        return self._desktops_of(user)[0]

    def _desktops_of(self, user: str) -> tuple[Desktop, ...]:
        return self._story.store.desktops.list(user=user)

    def _rows(self) -> tuple[DesktopResult, ...]:
        return self._service.list_desktops(CALLER).data

    def _phases(self) -> set[str]:
        return {one.phase for one in self._rows()}

    def _ready(self) -> list[str]:
        return [one.name for one in self._rows() if one.phase == "ready"]

    def _ready_names(self) -> str:
        return ", ".join(self._ready())

    def _wait_ready(self, count: int, *, fast: bool = False) -> None:
        self._story.wait_for(f"{count} ready desktops", lambda: len(self._ready()) == count, fast=fast)

    def _wait_phase(self, name: str, phase: str, *, fast: bool = False) -> None:
        self._story.wait_for(f"{name} to be {phase}", lambda: self._shown(name).phase == phase, fast=fast)

    def _is_rolled_out(self) -> bool:
        unused = [one for one in self._story.store.desktops.list() if one.user is None]
        images = {one.report.image for one in unused if one.report is not None}
        return images == {IMAGES[1]} and len(self._ready()) == len(unused)

    def _is_settled(self) -> bool:
        return len(self._ready()) == 4 and not self._phases() - {"ready", "connected", "assigned"}
