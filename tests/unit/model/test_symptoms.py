# SPDX-License-Identifier: Apache-2.0
"""Each row with libvirt's or QEMU's words is in the symptom index, and an error with these words has its remedy."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vgpuctl.doctor import CHECKS
from vgpuctl.model.symptoms import SYMPTOMS, Symptom, find_hint

INDEX = (Path(__file__).parents[3] / "docs/symptoms.md").read_text(encoding="utf-8").splitlines()
EXAMPLES = [(symptom, text) for symptom in SYMPTOMS for text in symptom.examples]


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda symptom: symptom.seen)
def test_the_index_has_the_row(symptom: Symptom) -> None:
    assert INDEX.count(symptom.row) == 1, f"write this line into docs/symptoms.md:\n{symptom.row}"


@pytest.mark.parametrize(("symptom", "text"), EXAMPLES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_error_has_the_remedy_of_its_row(symptom: Symptom, text: str) -> None:
    hint = find_hint(f"cannot start VM web: {text}")
    match = re.search(symptom.words, text, re.IGNORECASE)
    assert match is not None
    assert hint == symptom.hint(match)
    assert not re.search(r"[`{}\[]|\b(NAME|PATH|DOMAIN)\b", hint)


def test_checks_in_remedies_exist() -> None:
    named = [
        check for s in SYMPTOMS for line in re.findall(r"vgpuctl doctor ([a-z -]+)", s.remedy) for check in line.split()
    ]
    assert set(named) <= {check.id for check in CHECKS}


def test_other_words_have_no_hint() -> None:
    assert find_hint("internal error: something else") is None


def test_what_comes_from_an_error_is_quoted_for_a_shell() -> None:
    assert "'a; reboot'" in (find_hint("network 'a; reboot' is not active") or "")
