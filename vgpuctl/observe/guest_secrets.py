# SPDX-License-Identifier: Apache-2.0
"""Reads the secrets of this host that guests get, by the VM's field that names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vgpuctl.config.arguments import NONE
from vgpuctl.errors import VgpuctlError
from vgpuctl.model.cluster_join import ClusterJoin
from vgpuctl.model.domain_join import DomainJoin
from vgpuctl.model.license import License
from vgpuctl.model.request import GuestSecrets
from vgpuctl.observe.cluster_joins import read_cluster_join
from vgpuctl.observe.domain_joins import read_domain_join
from vgpuctl.observe.licenses import read_license
from vgpuctl.value import replace

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


def read_secret(host: Host, secrets: GuestSecrets, field: str, name: str) -> GuestSecrets:
    """Return the secrets with the one that a field names; of a domain without a blob, which is used only once.

    Raises:
        VgpuctlError: it cannot be read, or no guest can use it now.
    """
    if field == "license":
        return replace(secrets, license=read_license(host, name))
    if field == "k8s_join":
        return replace(secrets, k8s_join=read_cluster_join(host, name))
    return replace(secrets, domain_join=read_domain_join(host, name))


def read_secrets(host: Host, fields: Mapping[str, str | None]) -> GuestSecrets:
    """Return the secrets of a new VM; why one cannot be read is for the command that gives it to a guest."""
    secrets = GuestSecrets()
    for field, name in fields.items():
        if name in (None, NONE):
            continue
        try:
            secrets = read_secret(host, secrets, field, name)
        except VgpuctlError as error:
            unread = {
                "license": License(name, "", problem=error),
                "k8s_join": ClusterJoin(name, problem=error),
                "domain_join": DomainJoin(name, problem=error),
            }
            secrets = replace(secrets, **{field: unread[field]})
    return secrets
