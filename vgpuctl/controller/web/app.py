# SPDX-License-Identifier: Apache-2.0
"""Answers browsers: pages, their sections, the stream that keeps a page live, and the files of the look.

    web = WebPages(fleet, callers, in_thread, store)
    Starlette(routes=[*routes, *web.routes()])

`routes()` ends with one for all paths that are no page and not below /api/, so it is the last one of an application.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Match, Route

from vgpuctl.controller.callers import Callers
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import CallerKind, FleetCaller
from vgpuctl.controller.web import render
from vgpuctl.controller.web.answers import (
    DATA_IMAGES_POLICY,
    HEADERS,
    ErrorPages,
    InThread,
    csv_file,
    error_page,
    fragment,
    html,
    own_path,
    visitor_of,
)
from vgpuctl.controller.web.change_routes import WebChanges
from vgpuctl.controller.web.forms import MINE, WebForms
from vgpuctl.controller.web.live import Digests, LiveStreams, LiveTimes
from vgpuctl.controller.web.pages import CSV, PAGES, Ask, PageKind, opens
from vgpuctl.controller.web.parts import PageView, without_links
from vgpuctl.controller.web.password_page import PasswordPage
from vgpuctl.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from vgpuctl.controller.database.store import Store

FOR_A_YEAR = "public, max-age=31536000, immutable"
STREAM, SECTION = "/web/stream", "section"
MAX_PAGE_CHARACTERS = 2000


class WebPages:
    """The pages. `callers`: says who asks; `in_thread`: has something done that waits for the database."""

    def __init__(
        self,
        fleet: FleetService,
        callers: Callers,
        in_thread: InThread,
        store: Store,
        times: LiveTimes = LiveTimes(),  # noqa: B008 - values do not change
    ) -> None:
        self._fleet = fleet
        self._callers = callers
        self._in_thread = in_thread
        self._store = store
        self._errors = ErrorPages(callers, in_thread)
        self.live = LiveStreams(store.changes, times)

    def close(self) -> None:
        """End the streams."""
        self.live.close()

    def routes(self) -> list[Route]:
        """Return the routes of all pages, and what belongs to them."""
        pages = [Route(page.path, self._answer(page), methods=["GET"]) for page in PAGES]
        return [
            *pages,
            *(Route(page.path + CSV, self._answer(page, is_file=True), methods=["GET"]) for page in PAGES if page.csv),
            *WebForms(self._fleet, self._callers, self._in_thread).routes(),
            *PasswordPage(self._fleet, self._callers, self._in_thread).routes(),
            *WebChanges(self._fleet, self._callers, self._in_thread, self._store).routes(),
            Route(STREAM, self._errors.guarded(self._stream, "/"), methods=["GET"]),
            Route("/web/static/{digest}/{name:path}", _static, methods=["GET"]),
            _Rest("/{path:path}", self._errors.guarded(self._missing), methods=["GET"]),
        ]

    def _answer(self, page: PageKind, *, is_file: bool = False) -> Callable[[Request], Awaitable[Response]]:
        """Return what answers with a page, or one section of it; `is_file`: with all that it lists, as CSV."""

        async def answer(request: Request) -> Response:
            given = dict(request.query_params)
            section = given.pop(SECTION, None)
            count = len(request.query_params.multi_items()) - (section is not None)

            def make() -> Response:
                caller = self._callers.find(request, changes=False, touches=section is None)
                token = self._callers.token(request)
                if page.path == "/" and caller.role is None:  # he sees nothing of the fleet, and perhaps a pool
                    nav = visitor_of(caller, token).nav
                    if caller.kind is CallerKind.PERSON or nav:
                        return RedirectResponse(MINE if caller.kind is CallerKind.PERSON else nav[0][2], 303)
                query = page.read_query(given, count)
                if is_file and page.csv is not None:
                    return csv_file(page.csv(self._asked(page, caller, request), query), page.path.strip("/"))
                view = self._view(page, caller, request, request.path_params, query)
                if section is not None:
                    return fragment(view, section)
                path = own_path(request)
                stream = f"{STREAM}?page={quote(path, safe='')}" if page.is_live else None
                response = html(render.render_page(view, visitor_of(caller, token), stream))
                if page.has_data_images:
                    response.headers["Content-Security-Policy"] = DATA_IMAGES_POLICY
                return response

            response: Response = await self._in_thread(make)
            return response

        return self._errors.guarded(answer)

    def _asked(self, page: PageKind, caller: FleetCaller, request: Request) -> Ask:
        token, site = self._callers.token(request), str(request.base_url).rstrip("/")
        return Ask(self._fleet, caller, (*page.calls, *page.more), token, site)

    def _view(
        self,
        page: PageKind,
        caller: FleetCaller,
        request: Request,
        in_path: Mapping[str, str],
        query: Mapping[str, str],
    ) -> PageView:
        view = page.build(self._asked(page, caller, request), {**query, **in_path})
        return view if caller.role is not None else without_links(view, lambda href: opens(caller, href))

    async def _stream(self, request: Request) -> Response:
        """Answer with the stream of a page."""
        caller: FleetCaller = await self._in_thread(lambda: self._callers.find(request, changes=False, touches=False))
        address = request.query_params.get("page", "")
        page, in_path, query = _page_at(address)

        def read() -> Digests:
            now = self._callers.find(request, changes=False, touches=False)  # who lost his right sees nothing any more
            return render.section_digests(self._view(page, now, request, in_path, query))

        response = self.live.open(caller.name, (address, repr(caller)), read)
        response.headers.update(HEADERS)
        return response

    async def _missing(self, request: Request) -> Response:
        """Answer who asks for a page that is none."""
        raise NotFound("Nothing is at this address.")


class _Rest(Route):
    """All other paths, but not those of the API."""

    def matches(self, scope: Any) -> tuple[Match, Any]:
        """Return whether it is one."""
        if scope.get("path", "").startswith("/api/") or scope.get("method") not in ("GET", "HEAD"):
            return Match.NONE, {}
        return super().matches(scope)


def _page_at(address: str) -> tuple[PageKind, Mapping[str, str], dict[str, str]]:
    """Return the page at a path with a query, what is in its path, and the query.

    Raises:
        NotFound: there is none. InvalidInput: the query is wrong.
    """
    if not 0 < len(address) <= MAX_PAGE_CHARACTERS or not address.startswith("/") or address.startswith("//"):
        raise InvalidInput("page: the path of a page, with its query")
    try:
        parts = urlsplit(address)
        pairs = parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise InvalidInput(f"page: {error}") from error
    for page in PAGES:
        in_path = page.match(unquote(parts.path))
        if in_path is not None:
            return page, in_path, page.read_query(dict(pairs), len(pairs))
    raise NotFound("Nothing is at this address.")


async def _static(request: Request) -> Response:
    """Answer with a file of the look; its URL has a digest of it."""
    digest, data = render.static_files().get(request.path_params["name"], ("", b""))
    if not digest or digest != request.path_params["digest"]:
        return error_page(NotFound("Nothing is at this address."))
    kind = render.STATIC_TYPES["." + request.path_params["name"].rpartition(".")[2]]
    return Response(data, 200, {**HEADERS, "Cache-Control": FOR_A_YEAR}, kind)
