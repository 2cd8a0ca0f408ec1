# SPDX-License-Identifier: Apache-2.0
"""What pages and forms share: the fields of a form, HTML with the headers that keep it safe, errors, who asks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from vgpuctl.agent.http_input import read_bytes
from vgpuctl.controller.callers import Callers
from vgpuctl.controller.model import CallerKind, FleetCaller
from vgpuctl.controller.policy import FleetDecision, FleetTarget, decide
from vgpuctl.controller.routes import CALLS
from vgpuctl.controller.web import render
from vgpuctl.controller.web.csv_files import CSV_TYPE
from vgpuctl.controller.web.pages import PAGES
from vgpuctl.controller.web.parts import PageView, Visitor
from vgpuctl.errors import InvalidInput, VgpuctlError, explain_exception

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
DATA_IMAGES_POLICY = POLICY.replace("img-src 'self'", "img-src 'self' data:")
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_STORE = "no-store"
NOBODY = Visitor()
MAX_FORM_BYTES, MAX_FIELDS = 16 << 10, 20
FORM_TYPE = "application/x-www-form-urlencoded"
_STATUSES = {"stale": 412, "not-found": 404, "not-allowed": 403, "not-signed-in": 401}
_STATUSES_OF_EXITS = {2: 400, 3: 409, 4: 409, 7: 409, 75: 503}
_TITLES = {
    400: "This address is wrong", 401: "You are not signed in", 403: "You may not see this",
    404: "There is no such page", 409: "It cannot be done now", 503: "It does not work just now",
}  # fmt: skip

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


def visitor_of(caller: FleetCaller, token: str) -> Visitor:
    """Return who looks at a page, with the entries of the menu whose calls he may make."""
    calls = {page.path: page.calls for page in PAGES}
    nav = tuple(
        entry
        for entry in render.NAV
        if all(decide(caller, CALLS[name].access, FleetTarget()) is FleetDecision.ALLOW for name in calls[entry[2]])
    )
    return Visitor(caller.name, nav, token if caller.kind is CallerKind.PERSON else "", caller.role is not None)


def own_path(request: Request) -> str:
    """Return the path of a request with its query."""
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def fragment(view: PageView, name: str) -> Response:
    """Answer with one section of a page."""
    if name == render.SUMMARY:
        return html(render.render_summary(view))
    for section in view.sections:
        if section.name == name:
            return html(render.render_section(section))
    return html("", 404)


def html(text: str, status: int = 200) -> Response:
    """Answer with a page, which nobody keeps."""
    return HTMLResponse(text.encode(errors="replace"), status, {**HEADERS, "Cache-Control": NO_STORE})


def csv_file(text: str, name: str) -> Response:
    """Answer with a file that a browser saves under a name."""
    headers = {"Content-Disposition": f'attachment; filename="{name}.csv"', "Cache-Control": NO_STORE}
    return Response(text.encode(errors="replace"), 200, {**HEADERS, **headers}, CSV_TYPE)


def error_page(error: VgpuctlError, visitor: Visitor = NOBODY, path: str = "/", issuer: str | None = None) -> Response:
    """Answer with what failed; who has not signed in can do so, and gets to `path` then.

    `issuer`: where he can sign in, too.
    """
    status = status_of(error)
    title = _TITLES.get(status, "This failed")
    if error.code == "not-signed-in":
        return html(render.render_sign_in("", path, None, issuer), 401)
    response = html(render.render_error(title, error.message, hint_for(error, visitor.has_role), visitor), status)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status == 503:
        response.headers["Retry-After"] = "5"
    return response


def hint_for(error: VgpuctlError, has_role: bool) -> str | None:
    """Return what helps against an error; commands are for who has a role in the fleet."""
    return error.hint if has_role or "vgpuctl " not in (error.hint or "") else None


def status_of(error: VgpuctlError) -> int:
    """Return the status of an answer with an error."""
    return _STATUSES.get(error.code) or _STATUSES_OF_EXITS.get(error.status, 500)


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that a browser sent.

    Raises:
        InvalidInput: it is none, or a field is there twice. HTTPException: it is too large, or does not arrive.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != FORM_TYPE:
        raise InvalidInput("this is not what a form sends")
    data = await read_bytes(request, MAX_FORM_BYTES)
    try:
        pairs = parse_qsl(data.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError as error:
        raise InvalidInput(f"this is not what a form sends: {error}") from error
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise InvalidInput("a field of the form is there twice")
    return fields


class ErrorPages:
    """Answers with pages where something fails. `callers`: says whose menu they have; `in_thread`: has that asked."""

    def __init__(self, callers: Callers, in_thread: InThread) -> None:
        self._callers = callers
        self._in_thread = in_thread

    def guarded(
        self, answer: Callable[[Request], Awaitable[Response]], path: str | None = None
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers with a page where `answer` fails with an error for people.

        `path`: where somebody gets who signs in then; without one it is the request's own.
        """

        async def answered(request: Request) -> Response:
            try:
                return await answer(request)
            except HTTPException:
                raise
            except Exception as exc:
                error = explain_exception(exc)
                if not isinstance(error, VgpuctlError):
                    raise
            visitor = NOBODY if error.code == "not-signed-in" else await self._visitor(request)
            return error_page(error, visitor, own_path(request) if path is None else path, self._callers.issuer)

        return answered

    async def _visitor(self, request: Request) -> Visitor:
        """Return who gets the page; nobody while that cannot be asked."""
        with suppress(VgpuctlError):
            caller: FleetCaller = await self._in_thread(
                lambda: self._callers.find(request, changes=False, touches=False)
            )
            return visitor_of(caller, self._callers.token(request))
        return NOBODY
