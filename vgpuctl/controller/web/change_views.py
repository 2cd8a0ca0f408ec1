# SPDX-License-Identifier: Apache-2.0
"""The pages of a change: its form, its plan, both versions where two people made one, a secret that is shown once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from vgpuctl.controller.web.cells import as_list, one_line, schedule_text
from vgpuctl.controller.web.changes import WebChange
from vgpuctl.controller.web.fields import (
    YES,
    ChangeField,
    FieldKind,
    RowsField,
    Typed,
    field_view,
    group_view,
    typed_text,
)
from vgpuctl.controller.web.parts import (
    Cell,
    FieldGroup,
    FieldView,
    FormView,
    Link,
    PageView,
    PlanView,
    ProblemView,
    SecretView,
    Section,
    TableView,
)
from vgpuctl.controller.web.pool_form import LABELS, typed_of_spec
from vgpuctl.model.outcome import AnyResult
from vgpuctl.value import EMPTY_MAPPING

GENERATION, PLAN = "generation", "plan"
EMPTY_ROWS = 2
_NONE = "–"
_FIELD_LABELS = {"url": "URL", "sha256": "SHA-256", "os": "System", "host_key": "SSH key", "people": "For now, people"}
Options = Callable[[str], Sequence[str]]


def form_page(
    change: WebChange,
    shown: Sequence[ChangeField | RowsField],
    typed: Typed,
    now: object,
    options: Options,
    problems: Mapping[str, str] = EMPTY_MAPPING,
    hint: str | None = None,
    others: Section | None = None,
) -> PageView:
    """Return the form of a change. `shown`: those of its fields that can be filled in; the others stay as they are.

    `options`: what can be chosen; `problems`: by field, without one of the whole form. `others`: what somebody else
    changed meanwhile.
    """
    sections = []
    if problems:
        text = problems.get("") or "Something below is wrong:"
        view = ProblemView(text, hint, _labels(change, problems))
        links = () if shown else (Link("Back", change.before(typed, now)),)
        sections.append(Section("problem", "", "problem", view, links))
    if others is not None:
        sections.append(others)
    if shown:
        fields = tuple(_shown(one, typed, problems, options) for one in shown)
        kept = tuple((one.name, typed[one.name]) for one in change.visible if one not in shown and typed.get(one.name))
        hidden, cancel = (*hidden_fields(change, typed), *kept), change.before(typed, now)
        form = FormView(change.path, hidden, fields, change.note, cancel)
        sections.append(Section("form", "", "form", form))
    return _page(change, typed, now, sections)


def hidden_fields(change: WebChange, typed: Typed) -> tuple[tuple[str, str], ...]:
    """Return the names and values that a form sends without showing them."""
    names = [one.name for one in change.single_fields if one.kind is FieldKind.HIDDEN]
    return tuple((name, typed[name]) for name in (*names, GENERATION) if typed.get(name))


def plan_page(change: WebChange, typed: Typed, now: object, rows: TableView, plan: PlanView) -> PageView:
    """Return the page that says what a change does, with the button that makes it."""
    sections = [Section("changes", "What changes", "table", rows)] if rows.rows else []
    return _page(change, typed, now, [*sections, Section("plan", "", "plan", plan)])


def plan_view(
    change: WebChange, typed: Typed, now: object, result: AnyResult | None, token: str, once: str
) -> PlanView:
    """Return what a change does, in words. `result`: of trying it; None: it cannot be tried."""
    nothing = result is not None and not getattr(result, "changed", True)
    words = "Nothing changes: it is like that already." if nothing else change.filled(change.words, typed, now)
    return PlanView(
        words,
        () if result is None else tuple(getattr(result, "steps", ())),
        () if result is None else result.warnings,
        change.href(typed),
        change.button,
        change.style == "danger",
        token,
        once,
        change.href({**typed, PLAN: "no"}) if change.visible else None,
        change.before(typed, now),
    )


def changed_rows(change: WebChange, now: object, then: object) -> TableView:
    """Return what is different after a change. `now`: None: there is nothing yet."""
    before, after = shown_values(change, now), shown_values(change, then)
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name, "") != after.get(name, "")]
    if now is None:
        return _table(("", "Then"), [(name, after[name]) for name in names])
    return _table(("", "Now", "Then"), [(name, before.get(name, ""), after.get(name, "")) for name in names])


def argument_rows(change: WebChange, arguments: Mapping[str, Any]) -> TableView:
    """Return what a call gets that cannot be tried."""
    fields = [one for one in change.visible if arguments.get(one.name) not in (None, [], ())]
    return _table(("", "Then"), [(one.label, one_line(arguments[one.name])) for one in fields])


def versions_section(mine: Mapping[str, str], theirs: Mapping[str, str]) -> Section:
    """Return both versions side by side: what was typed, and what somebody else stored meanwhile."""
    names = [name for name in dict.fromkeys((*mine, *theirs)) if mine.get(name, "") != theirs.get(name, "")]
    rows = _table(("", "Yours", "Stored now"), [(name, mine.get(name, ""), theirs.get(name, "")) for name in names])
    return Section("versions", "Both versions", "table", rows)


def shown_values(change: WebChange, thing: object) -> dict[str, str]:
    """Return what a plan compares of a thing, by the names of its lines."""
    values: dict[str, str] = {}
    for name in change.shows if thing is not None else ():
        value = getattr(thing, name, None)
        if name == "spec":
            values |= spec_values(value if isinstance(value, Mapping) else {})
        else:
            values[label_of(name)] = one_line(value)
    return values


def spec_values(spec: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys of a spec, each as one line."""
    lines: dict[str, str] = {}
    for key, value in spec.items():
        if key == "schedules":
            lines[LABELS[key]] = "; ".join(map(schedule_text, as_list(value)))
        elif isinstance(value, Mapping):
            lines |= {f"{key}.{name}": one_line(entry) for name, entry in value.items()}
        else:
            lines[LABELS.get(key, key)] = one_line(value)
    return lines


def label_of(name: str) -> str:
    """Return the name of a field for people."""
    return _FIELD_LABELS.get(name) or name.replace("_", " ").capitalize()


def _shown(field: ChangeField | RowsField, typed: Typed, problems: Typed, options: Options) -> FieldView | FieldGroup:
    if isinstance(field, RowsField):
        return group_view(field, typed, problems, EMPTY_ROWS)
    known = options(field.options) if isinstance(field.options, str) else field.options
    return field_view(field, typed, problems, known)


def _labels(change: WebChange, problems: Typed) -> tuple[tuple[str, str], ...]:
    """Return the fields with problems, each with the label by which people know it."""
    labels = {one.name: one.label for one in change.visible}
    return tuple((name, labels.get(name) or labels.get(name.split(".")[0], name)) for name in problems if name)


def _table(columns: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> TableView:
    rows = tuple((Cell(first), *(Cell(text or _NONE) for text in others)) for first, *others in lines)
    return TableView(("Field", *columns[1:]), rows, "")


def _page(change: WebChange, typed: Typed, now: object, sections: list[Section]) -> PageView:
    back = change.before(typed, now)
    first = f"/{back.split('/')[1]}"
    name = {"/my": "My desktops"}.get(first) or first.strip("/").capitalize()
    trail = [Link(name, first)]
    if back != first:
        trail.append(Link(unquote(back.rpartition("/")[2]), back))
    return PageView(change.filled(change.title, typed, now), first.strip("/"), "", tuple(sections), tuple(trail))


def go_on_page(change: WebChange, path: str) -> PageView:
    """Return the page for who comes from another site: it has a link to the change, and shows none of it."""
    text = TableView((), (), "Another site led here. Nothing is changed.")
    return PageView(change.button, "", "", (Section("go-on", "", "table", text, (Link("Go on", path),)),))


def secret_page(title: str, text: str, secret: str | None, warnings: tuple[str, ...], back: str) -> PageView:
    """Return the page that shows a secret once; None: there is none, only what is to be said of a change."""
    view = SecretView(text, secret, warnings, back)
    return PageView(title, back.split("/")[1], "", (Section("secret", "", "secret", view),))


def typed_now(change: WebChange, now: object) -> dict[str, str]:
    """Return a form's fields as they are stored."""
    spec = getattr(now, "spec", None) if change.has_spec else None
    typed = {} if spec is None else typed_of_spec(spec)
    typed |= {one.name: typed_text(getattr(now, one.name, None)) for one in change.single_fields if spec is None}
    generation = getattr(now, "generation", None)
    return {**typed, GENERATION: str(generation)} if "if_generation" in change.fleet_call.parameters else typed


def is_plan(change: WebChange, typed: Typed) -> bool:
    """Return whether a form was filled in, or has nothing to fill in."""
    return typed.get(PLAN) == YES or not change.visible
