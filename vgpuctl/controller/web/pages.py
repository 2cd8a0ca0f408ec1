# SPDX-License-Identifier: Apache-2.0
"""The pages: for each its path, the calls that it makes, what of the query it takes, and how it is made of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import FleetCaller
from vgpuctl.controller.policy import FleetDecision, FleetTarget, decide, operates_pool, sees_pool
from vgpuctl.controller.routes import CALLS
from vgpuctl.controller.web import desktop_views, fleet_views, host_views, people_views, portal_views, progress_views
from vgpuctl.controller.web.bars import TEXTS, state_of_phase
from vgpuctl.controller.web.cells import PAGE_DESKTOPS
from vgpuctl.controller.web.changes import buttons
from vgpuctl.controller.web.console_view import CONSOLE, console_path, console_view
from vgpuctl.controller.web.csv_files import journal_csv, use_csv
from vgpuctl.controller.web.parts import PageButton, PageView, Section
from vgpuctl.errors import InvalidInput
from vgpuctl.model.results.fleet import DesktopResult
from vgpuctl.value import Value, replace

MAX_TEXT = 255
MOST_READ = 5
"""So many times desktops are read for one page with a filter by state; then a link goes on from there."""
PAGE_HOSTS = 40
USE_FILTERS = ("by", "since", "until", "pool")
FLEET = FleetTarget()
CSV = ".csv"
"""Is after the path of a page that is a file, too."""
_READ_AT_A_TIME = 1000
_IN_PATH = re.compile(r"\{([a-z]+)\}")


class Ask:
    """Makes the calls of one page for its caller, and no others."""

    def __init__(
        self, fleet: FleetService, caller: FleetCaller, calls: tuple[str, ...], token: str = "", site: str = ""
    ) -> None:
        self.token = token
        """What the forms of the page carry."""
        self.site = site
        """The URL of the controller, as the browser has it."""
        self._fleet = fleet
        self._calls = calls
        self.caller = caller

    def may(self, name: str) -> bool:
        """Return whether the caller may make a call that is about the fleet."""
        return decide(self.caller, CALLS[name].access, FLEET) is FleetDecision.ALLOW

    def __call__(self, name: str, /, **arguments: Any) -> Any:
        """Return the data of a call; arguments that are None are left out."""
        assert name in self._calls, f"the page does not say that it calls {name}"
        given = {key: value for key, value in arguments.items() if value is not None}
        return CALLS[name].on(self._fleet, self.caller, given).data


class PageKind(Value):
    """A page. `calls`: those that it makes. `takes`: keys of the query. `is_live`: it changes by itself.

    `build`: makes it of the answers, from the query and what is in the path. `more`: calls that it makes only for who
    may make them. `has_data_images`: scripts make images there. `csv`: makes the file with all that it
    lists, which is at its path with `.csv`.
    """

    path: str
    calls: tuple[str, ...]
    takes: tuple[str, ...]
    build: Callable[[Ask, Mapping[str, str]], PageView]
    is_live: bool = True
    more: tuple[str, ...] = ()
    has_data_images: bool = False
    csv: Callable[[Ask, Mapping[str, str]], str] | None = None

    def read_query(self, given: Mapping[str, str], count: int) -> dict[str, str]:
        """Return the query, checked. `count`: how many keys and values it had.

        Raises:
            InvalidInput: a key is unknown or is there twice, or a value is too long or no text.
        """
        if count > len(given):
            raise InvalidInput("the address has an argument twice", hint=f"open {self.path}")
        if unknown := sorted(given.keys() - set(self.takes)):
            raise InvalidInput(f"the address has an unknown argument: {unknown[0][:60]!a}", hint=f"open {self.path}")
        for name, value in given.items():
            if len(value) > MAX_TEXT or "\0" in value or not value.isprintable():
                raise InvalidInput(f"{name}: at most {MAX_TEXT} printable characters")
        return {name: value for name, value in given.items() if value}

    def match(self, path: str) -> dict[str, str] | None:
        """Return what is in a path of this page; None: it is of another one."""
        pattern = _IN_PATH.sub(r"(?P<\1>[^/]+)", self.path)
        result = re.fullmatch(pattern, path)
        return None if result is None else result.groupdict()


def _with_buttons(
    view: PageView,
    ask: Ask,
    page: str,
    target: FleetTarget = FLEET,
    name: str = "",
    shown: object = None,
    more: tuple[PageButton, ...] = (),
) -> PageView:
    """Return a page with the buttons that its caller may press, as `changes.buttons`; `more`: others before them."""
    given = (*more, *buttons(ask.caller, page, target, name, shown))
    return replace(view, sections=(Section("actions", "", "buttons", given), *view.sections)) if given else view


def _fleet(ask: Ask, query: Mapping[str, str]) -> PageView:
    overview = ask("show-overview", after=query.get("after"), limit=PAGE_HOSTS)
    return _with_buttons(fleet_views.fleet_view(overview, query), ask, "/", shown=overview)


def _pools(ask: Ask, query: Mapping[str, str]) -> PageView:
    if ask.may("show-overview"):
        view = fleet_views.pools_view(ask("show-overview", limit=1).pools, query)
    else:
        view = fleet_views.pools_view(tuple(map(fleet_views.overview_of, ask("list-pools"))), query)
    return _with_buttons(view, ask, "/pools")


def _pool(ask: Ask, query: Mapping[str, str]) -> PageView:
    name = query["name"]
    pool = ask("show-pool", name=name)
    view = fleet_views.pool_view(pool, ask("list-desktops", pool=name, limit=PAGE_DESKTOPS), query)
    return _with_buttons(view, ask, "/pools/{name}", FleetTarget(name), name, pool)


def _desktops(ask: Ask, query: Mapping[str, str]) -> PageView:
    state = query.get("state")
    if state is not None and state not in TEXTS:
        raise InvalidInput(f"state: one of {', '.join(TEXTS)}")
    rows, after = _read_desktops(ask, query, state)
    if ask.may("show-overview"):
        overview = ask("show-overview", limit=_READ_AT_A_TIME)
        pools, hosts = [one.name for one in overview.pools], [one.name for one in overview.hosts]
    else:
        pools, hosts = [one.name for one in ask("list-pools")], []
    return desktop_views.desktops_view(rows, after, pools, hosts, query)


def _read_desktops(ask: Ask, query: Mapping[str, str], state: str | None) -> tuple[list[DesktopResult], str | None]:
    """Return the desktops of a page, and after which one the next page begins; None: there is none."""
    limit = PAGE_DESKTOPS + 1 if state is None else _READ_AT_A_TIME
    after, rows = query.get("after"), []
    for _ in range(1 if state is None else MOST_READ):
        part: tuple[DesktopResult, ...] = ask(
            "list-desktops", pool=query.get("pool"), host=query.get("host"), user=query.get("user"), after=after,
            limit=limit,
        )  # fmt: skip
        rows += [one for one in part if state is None or state_of_phase(one.phase) == state]
        if len(rows) > PAGE_DESKTOPS:
            return rows[:PAGE_DESKTOPS], rows[PAGE_DESKTOPS - 1].name
        if len(part) < limit:
            return rows, None
        after = part[-1].name
    return rows, after


def _desktop(ask: Ask, query: Mapping[str, str]) -> PageView:
    one = ask("show-desktop", name=query["name"])
    events = ask("find-events", desktop=one.name, limit=20) if ask.may("find-events") else None
    target = FleetTarget(one.pool, one.user, is_desktop=True)
    is_users = not sees_pool(ask.caller, one.pool)
    view = desktop_views.desktop_view(one, events, query, is_users=is_users)
    more = (PageButton("Console", console_path(one.name)),) if operates_pool(ask.caller, one.pool) else ()
    return _with_buttons(view, ask, "/desktops/{name}", target, one.name, one, more)


def _console(ask: Ask, query: Mapping[str, str]) -> PageView:
    return console_view(ask("show-console", name=query["name"]), ask.token)


def _hosts(ask: Ask, query: Mapping[str, str]) -> PageView:
    overview = ask("show-overview", after=query.get("after"), limit=200)
    return _with_buttons(host_views.hosts_view(overview, query), ask, "/hosts")


def _host(ask: Ask, query: Mapping[str, str]) -> PageView:
    host = ask("show-host", name=query["name"])
    view = host_views.host_view(host, ask("show-overview", host=host.name), query)
    return _with_buttons(view, ask, "/hosts/{name}", name=host.name, shown=host)


def _images(ask: Ask, query: Mapping[str, str]) -> PageView:
    return _with_buttons(host_views.images_view(ask("list-images"), query), ask, "/images")


def _image(ask: Ask, query: Mapping[str, str]) -> PageView:
    image = ask("show-image", name=query["name"])
    return _with_buttons(host_views.image_view(image, query), ask, "/images/{name}", name=image.name, shown=image)


def _journal(ask: Ask, query: Mapping[str, str]) -> PageView:
    before = query.get("before")
    if before is not None and not (before.isascii() and before.isdigit() and len(before) <= 18):
        raise InvalidInput("before: the number of an entry")
    filters = {name: query.get(name) for name in desktop_views.JOURNAL_FILTERS}
    number = None if before is None else int(before)
    return desktop_views.journal_view(
        ask("find-events", before=number, limit=desktop_views.PAGE_EVENTS, **filters), query
    )


def _people(ask: Ask, query: Mapping[str, str]) -> PageView:
    people = ask("list-people", after=query.get("after"), limit=people_views.PAGE_PEOPLE + 1)
    return _with_buttons(people_views.people_view(people, ask("list-entitlements"), query), ask, "/people")


def _person(ask: Ask, query: Mapping[str, str]) -> PageView:
    one = ask("show-person", name=query["name"])
    desktops = ask("list-desktops", user=one.name, limit=PAGE_DESKTOPS)
    view = people_views.person_view(one, desktops)
    return _with_buttons(view, ask, "/people/{name}", name=one.name, shown=one)


def _rights(ask: Ask, query: Mapping[str, str]) -> PageView:
    quotas = ask("list-quotas") if ask.may("list-quotas") else None
    return _with_buttons(people_views.rights_view(ask("list-entitlements"), quotas, ask.caller), ask, "/rights")


def _use(ask: Ask, query: Mapping[str, str]) -> PageView:
    return people_views.use_view(ask("show-use", **{name: query.get(name) for name in USE_FILTERS}), query)


def _use_csv(ask: Ask, query: Mapping[str, str]) -> str:
    return use_csv(ask, {name: query.get(name) for name in USE_FILTERS})


def _journal_csv(ask: Ask, query: Mapping[str, str]) -> str:
    return journal_csv(ask, {name: query.get(name) for name in desktop_views.JOURNAL_FILTERS})


def _tokens(ask: Ask, query: Mapping[str, str]) -> PageView:
    return _with_buttons(people_views.tokens_view(ask("list-tokens")), ask, "/tokens")


def _progress(ask: Ask, query: Mapping[str, str]) -> PageView:
    return progress_views.progress_view(ask("show-progress"))


def _capacity(ask: Ask, query: Mapping[str, str]) -> PageView:
    return progress_views.capacity_view(ask("show-capacity"))


def _mine(ask: Ask, query: Mapping[str, str]) -> PageView:
    pools, desktops, myself = ask("list-my-pools"), ask("list-my-desktops"), ask("show-myself")
    view = portal_views.portal_view(
        pools, desktops, ask.token, myself.limits, ask.caller.name, ask.site, own_password=myself.own_password
    )
    done = portal_views.done_section(query.get("done", ""), query.get("name", ""))
    return view if done is None else replace(view, sections=(done, *view.sections))


def _my_tokens(ask: Ask, query: Mapping[str, str]) -> PageView:
    return _with_buttons(people_views.my_tokens_view(ask("list-my-tokens")), ask, "/my/tokens")


PAGES = (
    PageKind("/", ("show-overview",), ("after",), _fleet),
    PageKind("/pools", ("list-pools",), (), _pools, more=("show-overview",)),
    PageKind("/pools/{name}", ("show-pool", "list-desktops"), (), _pool),
    PageKind(
        "/desktops", ("list-desktops",), ("pool", "host", "state", "user", "after"), _desktops,
        more=("show-overview", "list-pools"),
    ),
    PageKind("/desktops/{name}", ("show-desktop",), (), _desktop, more=("find-events",)),
    PageKind(CONSOLE, ("show-console",), (), _console, is_live=False, has_data_images=True),
    PageKind("/hosts", ("show-overview",), ("after",), _hosts),
    PageKind("/hosts/{name}", ("show-host", "show-overview"), (), _host),
    PageKind("/images", ("list-images",), (), _images),
    PageKind("/images/{name}", ("show-image",), (), _image),
    PageKind("/capacity", ("show-capacity",), (), _capacity, is_live=False),
    PageKind("/progress", ("show-progress",), (), _progress),
    PageKind("/people", ("list-people", "list-entitlements"), ("after",), _people),
    PageKind("/people/{name}", ("show-person", "list-desktops"), (), _person),
    PageKind("/rights", ("list-entitlements",), (), _rights, more=("list-quotas",)),
    PageKind("/use", ("show-use",), USE_FILTERS, _use, is_live=False, csv=_use_csv),
    PageKind("/tokens", ("list-tokens",), (), _tokens),
    PageKind("/my", ("list-my-pools", "list-my-desktops", "show-myself"), ("done", "name"), _mine),
    PageKind("/my/tokens", ("list-my-tokens",), (), _my_tokens),
    PageKind("/journal", ("find-events",), (*desktop_views.JOURNAL_FILTERS, "before"), _journal, csv=_journal_csv),
)  # fmt: skip
"""Every page."""


def opens(caller: FleetCaller, href: str) -> bool:
    """Return whether a path leads to a page that a caller may see, as far as its calls are not about one thing."""
    path = href.partition("?")[0].removesuffix(CSV)
    page = next((one for one in PAGES if one.match(path) is not None), None)
    accesses = () if page is None else tuple(CALLS[name].access for name in page.calls)
    return all(
        decide(caller, one, FLEET) is FleetDecision.ALLOW or (one.right is not None and not one.any_pool)
        for one in accesses
    )
