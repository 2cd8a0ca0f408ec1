"""The rule for a dead L2, with a fake Lab: the plugin repeats a test after a death, never after a failed assertion."""

from __future__ import annotations

import pytest

from tests.lab import recipe

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.quick

FAKE = """
import pytest

from tests.lab import recipe
from tests.lab.errors import LabDied
runs = []

@pytest.fixture
def lab():
    return None
"""


def _run(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makepyfile(FAKE + body)
    return pytester.runpytest_inprocess("-p", "tests.lab.plugin", "-p", "no:cacheprovider")


def test_a_test_whose_host_died_runs_again(pytester: pytest.Pytester) -> None:
    body = """
def test_it(lab):
    runs.append(1)
    if len(runs) < 3:
        raise LabDied("panic")
"""
    _run(pytester, body).assert_outcomes(passed=1)


def test_the_third_death_is_a_failure(pytester: pytest.Pytester) -> None:
    body = """
def test_it(lab):
    runs.append(1)
    raise LabDied(f"panic {len(runs)}")
"""
    result = _run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*LabDied: panic 3*"])


def test_a_failed_assertion_is_not_run_again(pytester: pytest.Pytester) -> None:
    body = """
def test_it(lab):
    runs.append(1)
    assert len(runs) > 1
"""
    _run(pytester, body).assert_outcomes(failed=1)


def test_a_fixture_whose_host_died_runs_again(pytester: pytest.Pytester) -> None:
    body = """
@pytest.fixture(scope="module")
def prepared():
    runs.append(1)
    if len(runs) == 1:
        raise LabDied("panic")
    return len(runs)

def test_it(lab, prepared):
    assert prepared == 2
"""
    _run(pytester, body).assert_outcomes(passed=1)


def test_a_test_without_a_lab_is_left_alone(pytester: pytest.Pytester) -> None:
    body = """
def test_it():
    runs.append(1)
    assert len(runs) > 1
"""
    _run(pytester, body).assert_outcomes(failed=1)


def test_a_lab_that_cannot_be_built_fails_the_run(pytester: pytest.Pytester) -> None:
    body = """
from tests.lab.errors import LabError

@pytest.fixture
def lab():
    raise LabError("no mmdebstrap")

def test_it(lab):
    pass
"""
    _run(pytester, body).assert_outcomes(errors=1)


def test_a_test_past_its_deadline_fails(pytester: pytest.Pytester) -> None:
    body = """
import time

@pytest.mark.deadline(1)
def test_it(lab):
    time.sleep(30)
"""
    result = _run(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*DeadlineExceeded: not done after 1 s*"])


def test_one_worker_runs_all_tests_of_the_second_host(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(recipe.HERE.parent.parent))
    pytester.makepyfile(
        FAKE
        + """
@pytest.fixture
def lab_apparmor():
    return None

@pytest.mark.parametrize("number", range(6))
def test_it(lab_apparmor, number):
    pass
"""
    )
    words = ("-p", "tests.lab.plugin", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup", "-v")
    result = pytester.runpytest_subprocess(*words)
    result.assert_outcomes(passed=6)
    assert result.stdout.str().count("@apparmor") >= 6
    assert len({line.split("]")[0] for line in result.outlines if line.startswith("[gw")}) == 1
