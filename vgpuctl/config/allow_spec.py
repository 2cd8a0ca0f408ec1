# SPDX-License-Identifier: Apache-2.0
"""`agent: allow:` of host.yaml: what VMs of members of the group vgpuctl, who are not root, may use of this host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vgpuctl.config import device_rules, rules
from vgpuctl.config.arguments import NONE, VM_MODES
from vgpuctl.config.cluster_join import CLUSTER_DIRECTORY, CLUSTER_PATTERN, cluster_name
from vgpuctl.config.domain_join import DOMAIN_JOIN_PATTERN, domain_join_name
from vgpuctl.config.guest_drivers import driver_file
from vgpuctl.config.image_urls import PREFIX_PATTERN, image_url_prefix
from vgpuctl.config.licenses import LICENSE_DIRECTORY, LICENSE_PATTERN, license_name
from vgpuctl.config.pinned_hosts import MIGRATE_TO, PinnedHost, dump_pinned_hosts, read_pinned_hosts
from vgpuctl.config.shape import Key, Rule, Shape, nonempty_list
from vgpuctl.config.vm_fields import integer_schema, nonempty_list_schema, pattern_schema
from vgpuctl.model.domain_join import DOMAIN_JOIN_DIRECTORY
from vgpuctl.value import EMPTY_MAPPING, Value, field_names

PARAMETER_PATTERN = r"[a-z_]+(=[!-+\--~]+)?"


class AllowSpec(Value):
    """What VMs of members may use. `networks`: libvirt's networks and bridges, as in a VM spec, without card models.

    `folders`: of images, disks and ISO files; `pools`: libvirt's storage pools, for new disks too. `vgpu_params`: names
    of parameters, or `name=value`. `modes`: as in a VM spec. `licenses`, `clusters`, `domains`: their names. `drivers`:
    their files. `image_urls`: folders of servers with images. `migrate_to`: hosts with which they may be exchanged.
    """

    folders: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    vgpu_params: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("vgpu",)
    licenses: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    domains: tuple[str, ...] = ()
    image_urls: tuple[str, ...] = ()
    migrate_to: Mapping[str, PinnedHost] = EMPTY_MAPPING


def dump_allow(spec: AllowSpec) -> dict[str, Any]:
    """Return the part as host.yaml writes it, without keys that have their defaults."""
    given: dict[str, Any] = {
        key: list(value)
        for key in field_names(AllowSpec)
        if key != "migrate_to" and (value := getattr(spec, key)) != getattr(AllowSpec(), key)
    }
    if spec.migrate_to:
        given["migrate_to"] = dump_pinned_hosts(spec.migrate_to)
    return given


def parse_allow(value: object) -> AllowSpec:
    """Check the part."""
    given: dict[str, Any] = ALLOW_SHAPE.check(value)
    return AllowSpec(**given | {"migrate_to": read_pinned_hosts(given.get("migrate_to", {}))})


def _folder(value: object) -> str:
    """Check a folder: an absolute path without `..`; the whole host is none."""
    text = rules.path(value)
    if "//" in text or {".", ".."} & set(text.split("/")):
        raise ValueError(f"'{text}' is not the plain path of a folder: write it without '//', '.' and '..'")
    return text


def _network(value: object) -> str:
    """Check a network or bridge that cards may be on; the model and the address of a card are its VM's own."""
    text = device_rules.network(value)
    nic = device_rules.parse_nic(text)
    if text == NONE or nic.model is not None or nic.mac is not None:
        raise ValueError(f"'{text}' is not a network: write its name, or bridge=br0, or bridge=br0,vlan=30")
    return nic.text


def _parameter(value: object) -> str:
    text = rules.as_text(value)
    if not re.fullmatch(PARAMETER_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!a} is not a plugin parameter: write its name, or name=value")
    return text


_NETWORK_SCHEMA = {
    "anyOf": [
        {"minLength": 1, "pattern": "^[^/]+$", "type": "string"},
        {
            "additionalProperties": False,
            "oneOf": [{"required": ["network"]}, {"required": ["bridge"]}],
            "properties": {
                "network": {"type": "string"},
                "bridge": {"type": "string"},
                "vlan": integer_schema(1, device_rules.MAX_VLAN),
            },
            "type": "object",
        },
    ]
}
_SECRETS: tuple[tuple[str, Rule, str, str, str], ...] = (
    ("licenses", license_name, LICENSE_PATTERN, "licenses for guests: folders", LICENSE_DIRECTORY),
    ("clusters", cluster_name, CLUSTER_PATTERN, "clusters that guests may join: files", CLUSTER_DIRECTORY),
    ("domains", domain_join_name, DOMAIN_JOIN_PATTERN, "domains that guests may join: entries", DOMAIN_JOIN_DIRECTORY),
)
ALLOW_SHAPE = Shape(
    "AgentAllow",
    "What VMs of members of the group vgpuctl may use; what is not listed is refused.",
    (
        Key(
            "folders",
            nonempty_list(_folder),
            "folders of images, disks and ISO files; each is root's alone, with every folder above it",
            nonempty_list_schema({"pattern": "^/", "type": "string"}),
        ),
        Key(
            "pools",
            nonempty_list(rules.resource_name),
            "libvirt storage pools for new disks, and for images in them",
            nonempty_list_schema({"pattern": "^[^/]+$", "type": "string"}),
        ),
        Key(
            "networks",
            nonempty_list(_network),
            "libvirt networks, and bridges of the host: bridge=br0 without a VLAN, bridge=br0,vlan=30 with this one",
            nonempty_list_schema(_NETWORK_SCHEMA),
        ),
        Key(
            "vgpu_params",
            nonempty_list(_parameter),
            "vGPU plugin parameters, by name with any value, or as name=value",
            nonempty_list_schema(pattern_schema(PARAMETER_PATTERN)),
        ),
        Key(
            "modes",
            nonempty_list(rules.mode),
            "vgpu (the default), sriov for plain VFs, passthrough for whole GPUs",
            nonempty_list_schema({"enum": list(VM_MODES), "type": "string"}),
        ),
        Key(
            "drivers",
            nonempty_list(driver_file),
            "files of the host with NVIDIA's driver for guests",
            nonempty_list_schema({"pattern": "^/", "type": "string"}),
        ),
        *(
            Key(
                name, nonempty_list(rule), f"{what} in {folder}, by name", nonempty_list_schema(pattern_schema(pattern))
            )
            for name, rule, pattern, what, folder in _SECRETS
        ),
        Key(
            "image_urls",
            nonempty_list(image_url_prefix),
            "folders of https servers, with / at the end, from which a controller may have images fetched",
            nonempty_list_schema(pattern_schema(PREFIX_PATTERN)),
        ),
        MIGRATE_TO,
    ),
)
