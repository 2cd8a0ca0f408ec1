"""The pytest side of the lab: fixtures, a deadline for every lab test, and the rule for an L2 that died.

The emulation is not under test. If L2 itself dies during a test (LabDied), the plugin runs the test again from the
snapshot, at most twice, and reports the number of deaths. It never repeats a failed assertion. A lab that cannot start
fails the run.

With pytest-xdist each worker has its own L2, which needs up to 2 GiB of memory. An L2 has one CPU, so two of them
keep two CPUs busy. With three, each test takes half as long again, and the whole run is hardly faster.

Load it with `pytest_plugins = ["tests.lab.plugin"]` in the root conftest, or as tests/lab/conftest.py does.
"""

from __future__ import annotations

import signal
from collections.abc import Generator, Mapping
from types import FrameType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.lab.errors import LabDied
from tests.lab.machine import Lab
from tests.lab.pair import Pair, ready
from tests.lab.session import Keeper

RERUNS = 2
DEADLINE_SECONDS = 300
SETUP_DEADLINE_SECONDS = 2400
FIXTURES = frozenset({"lab", "lab_session", "lab_apparmor", "pair"})
# Each fixture that starts one more L2, and the group of its tests.
GROUPS = {"lab_apparmor": "apparmor", "pair": "pair"}
CONSOLE_TAIL = 3000

_died = pytest.StashKey[str]()
_deaths = pytest.StashKey[list[str]]()
_keepers = pytest.StashKey[dict[str, Keeper]]()
_used = pytest.StashKey[bool]()


class DeadlineExceeded(Exception):
    """The test did not end in time. This is a test failure; L2 may be fine."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker for tests that need more time."""
    text = f"deadline(seconds): a lab test may take this long, {DEADLINE_SECONDS} without the marker"
    config.addinivalue_line("markers", text)
    config.stash[_deaths] = []
    config.stash[_keepers] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all tests of one more L2 in one worker, as its start is slow. The longest tests come first.

    `tryfirst`: xdist reads the marker.
    """
    for item in items:
        for fixture, group in GROUPS.items():
            if fixture in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_deadline_of, reverse=True)


def _deadline_of(item: pytest.Item) -> int:
    marker = item.get_closest_marker("deadline")
    return int(marker.args[0]) if marker else DEADLINE_SECONDS


def _keeper(config: pytest.Config, flavour: str) -> Keeper:
    return _awake(config, {flavour: flavour})[0]


def _awake(config: pytest.Config, flavours: Mapping[str, str]) -> list[Keeper]:
    """Return the keepers with these names and flavours; let all others rest."""
    keepers = config.stash[_keepers]
    for name, flavour in flavours.items():
        if name not in keepers:
            keepers[name] = Keeper(flavour, config.stash[_deaths])
    for name, keeper in keepers.items():
        if name not in flavours:
            keeper.rest()
    return [keepers[name] for name in flavours]


@pytest.fixture(scope="session")
def lab_session(pytestconfig: pytest.Config) -> Lab:
    """The running L2 with this checkout's vgpuctl; it has the state that the previous test left."""
    return _keeper(pytestconfig, "normal").running()


@pytest.fixture
def lab(lab_session: Lab, pytestconfig: pytest.Config) -> Lab:
    """The L2 in the clean state "session"."""
    return _keeper(pytestconfig, "normal").clean()


@pytest.fixture
def lab_apparmor(pytestconfig: pytest.Config) -> Lab:
    """A second L2 in a clean state, set up as Debian does it: AppArmor enabled, QEMU runs as an unprivileged user."""
    return _keeper(pytestconfig, "apparmor").clean()


@pytest.fixture
def pair(pytestconfig: pytest.Config) -> Pair:
    """Two L2s in a clean state, with a cable between them. VMs can migrate from one to the other."""
    source, target = _awake(pytestconfig, {"normal": "normal", "second": "normal"})
    return ready(source.running(), target.running())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker, report how often its L2 died."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None and session.config.stash[_keepers]:
        output["lab_deaths"] = session.config.stash[_deaths]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collect the reports of the workers."""
    reported = getattr(node, "workeroutput", {}).get("lab_deaths")
    if reported is not None:
        node.config.stash[_deaths].extend(reported)
        node.config.stash[_used] = True


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop all emulators, however the run ends."""
    for keeper in config.stash.get(_keepers, {}).values():
        keeper.stop()


def uses_lab(item: pytest.Item) -> bool:
    """Return whether a test uses a lab fixture, directly or through another fixture."""
    return bool(FIXTURES & set(getattr(item, "fixturenames", ())))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a lab test, and repeat it if L2 died during the test."""
    if not uses_lab(item):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for left in range(RERUNS, -1, -1):
        item.stash[_died] = ""
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        reason = item.stash[_died]
        if not reason:
            break
        item.config.stash[_deaths].append(f"{item.nodeid}: {reason}")
        if left:
            _forget(item)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _forget(item: pytest.Item) -> None:
    """Reset a test for another run: a failed fixture would otherwise raise its cached failure again."""
    info = getattr(item, "_fixtureinfo")  # noqa: B009
    for definitions in info.name2fixturedefs.values():
        for definition in definitions:
            result = definition.cached_result
            if result is not None and result[2] is not None:
                definition.cached_result = None
    getattr(item, "_initrequest")()  # noqa: B009


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, None]:
    """Record a death of L2, and add L2's console output to a failure report."""
    outcome = yield
    if not uses_lab(item) or call.excinfo is None:
        return
    if call.excinfo.errisinstance(LabDied):
        item.stash[_died] = str(call.excinfo.value)
    report: pytest.TestReport = outcome.get_result()
    if report.failed:
        for name, keeper in item.config.stash[_keepers].items():
            tail = keeper.console_text()[-CONSOLE_TAIL:]
            if tail and keeper.awake:
                report.sections.append((f"console of the emulated host ({name})", tail))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Limit the set-up time; the limit is long, because the first set-up may build the whole lab."""
    with _deadline(item, SETUP_DEADLINE_SECONDS):
        yield


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Limit the time of every lab test."""
    with _deadline(item, _deadline_of(item)):
        yield


class _deadline:
    """Raises DeadlineExceeded inside the test, wherever it waits; has no effect on tests without a lab."""

    def __init__(self, item: pytest.Item, seconds: int) -> None:
        self._active = uses_lab(item)
        self._seconds = seconds

    def __enter__(self) -> None:
        if self._active:
            self._before = signal.signal(signal.SIGALRM, self._raise)
            signal.alarm(self._seconds)

    def __exit__(self, *_: object) -> None:
        if self._active:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, self._before)

    def _raise(self, _signal: int, _frame: FrameType | None) -> None:
        raise DeadlineExceeded(f"not done after {self._seconds} s")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print how often L2 died, even if it never did."""
    if not config.stash[_keepers] and not config.stash.get(_used, False):
        return
    deaths = config.stash[_deaths]
    terminalreporter.section("lab")
    terminalreporter.write_line(f"the emulated host died {len(deaths)} times")
    for death in deaths:
        terminalreporter.write_line(f"  {death}")
