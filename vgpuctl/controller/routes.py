# SPDX-License-Identifier: Apache-2.0
"""The calls of the controller's API: one table, from which the server, the client and OpenAPI follow.

A call's arguments are those of its method in `fleet.FleetService`. What is in the path is named there; the others of a
GET or DELETE are in the query, those of a PUT or POST in the body, a JSON object.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Mapping
from typing import Any

from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import FleetCaller, Role
from vgpuctl.errors import InvalidInput
from vgpuctl.library.call_table import Parameter
from vgpuctl.model.outcome import AnyResult
from vgpuctl.model.result_reader import Mismatch
from vgpuctl.value import Value

API = "/api/v1"
DRY_RUN = "dry_run"
"""In the query of a change, `true`: it is checked, and answered as if it were made, and not made."""
_IN_PATH = re.compile(r"\{([a-z_]+)\}")


class FleetCall(Value):
    """One call. `role`: the least that a token must have for it."""

    name: str
    method: str
    path: str
    role: Role

    @property
    def changes(self) -> bool:
        """Whether it changes something: `fits` has a spec in its body, and only counts."""
        return self.method != "GET" and self.name != "fits"

    @property
    def has_dry_run(self) -> bool:
        """Whether it can be checked without being made: a token's secret cannot, nor what a host is asked for."""
        return self.changes and self.name not in ("add-token", "accept-host")

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

    def require(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that lack one that is needed.

        Raises:
            InvalidInput: some are missing.
        """
        if missing := sorted(name for name, one in self.parameters.items() if one.required and name not in arguments):
            raise InvalidInput(f"{self.name}: {', '.join(missing)}: missing", fields=missing)

    def on(self, fleet: FleetService, caller: FleetCaller, arguments: Mapping[str, Any]) -> AnyResult:
        """Make the call. `arguments`: from `read`, and those in the path."""
        if self.changes:
            fleet.refuse_unconfirmed(self.name)
        result: AnyResult = self._function(fleet, caller, **arguments)
        return result

    @property
    def _function(self) -> Any:
        return getattr(FleetService, self.name.replace("-", "_"))


def _typed(parameter: Parameter, value: object) -> object:
    """Return an argument in a URL as the type that it has: a number where one is expected."""
    kinds = typing.get_args(parameter.type) or (parameter.type,)
    return int(str(value)) if int in kinds else value


CALLS: Mapping[str, FleetCall] = {
    call.name: call
    for call in (
        FleetCall("show-fleet", "GET", "", Role.VIEWER),
        FleetCall("list-pools", "GET", "/pools", Role.VIEWER),
        FleetCall("show-pool", "GET", "/pools/{name}", Role.VIEWER),
        FleetCall("ensure-pool", "PUT", "/pools/{name}", Role.OPERATOR),
        FleetCall("delete-pool", "DELETE", "/pools/{name}", Role.ADMIN),
        FleetCall("pause-pool", "POST", "/pools/{name}/pause", Role.OPERATOR),
        FleetCall("resume-pool", "POST", "/pools/{name}/resume", Role.OPERATOR),
        FleetCall("fits", "POST", "/fits", Role.VIEWER),
        FleetCall("assign", "POST", "/pools/{pool}/desktops", Role.OPERATOR),
        FleetCall("list-desktops", "GET", "/desktops", Role.VIEWER),
        FleetCall("show-desktop", "GET", "/desktops/{name}", Role.VIEWER),
        FleetCall("release", "POST", "/desktops/{name}/release", Role.OPERATOR),
        FleetCall("start-desktop", "POST", "/desktops/{name}/start", Role.OPERATOR),
        FleetCall("stop-desktop", "POST", "/desktops/{name}/stop", Role.OPERATOR),
        FleetCall("move-desktop", "POST", "/desktops/{name}/move", Role.ADMIN),
        FleetCall("delete-desktop", "DELETE", "/desktops/{name}", Role.OPERATOR),
        FleetCall("list-hosts", "GET", "/hosts", Role.VIEWER),
        FleetCall("show-host", "GET", "/hosts/{name}", Role.VIEWER),
        FleetCall("add-host", "PUT", "/hosts/{name}", Role.ADMIN),
        FleetCall("accept-host", "POST", "/hosts/{name}/accept", Role.ADMIN),
        FleetCall("cordon-host", "POST", "/hosts/{name}/cordon", Role.OPERATOR),
        FleetCall("drain-host", "POST", "/hosts/{name}/drain", Role.OPERATOR),
        FleetCall("uncordon-host", "POST", "/hosts/{name}/uncordon", Role.OPERATOR),
        FleetCall("label-host", "PUT", "/hosts/{name}/labels", Role.ADMIN),
        FleetCall("remove-host", "DELETE", "/hosts/{name}", Role.ADMIN),
        FleetCall("list-images", "GET", "/images", Role.VIEWER),
        FleetCall("show-image", "GET", "/images/{name}", Role.VIEWER),
        FleetCall("ensure-image", "PUT", "/images/{name}", Role.ADMIN),
        FleetCall("delete-image", "DELETE", "/images/{name}", Role.ADMIN),
        FleetCall("list-tokens", "GET", "/tokens", Role.ADMIN),
        FleetCall("add-token", "POST", "/tokens", Role.ADMIN),
        FleetCall("delete-token", "DELETE", "/tokens/{name}", Role.ADMIN),
        FleetCall("show-restore", "GET", "/restore", Role.VIEWER),
        FleetCall("confirm-restore", "POST", "/restore/confirm", Role.ADMIN),
        FleetCall("import-desktops", "POST", "/restore/import", Role.ADMIN),
        FleetCall("accept-desktop", "POST", "/desktops/{name}/accept", Role.ADMIN),
        FleetCall("list-events", "GET", "/events", Role.VIEWER),
        FleetCall("find-events", "GET", "/events/search", Role.VIEWER),
        FleetCall("show-overview", "GET", "/overview", Role.VIEWER),
    )
}
"""Every call by name."""
