# SPDX-License-Identifier: Apache-2.0
"""Render a domain's XML from a design and a template.

Templates are jinja2, because admins know it. They run sandboxed, without a loader (one file is the whole template), an
undefined name is an error, and every value is escaped for XML: a name or a path can never become markup. The result is
parsed once before it is returned, so that vgpuctl, not libvirt, reports a broken template, with its line.
"""

from __future__ import annotations

from contextlib import suppress
from pickle import PickleError
from types import TracebackType
from typing import TYPE_CHECKING

import jinja2
from jinja2 import BytecodeCache, FunctionLoader, TemplateSyntaxError
from jinja2 import Template as Compiled
from lxml import etree
from markupsafe import Markup

from vgpuctl.domain.record import record_to_xml
from vgpuctl.domain.template_sandbox import TemplateEnvironment, start_work
from vgpuctl.errors import InvalidInput, VgpuctlError
from vgpuctl.model.address import is_pci_address, split_pci
from vgpuctl.model.request import DomainDesign
from vgpuctl.value import Value
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from jinja2.bccache import Bucket

    from vgpuctl.ports.system import Scratch

_SOURCE_NAME = "<template>"
"""The file name that jinja2 gives to a template made from a string; its frames in a traceback have it."""


class DomainTemplate(Value):
    """A parsed and compiled template; `name` is its file's, for messages."""

    name: str
    compiled: Compiled


def compile_template(text: str, name: str = "vm.xml.j2", scratch: Scratch | None = None) -> DomainTemplate:
    """Compile a template, or take its compiled form from `scratch`; compiling takes longer than the rest of jinja2.

    Raises:
        InvalidInput: the template is invalid; says where.
    """
    environment = _environment(scratch)

    def load(requested_name: str) -> str | None:
        return text if requested_name == name else None

    try:
        source = FunctionLoader(load).load(environment, name, environment.make_globals(None))
    except TemplateSyntaxError as exc:
        raise _template_error(name, exc.lineno, str(exc.message)) from exc
    except VgpuctlError:
        raise
    except RecursionError as exc:
        raise _template_error(name, None, "it is nested too deeply") from exc
    except Exception as exc:  # jinja2 and Python's compiler fail in many ways: nested blocks, a character
        raise _template_error(name, None, f"{exc}" or type(exc).__name__) from exc
    return DomainTemplate(name, source)


def render_domain(design: DomainDesign, template: DomainTemplate) -> str:
    """Return the domain's XML.

    Raises:
        InvalidInput: the template is invalid; says where.
    """
    record = Markup(record_to_xml(design.record))  # noqa: S704 - lxml escaped it
    start_work()
    try:
        text = template.compiled.render(vm=design, record=record)
    except VgpuctlError:
        raise
    except Exception as exc:  # a template's expressions can raise anything
        line = _template_line(exc.__traceback__)
        raise _template_error(template.name, line, f"{exc}" or type(exc).__name__) from exc
    _require_domain_xml(text, template.name)
    return text


def disk_name(prefix: str, number: int) -> str:
    """Return the guest's name of its n-th disk (from 0): vda, vdb, then after vdz vdaa."""
    letters = ""
    number += 1
    while number:
        number, remainder = divmod(number - 1, 26)
        letters = chr(ord("a") + remainder) + letters
    return prefix + letters


def format_pci_address(address: str) -> Markup:
    """Return a PCI address as the attributes of libvirt's `<address>`."""
    if not is_pci_address(address):
        raise ValueError(f"'{address}' is not a PCI address")
    domain, bus, slot, function = split_pci(address)
    return Markup(  # noqa: S704 - four numbers
        f"domain='0x{domain:04x}' bus='0x{bus:02x}' slot='0x{slot:02x}' function='0x{function:x}'"
    )


class _BytecodeCache(BytecodeCache):
    """Compiled templates in the scratch directory.

    Jinja2 compares the source's checksum and Python's version itself.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        return f"{name}-jinja2-{jinja2.__version__}-vgpuctl-{__version__}-counted"

    def load_bytecode(self, bucket: Bucket) -> None:
        data = self._scratch.read(bucket.key)
        if data is not None:
            with suppress(ValueError, EOFError, TypeError, AttributeError, ImportError, IndexError, PickleError):
                bucket.bytecode_from_string(data)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._scratch.write(bucket.key, bucket.bytecode_to_string())


def _environment(scratch: Scratch | None) -> TemplateEnvironment:
    environment = TemplateEnvironment(_BytecodeCache(scratch) if scratch is not None else None)
    environment.globals["disk_name"] = disk_name
    environment.filters["pci"] = format_pci_address
    return environment


def _template_line(trace: TracebackType | None) -> int | None:
    line = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == _SOURCE_NAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


def _require_domain_xml(text: str, template: str) -> None:
    try:
        root = etree.fromstring(text, etree.XMLParser(resolve_entities=False, no_network=True))
    except (etree.XMLSyntaxError, ValueError) as exc:
        raise _template_error(template, None, f"its result is not XML: {exc}") from exc
    if root.tag != "domain":
        raise _template_error(template, None, f"its result is a <{root.tag}>, not a <domain>")


def _template_error(template: str, line: int | None, problem: str) -> InvalidInput:
    where = template if line is None else f"{template}:{line}"
    return InvalidInput(
        f"error in the domain template {where}: {problem}",
        hint="'vgpuctl create-vm --help' shows --template; --print-xml shows what a template results in",
        template=template,
        line=line,
    )
