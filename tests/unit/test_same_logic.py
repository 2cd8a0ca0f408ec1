# SPDX-License-Identifier: Apache-2.0
"""The comparison of revisions: a renaming stays invisible, every other change is listed."""

from __future__ import annotations

import pytest

from tests import same_logic

OLD = {"a.py": 'def f(found, wish):\n    """Say it."""\n    return g(found.size, wish, key=1, text="x y")\n'}


def _differs(text: str, *, lenient: bool = False) -> bool:
    return same_logic._compare_logic(OLD, {"b.py": text}, lenient=lenient)


def test_another_name_module_or_docstring_is_no_difference() -> None:
    assert not _differs("def fits(gpus, request):\n    return h(gpus.count, request, word=1, text='x y')\n")


@pytest.mark.parametrize(
    "body",
    [
        'g(wish.size, found, key=1, text="x y")',
        'g(found.size, found, key=1, text="x y")',
        'g(found.size, wish, key=2, text="x y")',
        'g(found.size, wish, key=1, text="y x")',
        'g(found.size, wish, key=1, text=f"x y")',
        "g(found.size, wish, key=1)",
    ],
)
def test_whatever_else_changes_is_a_difference(body: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert _differs(f"def f(found, wish):\n    return {body}\n")
    assert capsys.readouterr().out == "- a.py::f\n+ b.py::f\n"
