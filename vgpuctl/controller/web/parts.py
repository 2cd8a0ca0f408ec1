# SPDX-License-Identifier: Apache-2.0
"""What pages are made of: values that templates show as they are. What they hold is text, never HTML."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vgpuctl.value import Value, field_names, replace

POOL_COLORS = 8


class Segment(Value):
    """A part of a bar: from `x` for `width`, both in percent of it. `color`: of a pool, None for none.

    `fill`: the id of a pattern; empty: the style sheet decides by `state`.
    """

    x: str
    width: str
    state: str
    label: str
    color: int | None = None
    fill: str = ""


class Bar(Value):
    """A bar of segments. `label`: all that it says, for who does not see it. `amount`: beside it."""

    name: str
    label: str
    amount: str
    segments: tuple[Segment, ...]
    href: str | None = None


class Cell(Value):
    """A cell of a table. `style`: words of the style sheet. `time`: RFC 3339. `color`: of a pool, as a dot.

    `note`: a line below the text.
    """

    text: str = ""
    href: str | None = None
    style: str = ""
    badge: str = ""
    color: int | None = None
    time: str | None = None
    bar: Bar | None = None
    note: str = ""


class TableView(Value):
    """A table. `columns`: the headings; the first cell of a row is its heading. `empty`: what stands there instead."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str
    numeric: frozenset[int] = frozenset()


class Fact(Value):
    """A line of a list of facts."""

    name: str
    cell: Cell


class NumberTile(Value):
    """A large number with its name."""

    name: str
    text: str
    unit: str = ""
    style: str = ""


class HostBars(Value):
    """A host, and a bar for each of its GPUs."""

    name: str
    href: str
    model: str
    badges: tuple[Cell, ...]
    bars: tuple[Bar, ...]


class Legend(Value):
    """What a pattern means. `state`: of the style sheet."""

    state: str
    text: str


class GpuMap(Value):
    """The GPUs of hosts. `is_wide`: a bar stands for a host."""

    hosts: tuple[HostBars, ...]
    legend: tuple[Legend, ...]
    is_wide: bool


class Filter(Value):
    """A field of a form that filters. `options`: None: any text."""

    name: str
    label: str
    value: str
    options: tuple[tuple[str, str], ...] | None = None


class Filters(Value):
    """A form that filters; its fields go into the query. `is_set`: some of them have a value."""

    path: str
    fields: tuple[Filter, ...]
    is_set: bool


class Steps(Value):
    """What to do next, with commands that run as pasted."""

    text: str
    steps: tuple[tuple[str, str], ...]


class Link(Value):
    """A link below a section."""

    text: str
    href: str


class Section(Value):
    """A part of a page, which is replaced when it changes. `template`: shows `view`. `title`: empty for none."""

    name: str
    title: str
    template: str
    view: object
    links: tuple[Link, ...] = ()


class Visitor(Value):
    """Who looks at a page. `nav`: key, text and path of each entry of his menu. `token`: for forms; empty: he has none.

    Without a name nobody has signed in. `has_role`: in the fleet, so that commands are of use to him.
    """

    name: str = ""
    nav: tuple[tuple[str, str, str], ...] = ()
    token: str = ""
    has_role: bool = False


class PageView(Value):
    """A page. `trail`: where it is. `nav`: which entry of the menu it belongs to. `summary`: a line below the title."""

    title: str
    nav: str
    summary: str
    sections: tuple[Section, ...]
    trail: tuple[Link, ...] = ()


class PageButton(Value):
    """A link that looks like a button. `style`: `first` of what most people want, `danger` of what deletes."""

    text: str
    href: str
    style: str = ""


class FieldView(Value):
    """A field of a form. `value`: as it was typed; `options`: of a choice. `problem`: what is wrong with it."""

    name: str
    label: str
    kind: str
    value: str
    help: str
    options: tuple[str, ...]
    problem: str
    required: bool


class FieldGroup(Value):
    """A list of entries with the same fields. `problem`: of the whole list."""

    name: str
    label: str
    help: str
    problem: str
    rows: tuple[tuple[FieldView, ...], ...]


class FormView(Value):
    """A form whose fields go into the query of the page that shows the plan. `hidden`: names and values."""

    path: str
    hidden: tuple[tuple[str, str], ...]
    fields: tuple[FieldView | FieldGroup, ...]
    note: str
    cancel: str


class PlanView(Value):
    """What a change does: `words` in sentences, `lines` one after the other, `warnings`; the button that makes it.

    `action`: where the button sends it; `once`: a text that is another one each time, so that it is made once.
    """

    words: str
    lines: tuple[str, ...]
    warnings: tuple[str, ...]
    action: str
    button: str
    is_danger: bool
    token: str
    once: str
    edit: str | None
    cancel: str


class ProblemView(Value):
    """What is wrong, and what helps. `fields`: the names and labels of those with a problem of their own."""

    text: str
    hint: str | None
    fields: tuple[tuple[str, str], ...] = ()


class SecretView(Value):
    """A secret that is shown once, or None. `back`: where the page leads then."""

    text: str
    secret: str | None
    warnings: tuple[str, ...]
    back: str


def without_links(part: Any, opens: Callable[[str], bool]) -> Any:
    """Return a part of a page without links to pages that do not open. `opens`: whether that of a path does."""
    if isinstance(part, tuple):
        kept = (one for one in part if not isinstance(one, Link) or opens(one.href))
        return tuple(without_links(one, opens) for one in kept)
    if isinstance(part, Cell):
        return part if part.href is None or opens(part.href) else replace(part, href=None)
    if not isinstance(part, Value):
        return part
    return type(part)(**{name: without_links(getattr(part, name), opens) for name in field_names(part)})
