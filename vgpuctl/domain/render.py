# SPDX-License-Identifier: Apache-2.0
"""A design and a template become a domain's XML.

Templates are jinja2, because admins know it. They run sandboxed, without a loader (one file is the whole
template), an undefined name is an error, and every value is escaped for XML: a name or a path can never
become markup. What comes out is parsed once before it leaves, so a broken template is told here with its
line and not by libvirt.
"""

from __future__ import annotations

from types import TracebackType

from jinja2 import StrictUndefined, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lxml import etree
from markupsafe import Markup

from vgpuctl.domain.metadata import promise_to_xml
from vgpuctl.errors import InvalidInput, VgpuctlError
from vgpuctl.model.address import is_pci, pci_parts
from vgpuctl.model.wish import DomainDesign

_SOURCE_NAME = "<template>"
"""The file name that jinja2 gives to a template made from a string; its frames bear it in a traceback."""


def render(design: DomainDesign, template_text: str, template: str = "vm.xml.j2") -> str:
    """Return the domain's XML; `template` is the template's name or path, for messages.

    Raises:
        InvalidInput: the template is at fault; says where.
    """
    record = Markup(promise_to_xml(design.promise))  # noqa: S704 - lxml escaped it
    try:
        text = _environment().from_string(template_text).render(vm=design, promise=record)
    except TemplateSyntaxError as exc:
        raise _refusal(template, exc.lineno, str(exc.message)) from exc
    except VgpuctlError:
        raise
    except Exception as exc:  # a template's expressions can raise anything
        line = _line(exc.__traceback__)
        raise _refusal(template, line, f"{exc}" or type(exc).__name__) from exc
    _check(text, template)
    return text


def disk_name(prefix: str, number: int) -> str:
    """Return the guest's name of its n-th disk (from 0): vda, vdb, then after vdz vdaa."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        letters = chr(ord("a") + rest) + letters
    return prefix + letters


def pci(address: str) -> Markup:
    """Return a PCI address as the attributes of libvirt's `<address>`."""
    if not is_pci(address):
        raise ValueError(f"'{address}' is not a PCI address")
    domain, bus, slot, function = pci_parts(address)
    return Markup(  # noqa: S704 - four numbers
        f"domain='0x{domain:04x}' bus='0x{bus:02x}' slot='0x{slot:02x}' function='0x{function:x}'"
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["disk_name"] = disk_name
    environment.filters["pci"] = pci
    return environment


def _line(trace: TracebackType | None) -> int | None:
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _SOURCE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _check(text: str, template: str) -> None:
    try:
        root = etree.fromstring(text, etree.XMLParser(resolve_entities=False, no_network=True))
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise _refusal(template, None, f"what it makes is not XML: {exc}") from exc
    if root.tag != "domain":
        raise _refusal(template, None, f"what it makes is a <{root.tag}>, not a <domain>")


def _refusal(template: str, line: int | None, problem: str) -> InvalidInput:
    where = template if line is None else f"{template}:{line}"
    return InvalidInput(
        f"the domain template {where} is at fault: {problem}",
        hint="docs/templates.md lists what a template may use",
        template=template,
        line=line,
    )
