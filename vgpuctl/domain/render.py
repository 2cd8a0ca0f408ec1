# SPDX-License-Identifier: Apache-2.0
"""Render a domain's XML from a design and a template: a built-in one, or an admin's.

Templates are jinja2, because admins know it. They run sandboxed, without a loader (one file is the whole template), an
undefined name is an error, and every value is escaped for XML: a name or a path can never become markup. The result is
parsed once before it is returned, so that vgpuctl, not libvirt, reports a broken template, with its line.

The work of one rendering is limited. A template is the operator's own file, so this is about mistakes: nested loops
whose product is enormous, or a text that doubles in a loop. Work is counted, not timed: each turn of a loop, each call
and each filter is one, and a range counts its numbers. So the result does not depend on the host's speed, and neither a
signal nor another process is needed to end a rendering.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from contextvars import ContextVar
from functools import wraps
from math import prod
from pickle import PickleError
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2 import BytecodeCache, FunctionLoader, StrictUndefined, TemplateSyntaxError, nodes, pass_context
from jinja2 import Template as Compiled
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer
from lxml import etree
from markupsafe import Markup

from vgpuctl.config.arguments import NONE
from vgpuctl.domain.domain_edit import DomainEdit, edit_domain
from vgpuctl.domain.domain_xml import parse_domain
from vgpuctl.domain.record import record_to_xml
from vgpuctl.domain.text_templates import TEMPLATE_DIRECTORIES
from vgpuctl.errors import InvalidInput, VgpuctlError
from vgpuctl.model.names import is_pci_address, split_pci
from vgpuctl.model.request import DomainDesign
from vgpuctl.model.vm import VmState
from vgpuctl.value import Value
from vgpuctl.version import __version__

if TYPE_CHECKING:
    from jinja2.bccache import Bucket
    from jinja2.runtime import Context

    from vgpuctl.ports.system import Scratch

MAX_WORK = 100_000
"""Turns of loops, calls and filters of one rendering; a VM with the most devices and pinned CPUs needs a tenth."""

MAX_TEXT_LENGTH = 1 << 18
"""Characters of one text, entries of one list, or a width."""

_MAX_FACTOR = 1 << 32
"""More than any number that a domain's XML multiplies; with larger ones a template could allocate all memory."""

_PADDERS = ("batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "wordwrap", "zfill")
_LONG_WIDTH = re.compile(r"[0-9]{5,}|%[-+ #0]*\*")
_REMOVED_GLOBALS = ("lipsum",)
_work: ContextVar[list[int]] = ContextVar("work")

_SOURCE_NAME = "<template>"
"""The file name that jinja2 gives to a template made from a string; its frames in a traceback have it."""
_TEMPLATE_SUFFIX = ".xml.j2"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)


def _start_work() -> None:
    """Begin to count the work of one rendering, in this thread."""
    _work.set([0])


def _count(amount: int = 1) -> None:
    counter = _work.get([0])  # without one, jinja2 is folding a constant while it compiles
    counter[0] += amount
    if counter[0] > MAX_WORK:
        raise SecurityError(
            f"it does too much: more than {MAX_WORK} turns of loops, calls and filters; are its loops nested?"
        )


def _limit(value: Any) -> Any:
    """Return a value, unless it is a text or a list beyond the limit."""
    if isinstance(value, (str, list, tuple)) and len(value) > MAX_TEXT_LENGTH:
        raise SecurityError(f"a text or list in it has a length of {len(value)}; at most {MAX_TEXT_LENGTH} is allowed")
    return value


def _limit_arguments(name: str, arguments: tuple[object, ...]) -> None:
    """Refuse arguments of a filter or of a text's method with which its result would be beyond the limit."""
    if name in ("format", "format_map", "%") and _LONG_WIDTH.search(str(arguments[0])):
        raise SecurityError("a format with so large a width is not allowed")
    if name in _PADDERS:
        width = max((abs(value) for value in arguments if isinstance(value, int)), default=0)
        if width > MAX_TEXT_LENGTH:
            raise SecurityError(f"a width of {width} is too large: at most {MAX_TEXT_LENGTH} is allowed")
    if name in ("join", "replace"):
        length = prod(len(value) for value in arguments if isinstance(value, (str, list, tuple)) and value)
        if length > MAX_TEXT_LENGTH:
            raise SecurityError(
                f"{name} could make a text of {length} characters; at most {MAX_TEXT_LENGTH} is allowed"
            )


@pass_context
def _turns(_context: Context, values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values of a loop, and count them."""
    for value in values:
        _count()
        yield value


@pass_context
def _sized(_context: Context, text: Any) -> Any:
    """Return a text that `~` joined, unless it is too long."""
    return _limit(text)


def _counted(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that counts as work and whose result is limited."""

    @wraps(run)
    def counted(*args: Any, **kwargs: Any) -> Any:
        _count()
        values = args if isinstance(args[0], (str, list, tuple, int)) else args[1:]  # some get jinja2's context first
        _limit_arguments(name, (*values, *kwargs.values()))
        return _limit(run(*args, **kwargs))

    return counted


class _CountingNodes(NodeTransformer):
    """Adds the counting filters to loops and joined texts."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _with_filter(node.iter, "_turns")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _with_filter(node, "_sized")


def _with_filter(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, which counts work and refuses numbers and texts that would fill the host's memory."""

    intercepted_binops = frozenset({"*", "**", "+", "%"})

    def __init__(self, cache: BytecodeCache | None) -> None:
        super().__init__(
            undefined=StrictUndefined, autoescape=True, trim_blocks=True, lstrip_blocks=True, bytecode_cache=cache
        )
        for name in _REMOVED_GLOBALS:
            self.globals.pop(name, None)
        self.filters = {name: _counted(name, run) for name, run in self.filters.items()}
        self.filters |= {"_turns": _turns, "_sized": _sized}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        """Compile a template, with the counting filters (a hook that jinja2 documents for this)."""
        bounded = _CountingNodes().visit(source)
        return super()._generate(bounded.set_environment(self), *args, **kwargs)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function, a method or a macro, and count it."""
        _count()
        method = getattr(__obj, "__wrapped__", __obj)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            _limit_arguments(method.__name__, (owner, *args, *kwargs.values()))
        result = super().call(__context, __obj, *args, **kwargs)
        if isinstance(result, range):
            _count(len(result))
        return _limit(result)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `*`, `**`, `+` and `%`."""
        if operator == "%" and isinstance(left, str):
            _limit_arguments("%", (left,))
        if operator == "+" or (operator == "%" and isinstance(left, str)):
            return _limit(super().call_binop(context, operator, left, right))
        numbers = all(isinstance(side, (int, float)) and abs(side) < _MAX_FACTOR for side in (left, right))
        if operator == "**" or not numbers:
            raise SecurityError(f"a template may multiply numbers up to {_MAX_FACTOR} only, not {operator} others")
        return super().call_binop(context, operator, left, right)


class DomainTemplate(Value):
    """A parsed and compiled template; `name` is its file's, for messages."""

    name: str
    compiled: Compiled


_MOST_COMPILED = 16
_compiled_lock = Lock()
_compiled: dict[tuple[str, str], DomainTemplate] = {}
"""By text and name, the last used one last."""


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


def compile_once(text: str, name: str, scratch: Scratch | None) -> DomainTemplate:
    """Return what `compile_template` does, and keep the templates that this process used last.

    Raises:
        InvalidInput: the template is invalid; says where.
    """
    with _compiled_lock:
        template = _compiled.pop((text, name), None) or compile_template(text, name, scratch)
        _compiled[text, name] = template
        if len(_compiled) > _MOST_COMPILED:
            del _compiled[next(iter(_compiled))]
    return template


def render_domain(design: DomainDesign, template: DomainTemplate) -> str:
    """Return the domain's XML.

    Raises:
        InvalidInput: the template is invalid; says where.
    """
    record = Markup(record_to_xml(design.record))  # noqa: S704 - lxml escaped it
    _start_work()
    try:
        text = template.compiled.render(vm=design, record=record)
    except VgpuctlError:
        raise
    except Exception as exc:  # a template's expressions can raise anything
        line = _template_line(exc.__traceback__)
        raise _template_error(template.name, line, f"{exc}" or type(exc).__name__) from exc
    _require_domain_xml(text, template.name)
    return _with_settings(text, design)


def _with_settings(text: str, design: DomainDesign) -> str:
    """Add the settings that the template did not write. One that it writes otherwise stays, for `compare` to refuse."""
    if not design.settings:
        return text
    current = dict(parse_domain(text, VmState.UNKNOWN, design.record.machine_id).settings)
    missing = {field: value for field, value in design.settings if current[field] == NONE}
    return edit_domain(text, DomainEdit(settings=missing)) if missing else text


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


def _environment(scratch: Scratch | None) -> _TemplateEnvironment:
    environment = _TemplateEnvironment(_BytecodeCache(scratch) if scratch is not None else None)
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


def read_builtin_template(name: str) -> str | None:
    """Return the text of a built-in template by its name without suffix, or None."""
    if not _NAME.fullmatch(name):
        return None
    for directory in TEMPLATE_DIRECTORIES:
        file = directory / f"{name}{_TEMPLATE_SUFFIX}"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    return None


def list_builtin_templates() -> tuple[str, ...]:
    """Return the names of the built-in templates, sorted."""
    names = {
        file.name.removesuffix(_TEMPLATE_SUFFIX)
        for directory in TEMPLATE_DIRECTORIES
        for file in directory.glob(f"*{_TEMPLATE_SUFFIX}")
    }
    return tuple(sorted(names))
