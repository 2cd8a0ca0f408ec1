# SPDX-License-Identifier: Apache-2.0
"""Settings of a domain: what is written is read, "none" leaves no trace, and a template need not know them."""

from __future__ import annotations

import pytest
from lxml import etree

from tests.unit.domain.designs import vendor_vf
from tests.unit.domain.test_render import TEMPLATE
from vgpuctl.config.arguments import HUGEPAGES_KIB
from vgpuctl.domain.compare import find_differences
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.render import compile_template, render_domain
from vgpuctl.domain.settings import SETTINGS
from vgpuctl.model.vm import VmState
from vgpuctl.value import replace

XML = "<domain><name>vm</name>{}<devices/></domain>"
VALUES = {"hugepages": tuple(HUGEPAGES_KIB)}
"""Values of each setting, beside "none"."""


def read(xml: str) -> dict[str, str]:
    return dict(parse_domain(xml, VmState.STOPPED, "").settings)


def test_each_setting_has_values_here() -> None:
    assert VALUES.keys() == SETTINGS.keys()


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in VALUES.items() for value in values])
def test_what_is_written_is_read_and_none_leaves_no_trace(field: str, value: str) -> None:
    written = edit_domain(XML.format(""), DomainEdit(settings={field: value}))
    assert read(written) == dict.fromkeys(SETTINGS, "none") | {field: value}
    assert edit_domain(written, DomainEdit(settings={field: value})) == written
    assert edit_domain(written, DomainEdit(settings={field: "none"})) == XML.format("")


@pytest.mark.parametrize(
    ("pages", "text"),
    [
        ("<hugepages/>", "default"),
        ("<hugepages><page size='64'/></hugepages>", "64KiB"),
        ("<hugepages><page size='2' unit='MiB'/></hugepages>", "2MiB"),
        ("<hugepages><page size='x'/></hugepages>", "default"),
        ("<locked/>", "none"),
    ],
)
def test_huge_pages_of_others_are_read(pages: str, text: str) -> None:
    assert read(XML.format(f"<memoryBacking>{pages}</memoryBacking>"))["hugepages"] == text


def test_a_template_that_does_not_write_a_setting_gets_it_and_its_text_stays() -> None:
    before, _, rest = TEMPLATE.partition("{% if vm.hugepages_kib is not none %}")
    silent = compile_template(before + rest.partition("{% endif %}")[2])
    design = replace(vendor_vf(), settings=(("hugepages", "2MiB"),))
    made = render_domain(design, silent)
    assert find_differences(design, made) == ()
    plain = render_domain(replace(design, settings=()), silent)
    assert etree.fromstring(plain).find("memoryBacking") is None
    assert find_differences(design, plain) == ("the size of huge pages is none instead of 2MiB",)


def test_a_template_that_writes_another_value_is_refused_and_not_overwritten() -> None:
    own = compile_template(TEMPLATE.replace("{{ vm.hugepages_kib }}", "1048576"))
    design = replace(vendor_vf(), settings=(("hugepages", "2MiB"),))
    made = render_domain(design, own)
    assert read(made)["hugepages"] == "1GiB"
    assert find_differences(design, made) == ("the size of huge pages is 1GiB instead of 2MiB",)


def test_a_template_may_fix_a_setting_that_is_not_requested() -> None:
    text = TEMPLATE.replace("{% if vm.hugepages_kib is not none %}", "{% if true %}")
    made = render_domain(vendor_vf(), compile_template(text.replace("{{ vm.hugepages_kib }}", "2048")))
    assert read(made)["hugepages"] == "2MiB"
    assert find_differences(vendor_vf(), made) == ()


def test_what_else_an_element_has_stays() -> None:
    others = "<memoryBacking><!-- an admin's --><locked/></memoryBacking>"
    written = edit_domain(XML.format(others), DomainEdit(settings={"hugepages": "1GiB"}))
    page = '<hugepages><page size="1048576" unit="KiB"/></hugepages>'
    assert written == XML.format(others.replace("<locked/>", f"<locked/>{page}"))
    assert edit_domain(written, DomainEdit(settings={"hugepages": "none"})) == XML.format(others)
