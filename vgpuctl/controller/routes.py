# SPDX-License-Identifier: Apache-2.0
"""The calls of the controller's API: one table, from which the server, the client and OpenAPI follow.

A call's arguments are those of its method in `fleet.FleetService`. What is in the path is named there; the others of a
GET or DELETE are in the query, those of a PUT or POST in the body, a JSON object.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Mapping
from typing import Any

from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import FleetCaller, Right, Role
from vgpuctl.controller.policy import (
    Access,
    FleetDecision,
    FleetTarget,
    decide,
    no_desktop,
    no_pool,
    not_allowed,
)
from vgpuctl.errors import InvalidInput, VgpuctlError
from vgpuctl.library.call_table import Parameter
from vgpuctl.model.outcome import AnyResult
from vgpuctl.model.result_reader import Mismatch
from vgpuctl.value import Value, replace

API = "/api/v1"
DRY_RUN = "dry_run"
"""In the query of a change, `true`: it is checked, and answered as if it were made, and not made."""
_IN_PATH = re.compile(r"\{([a-z_]+)\}")


class FleetCall(Value):
    """One call. `access`: who may make it."""

    name: str
    method: str
    path: str
    access: Access

    @property
    def changes(self) -> bool:
        """Whether it changes something: `fits` has a spec in its body, and only counts."""
        return self.method != "GET" and self.name != "fits"

    @property
    def has_dry_run(self) -> bool:
        """Whether it can be checked without being made: a token's secret cannot, nor what a host is asked for."""
        return self.changes and self.name not in (
            "add-token", "add-my-token", "set-password", "new-password", "accept-host", "open-console",
        )  # fmt: skip

    @property
    def has_secret(self) -> bool:
        """Whether its answer is of no use without a secret that the database must not have."""
        return self.name in ("add-token", "add-my-token", "set-password", "open-console")

    @property
    def desktop_argument(self) -> str | None:
        """The argument that names the desktop that it is about; None: it is about none."""
        return "name" if self.path.startswith("/desktops/{name}") else None

    @property
    def pool_argument(self) -> str:
        """The argument that names the pool that it is about, if it has one."""
        return "name" if self.path.startswith("/pools/{name}") else "pool"

    @property
    def in_path(self) -> tuple[str, ...]:
        """The arguments that are in the path."""
        return tuple(_IN_PATH.findall(self.path))

    @property
    def summary(self) -> str:
        """What it does, in a sentence."""
        return (inspect.getdoc(self._function) or "").partition("\n")[0]

    @property
    def result_type(self) -> Any:
        """The type of what it returns."""
        return typing.get_type_hints(self._function)["return"]

    @property
    def parameters(self) -> Mapping[str, Parameter]:
        """Its arguments by name."""
        hints = typing.get_type_hints(self._function)
        given = [*inspect.signature(self._function).parameters.values()][2:]
        return {one.name: Parameter(one.name, hints[one.name], one.default is one.empty) for one in given}

    def read(self, given: Mapping[str, Any], *, from_text: bool) -> dict[str, Any]:
        """Return some of the arguments, checked. `from_text`: they are texts of a URL.

        Raises:
            InvalidInput: a name is unknown, or is in the path; or a value has another type.
        """
        parameters = {name: one for name, one in self.parameters.items() if name not in self.in_path}
        if unknown := sorted(given.keys() - parameters.keys()):
            takes = ", ".join(parameters) or "no arguments"
            raise InvalidInput(f"{self.name}: {', '.join(unknown)}: not known; it takes {takes}", fields=unknown)
        try:
            return {n: parameters[n].read(_typed(parameters[n], v) if from_text else v) for n, v in given.items()}
        except (Mismatch, ValueError) as error:
            raise InvalidInput(f"{self.name}: {error}") from error

    def refuse_stranger(self, fleet: FleetService, caller: FleetCaller, arguments: Mapping[str, Any]) -> None:
        """Refuse a call that its caller may not make.

        Raises:
            NotAllowed: he may not. NotFound: nor may he know whether what he names exists.
        """
        _refuse_unstorable(self.name, arguments)
        pool, desktop = arguments.get(self.pool_argument), arguments.get(self.desktop_argument or "")
        target = FleetTarget(pool if isinstance(pool, str) else None)
        if self.desktop_argument is not None:
            target = fleet.find_target(str(desktop))
        decision = decide(caller, self.access, target)
        if decision is FleetDecision.HIDE:
            raise no_pool(str(pool)) if self.desktop_argument is None else no_desktop(str(desktop))
        if decision is FleetDecision.DENY:
            raise not_allowed(self.name, self.access, caller)

    def check(self, fleet: FleetService, caller: FleetCaller, arguments: Mapping[str, Any]) -> None:
        """Refuse a call that its caller may not make, or that lacks an argument.

        Raises:
            VgpuctlError: as `refuse_stranger`. InvalidInput: arguments are missing.
        """
        self.refuse_stranger(fleet, caller, arguments)
        if missing := sorted(name for name, one in self.parameters.items() if one.required and name not in arguments):
            raise InvalidInput(f"{self.name}: {', '.join(missing)}: missing", fields=missing)

    def on(self, fleet: FleetService, caller: FleetCaller, arguments: Mapping[str, Any]) -> AnyResult:
        """Make the call, if its caller may. `arguments`: from `read`, and those in the path.

        Raises:
            VgpuctlError: as `check`, and as the method of `FleetService`.
        """
        self.check(fleet, caller, arguments)
        if self.changes:
            fleet.refuse_unconfirmed(self.name)
        try:
            with fleet.made_by(caller):
                result: AnyResult = self._function(fleet, caller, **arguments)
                return result
        except VgpuctlError as error:
            fleet.count_refusal(self.name, caller, arguments, error)
            raise

    def try_on(self, fleet: FleetService, caller: FleetCaller, arguments: Mapping[str, Any]) -> AnyResult:
        """Check the call, and return what it would return; nothing is changed.

        Raises:
            VgpuctlError: as `on`.
        """
        assert self.has_dry_run, f"{self.name} cannot be tried"
        with fleet.dry_run():
            return replace(self.on(fleet, caller, arguments), dry_run=True)

    @property
    def _function(self) -> Any:
        return getattr(FleetService, self.name.replace("-", "_"))


def _refuse_unstorable(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse texts that no database stores: those with NUL, and halves of characters."""
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{name}: an argument is no text") from None
    if "\\u0000" in text:
        raise InvalidInput(f"{name}: an argument has the character NUL")


def _typed(parameter: Parameter, value: object) -> object:
    """Return an argument in a URL as the type that it has: a number where one is expected."""
    kinds = typing.get_args(parameter.type) or (parameter.type,)
    return int(str(value)) if int in kinds else value


_SEE, _OPERATE, _ADMIN = Access(Role.VIEWER), Access(Role.OPERATOR), Access(Role.ADMIN)
_SEE_POOL = Access(Role.VIEWER, Right.OPERATE)
_LIST_POOLS = Access(Role.VIEWER, Right.OPERATE, any_pool=True)
_SEE_IMAGES = Access(Role.VIEWER, Right.MANAGE, any_pool=True)
_OPERATE_POOL = Access(Role.OPERATOR, Right.OPERATE)
_USE_DESKTOP = Access(Role.OPERATOR, Right.OPERATE, own=True)
_ENTITLE = Access(Role.ADMIN, Right.MANAGE)
_MYSELF = Access(None, myself=True)

CALLS: Mapping[str, FleetCall] = {
    call.name: call
    for call in (
        FleetCall("show-fleet", "GET", "", _SEE),
        FleetCall("show-overview", "GET", "/overview", _SEE),
        FleetCall("list-pools", "GET", "/pools", _LIST_POOLS),
        FleetCall("show-pool", "GET", "/pools/{name}", _SEE_POOL),
        FleetCall("ensure-pool", "PUT", "/pools/{name}", Access(Role.OPERATOR, Right.MANAGE)),
        FleetCall("delete-pool", "DELETE", "/pools/{name}", _ADMIN),
        FleetCall("pause-pool", "POST", "/pools/{name}/pause", _OPERATE_POOL),
        FleetCall("message-pool", "POST", "/pools/{name}/message", _OPERATE_POOL),
        FleetCall("resume-pool", "POST", "/pools/{name}/resume", _OPERATE_POOL),
        FleetCall("fits", "POST", "/fits", _SEE),
        FleetCall("show-progress", "GET", "/progress", _LIST_POOLS),
        FleetCall("show-capacity", "GET", "/capacity", _SEE),
        FleetCall("assign", "POST", "/pools/{pool}/desktops", _OPERATE_POOL),
        FleetCall("list-desktops", "GET", "/desktops", _LIST_POOLS),
        FleetCall("show-desktop", "GET", "/desktops/{name}", Access(Role.VIEWER, Right.OPERATE, own=True)),
        FleetCall("open-desktop", "GET", "/desktops/{name}/open", Access(Role.OPERATOR, Right.OPERATE, own=True)),
        FleetCall("connect-desktop", "GET", "/desktops/{name}/ports", _USE_DESKTOP),
        FleetCall("show-console", "GET", "/desktops/{name}/console", _USE_DESKTOP),
        FleetCall("open-console", "POST", "/desktops/{name}/console", _USE_DESKTOP),
        FleetCall("release", "POST", "/desktops/{name}/release", _USE_DESKTOP),
        FleetCall("start-desktop", "POST", "/desktops/{name}/start", _USE_DESKTOP),
        FleetCall("stop-desktop", "POST", "/desktops/{name}/stop", _USE_DESKTOP),
        FleetCall("restart-desktop", "POST", "/desktops/{name}/restart", _USE_DESKTOP),
        FleetCall("move-desktop", "POST", "/desktops/{name}/move", _ADMIN),
        FleetCall("new-password", "POST", "/desktops/{name}/password", _USE_DESKTOP),
        FleetCall("delete-desktop", "DELETE", "/desktops/{name}", Access(Role.OPERATOR, Right.MANAGE)),
        FleetCall("list-hosts", "GET", "/hosts", _SEE),
        FleetCall("show-host", "GET", "/hosts/{name}", _SEE),
        FleetCall("add-host", "PUT", "/hosts/{name}", _ADMIN),
        FleetCall("accept-host", "POST", "/hosts/{name}/accept", _ADMIN),
        FleetCall("cordon-host", "POST", "/hosts/{name}/cordon", _OPERATE),
        FleetCall("drain-host", "POST", "/hosts/{name}/drain", _OPERATE),
        FleetCall("uncordon-host", "POST", "/hosts/{name}/uncordon", _OPERATE),
        FleetCall("label-host", "PUT", "/hosts/{name}/labels", _ADMIN),
        FleetCall("remove-host", "DELETE", "/hosts/{name}", _ADMIN),
        FleetCall("list-images", "GET", "/images", _SEE_IMAGES),
        FleetCall("show-image", "GET", "/images/{name}", _SEE_IMAGES),
        FleetCall("ensure-image", "PUT", "/images/{name}", _ADMIN),
        FleetCall("delete-image", "DELETE", "/images/{name}", _ADMIN),
        FleetCall("show-myself", "GET", "/me", Access(Role.VIEWER, Right.USE, myself=True, any_pool=True)),
        FleetCall("list-my-pools", "GET", "/me/pools", _MYSELF),
        FleetCall("list-my-desktops", "GET", "/me/desktops", _MYSELF),
        FleetCall("list-my-tokens", "GET", "/me/tokens", _MYSELF),
        FleetCall("add-my-token", "POST", "/me/tokens", _MYSELF),
        FleetCall("delete-my-token", "DELETE", "/me/tokens/{name}", _MYSELF),
        FleetCall("take-desktop", "POST", "/me/pools/{pool}/desktop", Access(None, Right.USE)),
        FleetCall("list-people", "GET", "/people", _ADMIN),
        FleetCall("show-person", "GET", "/people/{name}", _ADMIN),
        FleetCall("ensure-person", "PUT", "/people/{name}", _ADMIN),
        FleetCall("set-password", "POST", "/people/{name}/password", _ADMIN),
        FleetCall("delete-person", "DELETE", "/people/{name}", _ADMIN),
        FleetCall("list-entitlements", "GET", "/entitlements", Access(Role.ADMIN, Right.MANAGE, any_pool=True)),
        FleetCall("entitle", "PUT", "/entitlements", _ENTITLE),
        FleetCall("revoke", "DELETE", "/entitlements", _ENTITLE),
        FleetCall("list-quotas", "GET", "/quotas", _ADMIN),
        FleetCall("ensure-quota", "PUT", "/quotas", _ADMIN),
        FleetCall("delete-quota", "DELETE", "/quotas", _ADMIN),
        FleetCall("list-tokens", "GET", "/tokens", _ADMIN),
        FleetCall("add-token", "POST", "/tokens", _ADMIN),
        FleetCall("delete-token", "DELETE", "/tokens/{name}", _ADMIN),
        FleetCall("show-use", "GET", "/use", Access(Role.VIEWER, Right.MANAGE, any_pool=True)),
        FleetCall("show-restore", "GET", "/restore", _SEE),
        FleetCall("confirm-restore", "POST", "/restore/confirm", _ADMIN),
        FleetCall("import-desktops", "POST", "/restore/import", _ADMIN),
        FleetCall("accept-desktop", "POST", "/desktops/{name}/accept", _ADMIN),
        FleetCall("find-events", "GET", "/events/search", _SEE),
        FleetCall("list-events", "GET", "/events", _SEE),
    )
}
"""Every call by name."""
