# SPDX-License-Identifier: Apache-2.0
"""What people do on pages: they sign in and out, and take, start and open desktops of their own.

Each form carries the text that the header of a change has elsewhere, so that no other site's page can send it. After
a change the browser is sent to a page: reloading that changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from vgpuctl.controller.callers import Callers, address_of, session_secret, set_cookie
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.oidc_sign_in import RETURN_PATH
from vgpuctl.controller.policy import no_desktop
from vgpuctl.controller.routes import CALLS
from vgpuctl.controller.sessions import TooManyTries, WrongPassword
from vgpuctl.controller.sign_in.signed_in import SignInRefused, SignInUnavailable
from vgpuctl.controller.web import render
from vgpuctl.controller.web.answers import HEADERS, NO_STORE, ErrorPages, InThread, html, read_form, visitor_of
from vgpuctl.controller.web.change_views import secret_page
from vgpuctl.controller.web.portal_views import OPEN_PATH, done_path
from vgpuctl.errors import NotAllowed, NotFound, Temporary

SIGN_IN, SIGN_OUT, MINE = "/sign-in", "/sign-out", "/my"
RDP_TYPE = "application/x-rdp"
OIDC, OIDC_COOKIE = "/sign-in/oidc", "-oidc"
ACTIONS: Mapping[str, str] = {"take": "take-desktop", "start": "start-desktop"}
"""What a button of the page of one's own desktops does at once -> the call that does it; `changes` has the others."""


class WebForms:
    """The routes of forms. `callers`: says who sends them; `in_thread`: has what waits for the database done."""

    def __init__(self, fleet: FleetService, callers: Callers, in_thread: InThread) -> None:
        self._fleet = fleet
        self._callers = callers
        self._in_thread = in_thread

    def routes(self) -> list[Route]:
        """Return the routes."""
        errors = ErrorPages(self._callers, self._in_thread)
        return [
            Route(SIGN_IN, errors.guarded(self._show_sign_in, MINE), methods=["GET"]),
            Route(SIGN_IN, errors.guarded(self._sign_in, MINE), methods=["POST"]),
            Route(OIDC, errors.guarded(self._go_to_issuer, MINE), methods=["GET"]),
            Route(RETURN_PATH, errors.guarded(self._come_back, MINE), methods=["GET"]),
            Route(OPEN_PATH, errors.guarded(self._open, MINE), methods=["GET"]),
            Route(SIGN_OUT, errors.guarded(self._sign_out, MINE), methods=["POST"]),
            *(
                Route(f"{MINE}/{action}", errors.guarded(self._change(action), MINE), methods=["POST"])
                for action in ACTIONS
            ),
        ]

    async def _show_sign_in(self, request: Request) -> Response:
        return html(self._sign_in_page("", local_path(request.query_params.get("path", "/")), None))

    def _sign_in_page(self, name: str, path: str, problem: str | None) -> str:
        return render.render_sign_in(name, path, problem, self._callers.issuer)

    async def _go_to_issuer(self, request: Request) -> Response:
        """Send a browser to the issuer, where its user signs in."""
        oidc, path = self._callers.oidc, local_path(request.query_params.get("path", "/"))
        if oidc is None:
            raise NotFound("Nothing is at this address.")
        try:
            url, secret = await self._callers.threads.run(lambda: oidc.begin(path, address_of(request)))
        except (SignInUnavailable, TooManyTries) as error:
            status = 429 if isinstance(error, TooManyTries) else 503
            return html(self._sign_in_page("", path, error.message), status)
        response = RedirectResponse(url, 303, {"Cache-Control": "no-store"})
        set_cookie(request, response, secret, OIDC_COOKIE)
        return response

    async def _come_back(self, request: Request) -> Response:
        """Begin the session of somebody whom the issuer sends back."""
        oidc = self._callers.oidc
        if oidc is None:
            raise NotFound("Nothing is at this address.")
        secret, query, address = session_secret(request, OIDC_COOKIE), request.query_params, address_of(request)
        try:
            session, path = await self._callers.threads.run(lambda: oidc.finish(secret, dict(query), address))
        except (SignInRefused, SignInUnavailable, NotAllowed) as error:
            status = 503 if isinstance(error, SignInUnavailable) else 403
            response: Response = html(self._sign_in_page("", "/", error.message), status)
        else:
            response = RedirectResponse(local_path(path), 303)
            set_cookie(request, response, session.secret)
        set_cookie(request, response, None, OIDC_COOKIE)
        return response

    async def _sign_in(self, request: Request) -> Response:
        """Begin a session; what was typed as the name stays when something is wrong."""
        form = await read_form(request)
        name, path = form.get("user", ""), local_path(form.get("path", "/"))
        given = {"user": name, "password": form.get("password", "")}
        try:
            session = await self._callers.threads.run(lambda: self._callers.sign_in(request, given))
        except (WrongPassword, Temporary, NotAllowed, SignInRefused) as error:
            text = error.message if error.hint is None else f"{error.message}: {error.hint}"
            status = 429 if isinstance(error, TooManyTries) else 503 if isinstance(error, Temporary) else 401
            return html(self._sign_in_page(name, path, text), status)
        response = RedirectResponse(path, 303)
        set_cookie(request, response, session.secret)
        return response

    async def _sign_out(self, request: Request) -> Response:
        form = await read_form(request)

        def sign_out() -> None:
            self._callers.find(request, changes=True, token=form.get("token", ""))
            self._callers.sign_out(request)

        await self._in_thread(sign_out)
        response = RedirectResponse(SIGN_IN, 303)
        set_cookie(request, response, None)
        return response

    async def _open(self, request: Request) -> Response:
        """Answer with the RDP file of a desktop, or send the browser to its link."""
        name = request.query_params.get("name", "")

        def make() -> Response:
            caller = self._callers.find(request, changes=False)
            opened: Any = CALLS["open-desktop"].on(self._fleet, caller, {"name": name}).data
            if opened.file is None:
                return RedirectResponse(str(opened.link), 303, {**HEADERS, "Cache-Control": NO_STORE})
            headers = {"Content-Disposition": f'attachment; filename="{opened.name}.rdp"', "Cache-Control": NO_STORE}
            return Response(opened.file.encode("ascii"), 200, {**HEADERS, **headers}, RDP_TYPE)

        response: Response = await self._in_thread(make)
        return response

    def _change(self, action: str) -> Callable[[Request], Awaitable[Response]]:
        """Return what a button does: its call, as the one who presses it."""

        async def change(request: Request) -> Response:
            form = await read_form(request)
            token = form.pop("token", "")

            def make() -> Response:
                caller = self._callers.find(request, changes=True, token=token)
                call = CALLS[ACTIONS[action]]
                arguments: dict[str, Any] = {name: form[name] for name in call.in_path if name in form}
                if re.fullmatch("[0-9]{1,9}", form.get("have", "")) and "have" in call.parameters:
                    arguments["have"] = int(form["have"])
                if "name" in arguments:  # an operator's own page is about his own ones, too
                    mine: Any = CALLS["show-desktop"].on(self._fleet, caller, {"name": arguments["name"]}).data
                    if mine.user != caller.name:
                        raise no_desktop(arguments["name"])
                    arguments["if_generation"] = mine.generation
                result = call.on(self._fleet, caller, arguments)
                password = getattr(result.data, "password", None)
                name = str(getattr(result.data, "name", ""))
                if password is None:
                    return RedirectResponse(done_path(action, name), 303)
                text = f"Log on as {caller.name} with this password; it is good for one log-on, and is shown this once."
                page = secret_page(f"Your password for {name}", text, password, result.warnings, MINE)
                return html(render.render_page(page, visitor_of(caller, token), None))

            response: Response = await self._in_thread(make)
            return response

        return change


def local_path(text: str) -> str:
    """Return a path of this site to go to; of another site's address its first page."""
    is_local = text.startswith("/") and not text.startswith(("//", "/\\")) and text.isprintable() and len(text) <= 2000
    return text if is_local and not text.startswith((SIGN_IN, SIGN_OUT)) else "/"
