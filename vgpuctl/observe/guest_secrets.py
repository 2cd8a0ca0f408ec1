# SPDX-License-Identifier: Apache-2.0
"""Reads the secrets of this host that guests get, by the VM's field that names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import NONE
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.cluster_join import ClusterJoin
from vgpuctl.model.license import License
from vgpuctl.model.request import GuestSecrets
from vgpuctl.observe.cluster_joins import read_cluster_join
from vgpuctl.observe.licenses import read_license
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def read_secret(host: Host, secrets: GuestSecrets, field: str, name: str) -> GuestSecrets:
    """Return the secrets with the one that a field names.

    Raises:
        VgpuctlError: it cannot be read, or no guest can use it now.
    """
    if field == "license":
        return replace(secrets, license=read_license(host, name))
    return replace(secrets, k8s_join=read_cluster_join(host, name))


def read_secrets(host: Host, fields: Mapping[str, str | None]) -> GuestSecrets:
    """Return the secrets of a new VM; why one cannot be read is for the command that gives it to a guest."""
    secrets = GuestSecrets()
    for field, name in fields.items():
        if name in (None, NONE):
            continue
        try:
            secrets = read_secret(host, secrets, field, name)
        except VgpuctlError as error:
            unread = License(name, "", problem=error) if field == "license" else ClusterJoin(name, problem=error)
            secrets = replace(secrets, **{field: unread})
    return secrets
