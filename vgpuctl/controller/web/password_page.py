# SPDX-License-Identifier: Apache-2.0
"""The page on which a local person changes his own password; people of a directory have theirs there."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from vgpuctl.controller.callers import Callers
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import FleetCaller
from vgpuctl.controller.routes import CALLS
from vgpuctl.controller.sessions import LEAST_CHARACTERS, MOST_CHARACTERS, TooManyTries, WrongPassword
from vgpuctl.controller.web import render
from vgpuctl.controller.web.answers import ErrorPages, InThread, html, read_form, visitor_of
from vgpuctl.controller.web.parts import Link, PageView, Section
from vgpuctl.controller.web.portal_views import CHANGE_PATH, done_path
from vgpuctl.errors import InvalidInput, NotFound, Temporary
from vgpuctl.value import Value


class PasswordForm(Value):
    """The form. `token`: what it carries; `problem`: what was wrong with what was typed."""

    name: str
    token: str
    problem: str | None = None
    least: int = LEAST_CHARACTERS
    most: int = MOST_CHARACTERS


class PasswordPage:
    """The routes of the page."""

    def __init__(self, fleet: FleetService, callers: Callers, in_thread: InThread) -> None:
        self._fleet = fleet
        self._callers = callers
        self._in_thread = in_thread

    def routes(self) -> list[Route]:
        """Return the routes."""
        errors = ErrorPages(self._callers, self._in_thread)
        return [
            Route(CHANGE_PATH, errors.guarded(self._show), methods=["GET"]),
            Route(CHANGE_PATH, errors.guarded(self._change, CHANGE_PATH), methods=["POST"]),
        ]

    async def _show(self, request: Request) -> Response:
        def answer() -> Response:
            return self._page(self._callers.find(request, changes=False), self._callers.token(request))

        response: Response = await self._in_thread(answer)
        return response

    def _page(self, caller: FleetCaller, token: str, problem: str | None = None, status: int = 200) -> Response:
        myself: Any = CALLS["show-myself"].on(self._fleet, caller, {}).data
        if not myself.own_password:
            raise NotFound("The controller has no password of yours.", hint="Your directory has it: change it there.")
        form = PasswordForm(caller.name, token, problem)
        trail = (Link("My desktops", "/my"),)
        page = PageView("Your password", "my", "", (Section("password", "", "password", form),), trail)
        return html(render.render_page(page, visitor_of(caller, token), None), status)

    async def _change(self, request: Request) -> Response:
        form = await read_form(request)
        token = form.get("token", "")
        given = {"old": form.get("old", ""), "new": form.get("new", "")}

        def change() -> None:
            self._callers.find(request, changes=True, token=token)
            self._fleet.refuse_unconfirmed("set-password")
            if form.get("again") != given["new"]:
                raise InvalidInput("the two new passwords differ")
            self._callers.change_password(request, given, token)

        try:
            await self._callers.threads.run(change)
        except (InvalidInput, WrongPassword, Temporary) as error:
            text = error.message if error.hint is None else f"{error.message}: {error.hint}"
            status = 429 if isinstance(error, TooManyTries) else 503 if isinstance(error, Temporary) else 400
        else:
            return RedirectResponse(done_path("password"), 303)

        def answer() -> Response:
            return self._page(self._callers.find(request, changes=False), token, text, status)

        response: Response = await self._in_thread(answer)
        return response
