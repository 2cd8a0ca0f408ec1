# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's licenses for guests: a folder of secrets for each, /etc/vgpuctl/licenses/NAME.

In it are the client configuration token that NVIDIA's portal or license server gave (any name, ending in `.tok`; of
several, guests get the one that expires last), and where they are needed the license server's own certificate authority
(`ca.pem`) and the kind of license (`feature`, the number of FeatureType in gridd.conf: NVIDIA's Licensing User Guide).
No error quotes what is in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import inf

from vgpuctl.config.license_token import read_expiry
from vgpuctl.config.rules import as_text
from vgpuctl.model.license import VGPU_FEATURE, License
from vgpuctl.value import Value

LICENSE_DIRECTORY = "/etc/vgpuctl/licenses"
LICENSE_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}"
CA_FILE, FEATURE_FILE, TOKEN_SUFFIX = "ca.pem", "feature", ".tok"
FEATURES = {VGPU_FEATURE: "vGPU", 2: "RTX Virtual Workstation", 4: "Virtual Compute Server"}
"""FeatureType: 1 for vGPUs, whose profile then decides; 2 and 4 for a whole GPU."""
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\r?\n[A-Za-z0-9+/=\r\n]+-----END CERTIFICATE-----", re.ASCII)


class LicenseFiles(Value):
    """What is in a license's folder. `texts`: the files by name. `open_paths`: what is not root's alone.

    `problem`: why the folder, or a file in it, cannot be read; None if it can.
    """

    name: str
    texts: Mapping[str, str]
    open_paths: tuple[str, ...] = ()
    problem: str | None = None

    @property
    def path(self) -> str:
        """The folder."""
        return f"{LICENSE_DIRECTORY}/{self.name}"

    def __repr__(self) -> str:
        return f"LicenseFiles(name={self.name!r})"


def license_name(value: object) -> str:
    """Check the name of a license, that of its folder; or `none`."""
    text = as_text(value)
    if not re.fullmatch(LICENSE_PATTERN, text, re.ASCII):
        raise ValueError(f"{text!a} is not the name of a license: letters, digits, '_' and '-' only")
    return text


def parse_license(files: LicenseFiles) -> License:
    """Return the license of a folder.

    Raises:
        ValueError: what is wrong with it, as a sentence that names the file.
    """
    if files.problem is not None:
        raise ValueError(files.problem)
    tokens = sorted(name for name in files.texts if name.endswith(TOKEN_SUFFIX))
    others = sorted(files.texts.keys() - {CA_FILE, FEATURE_FILE, *tokens})
    if others:
        known = f"a token (*{TOKEN_SUFFIX}) nor {CA_FILE} nor {FEATURE_FILE}"
        raise ValueError(f"{files.path}/{_plain(others[0])} is neither {known}")
    if not tokens:
        raise ValueError(f"{files.path} has no token, a file *{TOKEN_SUFFIX}")
    token, expiry = max((_token(files, name) for name in tokens), key=lambda one: inf if one[1] is None else one[1])
    return License(files.name, token, _certificates(files), _feature(files.path, files.texts.get(FEATURE_FILE)), expiry)


def _token(files: LicenseFiles, name: str) -> tuple[str, float | None]:
    """Return a token and when it expires; raised outside `except`, where it has no `__context__` to show."""
    token, problem = files.texts[name].strip(), ""
    try:
        return token, read_expiry(token)
    except ValueError as error:
        problem = str(error)
    raise ValueError(f"{files.path}/{_plain(name)}: {problem}")


def _plain(name: str) -> str:
    """Return a file's name without control characters."""
    return ascii(name)[1:-1]


def _certificates(files: LicenseFiles) -> tuple[str, ...]:
    text = files.texts.get(CA_FILE)
    if text is None:
        return ()
    if "PRIVATE KEY" in text:
        raise ValueError(f"{files.path}/{CA_FILE} has a private key, which guests must not get")
    certificates = tuple(match[0].replace("\r", "") for match in _CERTIFICATE.finditer(text))
    if not certificates:
        raise ValueError(f"{files.path}/{CA_FILE} has no certificate in PEM")
    return certificates


def _feature(folder: str, text: str | None) -> int:
    number = VGPU_FEATURE if text is None else next((n for n in FEATURES if str(n) == text.strip()), None)
    if number is None:
        allowed = ", ".join(f"{n} ({title})" for n, title in FEATURES.items())
        raise ValueError(f"{folder}/{FEATURE_FILE} is not one of {allowed}")
    return number
