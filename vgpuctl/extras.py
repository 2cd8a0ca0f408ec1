# SPDX-License-Identifier: Apache-2.0
"""The optional libraries, and the command that adds one to this installation: .deb, pipx, uv or pip."""

from __future__ import annotations

import os
import re
import sys

PACKAGE_PREFIX = "/usr/lib/vgpuctl"
"""The private environment of the Debian package: its Python and the libraries that Debian lacks."""
PACKAGE_PYTHON = f"{PACKAGE_PREFIX}/bin/python3"
LOCAL_LIBRARIES = "/usr/local/lib/vgpuctl"
"""The Debian package also loads libraries from here, where pip may install some that Debian lacks."""
EXTRAS = {
    "agent": ("starlette", "uvicorn", "wsproto", "h11", "anyio"),
    "host": ("libvirt", "libvirtmod", "pynvml"),
    "ssh": ("paramiko", "bcrypt", "cryptography", "invoke", "nacl"),
    "solver": ("highspy",),
    "top": ("textual", "rich"),
    "ldap": ("ldap",),
    "oidc": ("authlib", "joserfc"),
    "controller": (
        "sqlalchemy",
        "alembic",
        "psycopg",
        "mako",
        "starlette",
        "uvicorn",
        "wsproto",
        "paramiko",
        "argon2",
        "cryptography",
    ),
}
"""Extra -> import names of its libraries, the one that it is for first."""
_PIP_NAMES = {
    "ldap": "python-ldap",
    "libvirt": "libvirt-python",
    "libvirtmod": "libvirt-python",
    "nacl": "PyNaCl",
    "argon2": "argon2-cffi",
    "mako": "Mako",
    "pynvml": "nvidia-ml-py",
    "ruamel": "ruamel.yaml",
}
_DEBIAN_NAMES = {"libvirtmod": "python3-libvirt", "ruamel": "python3-ruamel.yaml"}
_LIBVIRT_MODULES = ("libvirt", "libvirtmod")
_SEE_SYSTEM_PACKAGES = "sed -i 's/^include-system-site-packages.*/include-system-site-packages = true/'"
"""pip would compile libvirt's module, and not for the host's libvirt. An environment of the distribution's Python can
use the distribution's module instead."""
_NOT_IN_DEBIAN = ("pynvml", "textual", "rich", "authlib", "joserfc")
"""Debian 12 has Authlib 1.2, which is older than joserfc: signing in needs 1.9."""
_FIRST_PYTHON_WITH_HIGHSPY = (3, 13)
"""Debian 13 has highspy, Debian 12 (Python 3.11) does not."""
_DEBIAN_PACKAGES_PATH = "/usr/lib/python3/dist-packages"


def find_extra(library: str) -> str | None:
    """Return the extra that brings a library; None for one that vgpuctl always needs."""
    return next((extra for extra, libraries in EXTRAS.items() if library in libraries), None)


def missing_libraries(extra: str) -> tuple[str, ...]:
    """Return which libraries of an extra this Python does not have."""
    from importlib import util  # libvirt's hook imports this module

    return tuple(library for library in EXTRAS[extra] if util.find_spec(library) is None)


def describe_sources(library: str) -> str:
    """Return where a library comes from: the extra, Debian's package, pip's package."""
    extra, debian = find_extra(library), _debian_package(library)
    sources = [f"vgpuctl's extra {extra}"] if extra else []
    sources += [f"Debian's package {debian}"] if debian else []
    sources += [f"pip's {_PIP_NAMES.get(library, library)}"] if library not in sys.stdlib_module_names else []
    return ", ".join(sources)


def install_command(library: str) -> str:
    """Return the command that adds a library to this installation, quoted for the shell."""
    import shlex  # libvirt's hook imports this module

    debian = _debian_package(library)
    if debian is not None and (_DEBIAN_PACKAGES_PATH in sys.path or library in sys.stdlib_module_names):
        return f"apt install {debian}"
    if library in _LIBVIRT_MODULES and sys.base_prefix == "/usr" and os.path.exists(f"{sys.prefix}/pyvenv.cfg"):
        return f"apt install {debian} && {_SEE_SYSTEM_PACKAGES} {shlex.quote(f'{sys.prefix}/pyvenv.cfg')}"
    extra = find_extra(library)
    wanted = f"vgpuctl[{extra}]" if extra and extra != "host" else _requirement(library)
    if sys.prefix == PACKAGE_PREFIX:
        package = _PIP_NAMES.get(library, library)
        return f"apt install python3-pip && python3 -m pip install --target {LOCAL_LIBRARIES} {package}"
    if os.path.exists(f"{sys.prefix}/pipx_metadata.json"):
        return f"pipx inject vgpuctl {shlex.quote(wanted)}"
    if os.path.exists(f"{sys.prefix}/uv-receipt.toml"):
        more = f" --with {shlex.quote(wanted)}" if extra == "host" else ""
        return f"uv tool install --force {shlex.quote(_uv_requirement(extra if extra != 'host' else None))}{more}"
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.quote(wanted)}"


def _requirement(library: str) -> str:
    """Return pip's name of a library, with the versions that vgpuctl needs."""
    from importlib import metadata

    name = _PIP_NAMES.get(library, library)
    try:
        lines = metadata.requires("vgpuctl") or []
    except metadata.PackageNotFoundError:
        lines = []
    for line in lines:
        requirement = line.partition(";")[0].strip()
        named = re.match(r"[\w.-]+", requirement)
        if named is not None and re.sub("[-_.]+", "-", named[0]).lower() == re.sub("[-_.]+", "-", name).lower():
            return name + requirement[named.end() :]
    return name


def _debian_package(library: str) -> str | None:
    if library in sys.stdlib_module_names:
        return "python3"
    is_missing = library == "highspy" and sys.version_info < _FIRST_PYTHON_WITH_HIGHSPY
    if library in _NOT_IN_DEBIAN or is_missing:
        return None
    return _DEBIAN_NAMES.get(library, f"python3-{library}")


def _uv_requirement(extra: str | None) -> str:
    """Return what uv installs instead of the present environment: with the extras that it has, from the same place."""
    import json
    from importlib import metadata, util

    names = sorted({name for name, libraries in EXTRAS.items() if name == extra or util.find_spec(libraries[0])})
    requirement = f"vgpuctl[{','.join(names)}]" if names else "vgpuctl"
    source = metadata.distribution("vgpuctl").read_text("direct_url.json")
    return f"{requirement} @ {json.loads(source)['url']}" if source else requirement
