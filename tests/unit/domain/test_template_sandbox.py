# SPDX-License-Identifier: Apache-2.0
"""The work of one rendering is counted, so no template runs or grows without end; the built-in templates."""

from __future__ import annotations

import threading

import pytest

from tests.unit.domain.designs import GOLDEN
from vgpuctl.domain.render import (
    MAX_TEXT_LENGTH,
    MAX_WORK,
    compile_template,
    list_builtin_templates,
    read_builtin_template,
    render_domain,
)
from vgpuctl.errors import InvalidInput

DESIGN = next(iter(GOLDEN.values()))


def rendered(text: str) -> str:
    return render_domain(DESIGN(), compile_template(f"<domain>{text}</domain>"))


WORK = {
    "nested loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "a loop of loops over the VM": "{% for a in range(400) %}{% for b in range(400) %}{% for d in vm.boot %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "a range in a loop": "{% for a in range(9999) %}{{ range(9999) | sum }}{% endfor %}",
    "a loop over the same list": "{% set l = range(9999) | list %}{% for a in l %}"
    "{% for b in l %}{% endfor %}{% endfor %}",
    "loop variables": "{% for a in range(999) %}{% for b in range(999) %}{{ loop.index }}{% endfor %}{% endfor %}",
    "a filtered loop": "{% for a in range(999) %}{% for b in range(999) if b %}{% endfor %}{% endfor %}",
    "macros that call each other": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}"
    "{{ m(60) }}",
    "filters in filters": "{% for a in range(9999) %}"
    + "{{ 'x' | upper | lower | title | trim | string }}" * 3
    + "{% endfor %}",
}
GROWTH = {
    "a joined text": "{% set n = namespace(t='xy') %}{% for a in range(99) %}{% set n.t = n.t ~ n.t %}{% endfor %}",
    "an added text": "{% set n = namespace(t='xy') %}{% for a in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "a list": "{% set n = namespace(t=[1]) %}{% for a in range(99) %}{% set n.t = n.t + n.t %}{% endfor %}",
    "a replaced text": "{% set n = namespace(t='xx') %}{% for a in range(9) %}"
    "{% set n.t = n.t | replace('x', n.t) %}{% endfor %}",
    "a joined list": "{{ range(9999) | list | join('" + "x" * 999 + "') }}",
    "a method that replaces": "{{ ('x' | center(999)).replace(' ', 'x' | center(999)) }}",
    "a centred text": "{{ 'x' | center(9999999999) }}",
    "an indented text": "{{ 'x\\nx' | indent(9999999999) }}",
    "a filled list": "{{ [1] | batch(9999999999, 0) | list }}",
    "a method": "{{ 'x'.ljust(9999999999) }}",
    "a format": "{{ '%9999999999d' % 1 }}",
    "a format with a width": "{{ '%*d' | format(9999999999, 1) }}",
    "a format method": "{{ '{:9999999999}'.format(1) }}",
}


@pytest.mark.parametrize("name", WORK)
def test_work_ends_at_its_limit(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"it does too much: more than {MAX_WORK} turns") as caught:
        rendered(WORK[name])
    assert caught.value.facts["template"] == "vm.xml.j2"


@pytest.mark.parametrize("name", GROWTH)
def test_growth_ends_at_its_limit(name: str) -> None:
    with pytest.raises(InvalidInput, match=rf"at most {MAX_TEXT_LENGTH} is allowed|so large a width"):
        rendered(GROWTH[name])


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("{% for a in range(4096) %}{{ a }}{% endfor %}", "0123"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }},{{ loop.last }}{% endfor %}", "a=1,True"),
        ("{% for a in [] %}x{% else %}none{% endfor %}", "none"),
        ("{% for a in [[1, [2, []]]] recursive %}{{ a[0] }}{% endfor %}", "1"),
        ("{{ '%02x' % 10 }}{{ '%s' | format('a' ~ 'b') }}", "0aab"),
        ("{{ 7 % 4 }}{{ 1 + 2 }}{{ 3 * 4 }}{{ [1] + [2] }}", "3312[1, 2]"),
        ("{{ ['b', 'a'] | sort | join(',') }}{{ 'x' | indent(2) }}", "a,bx"),
    ],
)
def test_what_templates_use_still_works(text: str, shown: str) -> None:
    assert shown in rendered(text)


def test_each_rendering_and_each_thread_counts_for_itself() -> None:
    template = compile_template("<domain>{% for a in range(30000) %}{% endfor %}</domain>")
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(render_domain(DESIGN(), template))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [render_domain(DESIGN(), template) for _ in range(4)] == results


def test_the_vm_template_is_built_in() -> None:
    text = read_builtin_template("vm")
    assert "<domain" in text
    assert list_builtin_templates() == ("vm",)


@pytest.mark.parametrize("name", ["", "nothing", "../templates/vm", "vm.xml.j2", "/etc/passwd", "vm\n", "vm/"])
def test_nothing_else_is_read(name: str) -> None:
    assert read_builtin_template(name) is None
