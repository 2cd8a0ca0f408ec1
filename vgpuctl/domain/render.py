# SPDX-License-Identifier: Apache-2.0
"""A design and a template become a domain's XML.

Templates are jinja2, because admins know it. They run sandboxed, without a loader (one file is the whole
template), an undefined name is an error, and every value is escaped for XML: a name or a path can never
become markup. What comes out is parsed once before it leaves, so a broken template is told here with its
line and not by libvirt.
"""

from __future__ import annotations

from contextlib import suppress
from pickle import PickleError
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import BytecodeCache, FunctionLoader, StrictUndefined, TemplateSyntaxError
from jinja2 import Template as Compiled
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from lxml import etree
from markupsafe import Markup

from vgpuctl import __version__
from vgpuctl.domain.metadata import promise_to_xml
from vgpuctl.errors import InvalidInput, VgpuctlError
from vgpuctl.model.address import is_pci, pci_parts
from vgpuctl.model.wish import DomainDesign
from vgpuctl.value import Value

if TYPE_CHECKING:
    from jinja2.bccache import Bucket
    from jinja2.runtime import Context

    from vgpuctl.model.seams import Scratch

_SOURCE_NAME = "<template>"
"""The file name that jinja2 gives to a template made from a string; its frames bear it in a traceback."""

_LARGEST = 1 << 32
"""More than any number that a domain's XML multiplies; beyond it a template could ask for all memory."""


class Template(Value):
    """A template that was read and compiled; `name` is its file's, for messages."""

    name: str
    compiled: Compiled


def compile_template(text: str, name: str = "vm.xml.j2", scratch: Scratch | None = None) -> Template:
    """Compile a template, or take its compiled form from `scratch`; compiling costs more than all else of jinja2.

    Raises:
        InvalidInput: the template is at fault; says where.
    """
    environment = _environment(scratch)

    def load(wanted: str) -> str | None:
        return text if wanted == name else None

    try:
        source = FunctionLoader(load).load(environment, name, environment.make_globals(None))
    except TemplateSyntaxError as exc:
        raise _refusal(name, exc.lineno, str(exc.message)) from exc
    except VgpuctlError:
        raise
    except RecursionError as exc:
        raise _refusal(name, None, "it is nested too deeply") from exc
    except Exception as exc:  # jinja2 and Python's compiler stumble in many ways: blocks in blocks, a character
        raise _refusal(name, None, f"{exc}" or type(exc).__name__) from exc
    return Template(name, source)


def render(design: DomainDesign, template: Template) -> str:
    """Return the domain's XML.

    Raises:
        InvalidInput: the template is at fault; says where.
    """
    record = Markup(promise_to_xml(design.promise))  # noqa: S704 - lxml escaped it
    try:
        text = template.compiled.render(vm=design, promise=record)
    except VgpuctlError:
        raise
    except Exception as exc:  # a template's expressions can raise anything
        line = _line(exc.__traceback__)
        raise _refusal(template.name, line, f"{exc}" or type(exc).__name__) from exc
    _check(text, template.name)
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


class _Kept(BytecodeCache):
    """Compiled templates in the scratch; jinja2 itself compares the source's checksum and Python's version."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        return f"{name}-jinja2-{jinja2.__version__}-vgpuctl-{__version__}"

    def load_bytecode(self, bucket: Bucket) -> None:
        data = self._scratch.read(bucket.key)
        if data is not None:
            with suppress(ValueError, EOFError, TypeError, AttributeError, ImportError, IndexError, PickleError):
                bucket.bytecode_from_string(data)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._scratch.keep(bucket.key, bucket.bytecode_to_string())


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, which also refuses numbers and texts that would fill the host's memory."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**" or not all(
            isinstance(side, (int, float)) and abs(side) < _LARGEST for side in (left, right)
        ):
            raise SecurityError(f"a template may multiply numbers up to {_LARGEST} only, not {operator} others")
        return super().call_binop(context, operator, left, right)


def _environment(scratch: Scratch | None) -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_Kept(scratch) if scratch is not None else None,
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
