# SPDX-License-Identifier: Apache-2.0
"""Reads how guests join clusters of Kubernetes."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from vgpuctl.config.cluster_join import CLUSTER_DIRECTORY, parse_join
from vgpuctl.errors import InvalidInput, NotFound, Refused, unreadable_error
from vgpuctl.model.cluster_join import ClusterJoin
from vgpuctl.observe.licenses import is_roots_alone

if TYPE_CHECKING:
    from vgpuctl.ports.host import Host


_FORMS = (
    "one line, of kubeadm token create --print-join-command; or two lines for k3s, server: https://HOST:6443 and "
    "token: with what k3s token create --ttl 24h prints"
)


def read_cluster_join(host: Host, name: str) -> ClusterJoin:
    """Return how a guest joins a cluster.

    Raises:
        NotFound: there is no file for it.
        FileFailed: the file cannot be read.
        InvalidInput: it has neither form, or a token that no node may have.
        Refused: others than root can read or change it.
    """
    path, problem = f"{CLUSTER_DIRECTORY}/{name}", ""
    try:
        text = host.sysfs.read(path)
        is_private = is_roots_alone(host, path)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(
            f"there is no cluster {name} on this host: {path} does not exist",
            hint=f"sudo install -D -m 600 FILE {path}; in it {_FORMS}",
            cluster=name,
        ) from None
    except IsADirectoryError:
        raise InvalidInput(f"{path} is a directory, and no file with a token", hint=_FORMS, cluster=name) from None
    except OSError as error:
        raise unreadable_error(path, error) from error
    if not is_private:
        raise Refused(
            f"{path} is not root's alone, or its folder is not, and it has a token",
            hint=f"sudo chown root: {CLUSTER_DIRECTORY} {quote(path)} && sudo chmod go= {CLUSTER_DIRECTORY} "
            f"{quote(path)}; and make a new token",
            cluster=name,
        )
    try:
        return parse_join(name, text)
    except ValueError as error:
        problem = str(error)
    raise InvalidInput(f"{path}: {problem}", hint=_FORMS, cluster=name)
