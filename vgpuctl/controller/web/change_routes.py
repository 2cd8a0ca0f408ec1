# SPDX-License-Identifier: Apache-2.0
"""Answers forms of changes: the form and the plan to a GET, which changes nothing; the change itself to a POST.

What is typed is in the address, so that loading a page again and going back are always harmless. Only the answer with a
secret, which is shown once, is that of a POST; and that of one that failed though its plan did not.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from vgpuctl.controller.callers import Callers
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import FleetCaller
from vgpuctl.controller.policy import has_right, no_desktop
from vgpuctl.controller.web import change_views, render
from vgpuctl.controller.web.answers import (
    ErrorPages,
    InThread,
    hint_for,
    html,
    own_path,
    read_form,
    status_of,
    visitor_of,
)
from vgpuctl.controller.web.cells import one_line
from vgpuctl.controller.web.change_views import GENERATION, PLAN, form_page, is_plan
from vgpuctl.controller.web.changes import CHANGES, WebChange
from vgpuctl.controller.web.fields import (
    YES,
    FieldKind,
    RowsField,
    Typed,
    field_of_row,
    problems_of,
    read_fields,
    row_count,
)
from vgpuctl.controller.web.pages import Ask
from vgpuctl.controller.web.parts import PageView
from vgpuctl.controller.web.pool_form import as_stored, fields_for, place_problems, spec_of_typed
from vgpuctl.controller.web.portal_views import done_path
from vgpuctl.controller.web.repeats import Repeats
from vgpuctl.errors import InvalidInput, NotAllowed, NotFound, Stale, VgpuctlError
from vgpuctl.value import EMPTY_MAPPING

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

MAX_TYPED, MAX_ADDRESS = 6000, 16_000
_LISTS = ("list-images", "list-pools", "show-overview")
_MINE = "/my/"


class WrongFields(InvalidInput):
    """Fields of a form are wrong: `facts["problems"]` has each with its name."""


class WebChanges:
    """The routes of changes. `callers`: says who sends them; `in_thread`: has what waits for the database done."""

    def __init__(self, fleet: FleetService, callers: Callers, in_thread: InThread, store: Store) -> None:
        self._fleet = fleet
        self._callers = callers
        self._in_thread = in_thread
        self._repeats = Repeats(store)

    def routes(self) -> list[Route]:
        """Return the routes."""
        errors = ErrorPages(self._callers, self._in_thread)
        return [
            Route(change.path, errors.guarded(answer(change)), methods=[method])
            for change in CHANGES.values()
            for method, answer in (("GET", self._show), ("POST", self._make))
        ]

    def _show(self, change: WebChange) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers with the form, or with the plan of what is typed."""

        async def show(request: Request) -> Response:
            def answer() -> Response:
                caller = self._callers.find(request, changes=False)
                token, typed = self._callers.token(request), _typed(request, change)
                if request.headers.get("sec-fetch-site", "none") in ("same-origin", "none"):
                    page, status = _FormAnswer(self._fleet, caller, change, token).page(typed)
                else:  # no other site's page has a change tried, or fills in a form
                    page, status = change_views.go_on_page(change, own_path(request)), 200
                return html(render.render_page(page, visitor_of(caller, token), None), status)

            response: Response = await self._in_thread(answer)
            return response

        return show

    def _make(self, change: WebChange) -> Callable[[Request], Awaitable[Response]]:
        """Return what makes the change."""

        async def make(request: Request) -> Response:
            form = await read_form(request)

            def answer() -> Response:
                token = form.get("token", "")
                caller = self._callers.find(request, changes=True, token=token)
                typed = _typed(request, change)
                form_answer = _FormAnswer(self._fleet, caller, change, token)
                what = {"path": change.path, **{name: text for name, text in typed.items() if name != PLAN}}
                try:
                    return self._repeats.answer(caller.key, form.get("once", ""), what, lambda: form_answer.make(typed))
                except VgpuctlError as error:
                    return form_answer.failed(typed, error)

            response: Response = await self._in_thread(answer)
            return response

        return make


class _FormAnswer:
    """The answers to one form of one caller."""

    def __init__(self, fleet: FleetService, caller: FleetCaller, change: WebChange, token: str) -> None:
        self._fleet = fleet
        self._caller = caller
        self._change = change
        self._token = token
        self._shown = fields_for(caller, change.visible) if change.has_spec else change.visible
        self._ask = Ask(fleet, caller, tuple(filter(None, (change.reads, change.listed_in, *_LISTS))))

    def page(self, typed: Typed) -> tuple[PageView, int]:
        """Return the form, or the plan of what is typed; and the status of the answer."""
        change = self._change
        try:
            now = self._read(typed)
        except (NotAllowed, NotFound) as error:
            if not is_plan(change, typed) or not self._may_choose_pool():
                raise
            text = "\n".join(filter(None, (error.message, hint_for(error, self._caller.role is not None))))
            return self._form(typed, None, {change.fleet_call.pool_argument: text}), status_of(error)
        if not is_plan(change, typed):
            if PLAN not in typed and now is not None:
                typed = {**change_views.typed_now(change, now), **typed}
            return self._form(self._with_generation(typed, now), now), 200
        try:
            return self._plan(typed, now), 200
        except VgpuctlError as error:
            return self._wrong(typed, now, error)

    def _may_choose_pool(self) -> bool:
        """Return whether the form has a field for the pool, and the caller may make the change about some pool."""
        call = self._change.fleet_call
        is_shown = any(one.name == call.pool_argument for one in self._change.visible)
        return is_shown and call.access.right is not None and has_right(self._caller, call.access.right, None)

    def _with_generation(self, typed: Typed, now: Any) -> Typed:
        """Return what is typed with the number of the version that it is about; 0: there is none yet."""
        change = self._change
        is_known = GENERATION in typed or "if_generation" not in change.fleet_call.parameters
        if is_known or "if_generation" in change.fixed or (now is None and not change.listed_in):
            return typed
        return {**typed, GENERATION: "0" if now is None else str(now.generation)}

    def make(self, typed: Typed) -> Response:
        """Make the change, and return where the browser goes then, or the page with its secret."""
        change, now = self._change, self._read(typed)
        result: Any = change.fleet_call.on(self._fleet, self._caller, self._arguments(typed))
        secret = getattr(result.data, "password", None) or getattr(result.data, "secret", None)
        back = change.filled(change.back, typed, now, in_path=True)
        if secret is None and not (change.answers and result.warnings):
            return RedirectResponse(back if not change.done else done_path(change.done, typed["name"]), 303)
        who = getattr(result.data, "user", None) or getattr(result.data, "name", "")
        text = (
            f"Log on as {who} with it."
            if not change.call.startswith("add-")
            else "Give it to the program that needs it."
        )
        text = "It is done." if secret is None else f"{text} It is shown this once."
        page = change_views.secret_page(change.filled(change.title, typed, now), text, secret, result.warnings, back)
        return html(render.render_page(page, visitor_of(self._caller, self._token), None))

    def failed(self, typed: Typed, error: VgpuctlError) -> Response:
        """Return the answer to a change that failed: where its plan fails, too, that."""
        page, status = self.page({**typed, PLAN: YES})
        if status >= 400:
            return RedirectResponse(self._change.href({**typed, PLAN: YES}), 303)
        page, status = self._wrong(typed, self._read(typed), error)
        return html(render.render_page(page, visitor_of(self._caller, self._token), None), status)

    def _read(self, typed: Typed) -> Any:
        """Return what is to be changed, as it is now; None: the change makes something new.

        Raises:
            NotAllowed, NotFound: the caller may not change it, or there is none.
        """
        change = self._change
        call = change.fleet_call
        subject = {name: text for name, text in typed.items() if name in call.parameters}
        hidden = [one.name for one in change.single_fields if one.kind is FieldKind.HIDDEN and one.name in call.in_path]
        if any(name not in subject for name in hidden):
            raise NotFound("Nothing is at this address: it does not say of what.")
        call.refuse_stranger(self._fleet, self._caller, subject)
        now = self._ask(change.reads, name=subject["name"]) if change.reads else None
        if change.listed_in:
            keys = {name: typed.get(name, "").strip() or None for name in change.listed_by}
            listed = self._ask(change.listed_in)
            now = next((one for one in listed if all(getattr(one, key) == text for key, text in keys.items())), None)
        if change.path.startswith(_MINE) and now is not None and now.user != self._caller.name:
            raise no_desktop(subject["name"])  # an operator's own page is about his own ones, too
        return now

    def _options(self, kind: str) -> Sequence[str]:
        """Return what can be chosen, of what the caller may see."""
        ask = self._ask
        if kind == "images":
            return [one.name for one in ask("list-images") if not one.retired] if ask.may("list-images") else ()
        pools = ask("show-overview", limit=1).pools if ask.may("show-overview") else ask("list-pools")
        return [one.name for one in pools]

    def _arguments(self, typed: Typed) -> dict[str, Any]:
        change = self._change
        arguments, problems = read_fields(
            [one for one in change.single_fields if not change.has_spec or one.name == "name"], typed
        )
        if change.has_spec:
            arguments["spec"], wrong = spec_of_typed(typed)
            problems |= wrong
        problems |= _too_long(change, typed)
        if problems:
            listed = [{"path": name, "problem": text} for name, text in problems.items()]
            texts = (f"{name}: {text}" if name else text for name, text in problems.items())
            raise WrongFields("; ".join(texts), problems=listed)
        if "if_generation" in change.fleet_call.parameters and re.fullmatch("[0-9]{1,18}", typed.get(GENERATION, "")):
            arguments["if_generation"] = int(typed[GENERATION])
        return {**arguments, **change.fixed}

    def _plan(self, typed: Typed, now: Any) -> PageView:
        change = self._change
        typed = self._with_generation(typed, now)  # what is made then is what this plan says
        arguments = self._arguments(typed)
        if change.fleet_call.has_dry_run:
            result = change.fleet_call.try_on(self._fleet, self._caller, arguments)
            rows = change_views.changed_rows(change, now, result.data)
        else:
            change.fleet_call.check(self._fleet, self._caller, arguments)
            result, rows = None, change_views.argument_rows(change, arguments)
        plan = change_views.plan_view(change, typed, now, result, self._token, secrets.token_urlsafe(16))
        return change_views.plan_page(change, typed, now, rows, plan)

    def _wrong(self, typed: Typed, now: Any, error: VgpuctlError) -> tuple[PageView, int]:
        """Return the form with what was typed and what is wrong with it, and the status of the answer."""
        change = self._change
        names = [name for one in self._shown for name in _names(one, typed)]
        if isinstance(error, Stale) and change.new_name is not None:
            name = typed.get(change.new_name, "")
            problems = {change.new_name: f"there is {name} already" if change.is_new else f"{name} has one already"}
            return self._form(typed, now, problems), 409
        if isinstance(error, Stale) and now is not None:
            stored = change_views.shown_values(change, now)
            others = change_views.versions_section(self._typed_values(typed, stored), stored)
            problems = {"": "Somebody else changed it since this form was opened. What you typed is still here."}
            newer = {**typed, GENERATION: str(now.generation)}
            return self._form(newer, now, problems, None, others), 412
        shown = place_problems(error, typed) if change.has_spec and not isinstance(error, WrongFields) else error
        problems = problems_of(shown, names)
        hint = hint_for(error, self._caller.role is not None)
        if hint is not None and "" not in problems:
            problems, hint = {name: f"{text}\n{hint}" for name, text in problems.items()}, None
        return self._form(typed, now, problems, hint), status_of(error)

    def _form(
        self, typed: Typed, now: Any, problems: Typed = EMPTY_MAPPING, hint: str | None = None, others: Any = None
    ) -> PageView:
        """Return the form with the fields that the caller may change."""
        return form_page(self._change, self._shown, typed, now, self._options, problems, hint, others)

    def _typed_values(self, typed: Typed, stored: Mapping[str, str]) -> dict[str, str]:
        """Return what is typed as a plan would compare it; what a form does not have is as it is stored."""
        change, arguments = self._change, self._arguments(typed)
        if change.has_spec:
            return change_views.spec_values(as_stored(arguments["spec"]))
        known = {one.name for one in change.visible} | arguments.keys()
        names = [name for name in change.shows if name in known]
        return {**stored, **{change_views.label_of(name): one_line(arguments.get(name)) for name in names}}


def _names(field: Any, typed: Typed) -> list[str]:
    if isinstance(field, RowsField):
        rows = range(row_count(field, typed))
        return [field.name, *(field_of_row(field, number, one).name for number in rows for one in field.fields)]
    return [field.name]


def _too_long(change: WebChange, typed: Typed) -> dict[str, str]:
    """Return the fields with more text than a form takes; under the empty name, that all of them have too much."""
    lengths = {name: len(text) for name, text in typed.items()}
    problems = {
        name: f"{length} characters, and at most {MAX_TYPED} fit"
        for name, length in lengths.items()
        if length > MAX_TYPED
    }
    if not problems and (length := len(change.href(typed))) > MAX_ADDRESS:
        problems[""] = (
            f"{length} characters are too much for an address, which has {MAX_ADDRESS}: use vgpuctl controller"
        )
    return problems


def _typed(request: Request, change: WebChange) -> dict[str, str]:
    """Return what is typed into a form, from the address.

    Raises:
        InvalidInput: a field is not the form's, or is there twice, or has what no form sends.
    """
    given = request.query_params
    known = {one.name for one in change.fields} | {GENERATION, PLAN}
    typed: dict[str, str] = {}
    for name, text in given.multi_items():
        rows = name.split(".")
        is_row = len(rows) == 3 and rows[0] in known and rows[1].isdecimal() and len(rows[1]) <= 2
        if name in typed or (name not in known and not is_row):
            raise InvalidInput(f"the address has an argument that it should not have: {name[:60]!a}")
        if "\0" in text:
            raise InvalidInput(f"{name}: a text has no NUL")
        if text:
            typed[name] = text.replace("\r\n", "\n")
    return typed
