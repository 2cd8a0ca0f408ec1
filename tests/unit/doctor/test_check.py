# SPDX-License-Identifier: Apache-2.0
"""The building blocks of checks."""

from __future__ import annotations

import pytest

from tests.unit.doctor.check_results import check_of
from tests.values import snapshot
from vgpuctl.doctor.check import CheckContext, Finding, Verdict, ok, parse_version, require_snapshot


@pytest.mark.parametrize(
    ("text", "numbers"), [("6.8.0-45-generic\n", (6, 8, 0)), ("6.12", (6, 12)), ("5.14.x", (5, 14)), ("", ())]
)
def test_a_version_begins_with_its_numbers(text, numbers):
    assert parse_version(text) == numbers


def test_an_unreadable_host_is_unknown_and_not_ok():
    judge = require_snapshot(lambda observed, seen: ok())
    assert judge(CheckContext(problem="no right")) == Finding(Verdict.UNKNOWN, ("no right",))
    assert judge(CheckContext(snapshot=snapshot())).verdict is Verdict.OK


def test_a_file_that_the_check_did_not_ask_for_is_a_mistake():
    with pytest.raises(KeyError):
        check_of("iommu").run(CheckContext())
