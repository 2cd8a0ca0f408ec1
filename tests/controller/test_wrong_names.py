# SPDX-License-Identifier: Apache-2.0
"""Names that nobody has and profiles that no host has: the controller says so, with the one that was probably meant."""

from __future__ import annotations

import pytest

from tests.controller.conftest import SPEC, add_host, add_image, add_pool
from tests.controller.test_store import with_desktops
from tests.controller.thin_host import KIND, PROFILE
from tests.rooms import room_of
from vgpuctl.controller.database.store import Store
from vgpuctl.controller.fleet import FleetService
from vgpuctl.controller.model import CallerKind, Entitlement, FleetCaller, Right, Role
from vgpuctl.errors import NotFound, Refused

ADMIN = FleetCaller("test", Role.ADMIN)
OPERATOR_OF_POOL = FleetCaller("eve", None, CallerKind.PERSON, {"office": Right.OPERATE})
XLEO = ("nobody who is known here is called xleo yet",)


@pytest.fixture
def fleet(own_store: Store) -> FleetService:
    return FleetService(own_store, lambda host: pytest.fail(str(host)))


def test_a_desktop_for_somebody_whom_nobody_knows(own_store: Store, fleet: FleetService) -> None:
    with_desktops(own_store, 3)
    own_store.people.put("leo", "test")
    assert fleet.assign(ADMIN, "office", "leo").warnings == ()
    with fleet.dry_run():
        assert fleet.assign(ADMIN, "office", "xleo").warnings == XLEO
    assert fleet.assign(ADMIN, "office", "xleo").warnings == XLEO
    assert fleet.assign(ADMIN, "office", "xleo").warnings == (), "he has it, so he is known"
    assert fleet.assign(OPERATOR_OF_POOL, "office", "zoe").warnings == (), "admins and operators see who is known"


def test_everybody_has_one_name(fleet: FleetService) -> None:
    (warning,) = fleet.ensure_quota(ADMIN, "everyone", desktops=1).warnings
    assert warning == "nobody who is known here is called everyone yet (did you mean 'everybody'?)"
    assert fleet.ensure_quota(ADMIN, "everybody", desktops=1).warnings == ()


def test_a_profile_that_no_host_has(own_store: Store, fleet: FleetService) -> None:
    add_image(own_store)
    spec = {**SPEC, "profile": "A100-4X"}
    assert fleet.ensure_pool(ADMIN, "office", spec).warnings == (), "no host has said yet what it has"
    own_store.rooms.set(add_host(own_store).id, room_of((KIND, KIND.empty)))
    with fleet.dry_run():
        (warning,) = fleet.ensure_pool(ADMIN, "office", spec).warnings
    assert warning.startswith("no host offers the profile A100-4X, so none makes desktops with it")
    assert warning.endswith(f"did you mean {PROFILE}?")
    both = {**SPEC, "profile": ["4c", "L40S-48Q"]}
    (warning,) = fleet.ensure_pool(ADMIN, "office", both).warnings
    assert "the profile L40S-48Q, so" in warning
    assert fleet.ensure_pool(ADMIN, "office", SPEC).warnings == ()


def test_desktops_of_a_pool_or_host_that_is_none(own_store: Store, fleet: FleetService) -> None:
    add_image(own_store)
    add_pool(own_store)
    add_host(own_store)
    with pytest.raises(NotFound, match="there is no pool offic \\(did you mean 'office'\\?\\)"):
        fleet.list_desktops(ADMIN, pool="offic")
    with pytest.raises(NotFound, match="there is no host gpu1 \\(did you mean 'gpu01'\\?\\)"):
        fleet.list_desktops(ADMIN, host="gpu1")
    with pytest.raises(NotFound, match=r"there is no image xyz$"):
        fleet.show_image(ADMIN, "xyz")
    assert fleet.list_desktops(OPERATOR_OF_POOL, host="gpu1").data == (), "he does not see hosts"
    assert fleet.list_desktops(ADMIN, pool="office", host="gpu01").data == ()


def test_revoking_what_somebody_has_not(own_store: Store, fleet: FleetService) -> None:
    add_image(own_store)
    add_pool(own_store)
    own_store.entitlements.put(Entitlement("@staff", Right.USE, "office"), "test")
    with pytest.raises(Refused, match="@staff has use on pool office, not operate") as refused:
        fleet.revoke(ADMIN, "@staff", "office", "operate")
    assert refused.value.hint == "to take that away: vgpuctl controller revoke @staff use --pool office"
    assert fleet.revoke(ADMIN, "@staff", "office", "use").data.right == "use"
    own_store.entitlements.put(Entitlement("ada", Role.VIEWER), "test")
    with pytest.raises(Refused, match="ada has viewer in the fleet, not admin"):
        fleet.revoke(ADMIN, "ada", right="admin")
