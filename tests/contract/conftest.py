# SPDX-License-Identifier: Apache-2.0
"""The `site` fixture: one for each form of the card. In the lab, only the form of the lab's card runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.site import FORMS, Site, new_uuid, open_site, real_form


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test on the forms in its marker `forms`, or on all forms."""
    if "site" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("forms")
    forms = marker.args if marker else FORMS
    lab_form = real_form()
    metafunc.parametrize("site", [f for f in forms if lab_form in (None, f)], indirect=True)


@pytest.fixture
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Site:
    """A host with one card in the requested form and no vGPUs."""
    return open_site(request.param, tmp_path)


@pytest.fixture
def uuid(site: Site) -> Iterator[str]:
    """A new UUID. If the test defines a domain with it, the fixture removes the domain afterwards."""
    new = new_uuid()
    yield new
    if site.ports.hypervisor.find_domain(new) is not None:
        site.ports.hypervisor.destroy(new)
        site.ports.hypervisor.undefine(new)
