# SPDX-License-Identifier: Apache-2.0
"""The building blocks of checks, and their list: ids, the errors that each explains, the document that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tables import check_table
from tests.unit.doctor.check_results import check_of
from tests.values import snapshot
from vgpuctl.doctor import CHECKS, find_explaining_checks, select_checks
from vgpuctl.doctor.check import CheckContext, Finding, Verdict, ok, parse_version, require_snapshot, worst_verdict
from vgpuctl.errors import NotFound, VgpuctlError


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


ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "reference" / "doctor.md"


def test_the_document_lists_every_check():
    check_table(
        PAGE,
        ("check", "subject", "what it looks at", "errors it explains"),
        ((f"`{c.id}`", c.title, c.looks_at, ", ".join(f"`{word}`" for word in c.explains) or "-") for c in CHECKS),
    )


def test_ids_are_short_words_and_each_is_there_once():
    ids = [check.id for check in CHECKS]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in ids)


@pytest.mark.parametrize("check", CHECKS, ids=[check.id for check in CHECKS])
def test_a_check_is_named_by_its_subject_and_not_by_what_may_be_false(check):
    """A title stands beside `fail` too: "fail  the IOMMU is on" reads as its opposite."""
    claims = r"\b(is|are|was|were|has|have|can|runs?|exists?|matches|match|answers|logged no|decides|creates no)\b"
    main_clause = re.split(r"\b(?:that|who|what|which|of what)\b", check.title)[0]
    assert not re.search(claims, main_clause)
    assert not re.match(r"(no|nothing|every|each)\b", check.title)


def test_a_check_explains_existing_error_codes():
    kinds: list[type[VgpuctlError]] = [VgpuctlError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    codes = {kind.code for kind in kinds}
    sources = "\n".join(path.read_text() for path in (ROOT / "vgpuctl").rglob("*.py"))
    lacking = set(re.findall(r'check="([a-z-]+)"', sources))
    assert {word for check in CHECKS for word in check.explains} <= codes | lacking


def test_the_checks_are_chosen_by_id_in_the_order_of_the_list():
    assert [check.id for check in select_checks(("libvirt", "iommu"))] == ["iommu", "libvirt"]
    assert select_checks(()) == CHECKS


@pytest.mark.parametrize(
    ("typed", "hint"), [("iomu", "did you mean iommu?"), ("xyz", "vgpuctl doctor lists the checks")]
)
def test_an_unknown_check_is_refused_with_the_nearest(typed, hint):
    with pytest.raises(NotFound) as caught:
        select_checks((typed,))
    assert caught.value.hint == hint


def test_an_error_is_explained_by_its_code_or_by_what_is_lacking():
    assert [check.id for check in find_explaining_checks("host-cannot", "iommu")] == ["iommu"]
    assert "stuck-writes" in [check.id for check in find_explaining_checks("stuck", None)]
    assert find_explaining_checks("usage", None) == ()


def test_a_host_has_its_worst_verdict():
    result = [Finding(verdict) for verdict in Verdict]
    assert worst_verdict(tuple(result)) is Verdict.FAIL
    assert worst_verdict((Finding(Verdict.OK), Finding(Verdict.UNKNOWN))) is Verdict.UNKNOWN
    assert worst_verdict((Finding(Verdict.OK), Finding(Verdict.NOT_APPLICABLE))) is Verdict.OK
    assert worst_verdict(()) is Verdict.NOT_APPLICABLE
