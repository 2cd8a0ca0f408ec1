# SPDX-License-Identifier: Apache-2.0
"""The libraries of sign-in are loaded when they are needed, and one that is missing is named with what installs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """\
import json, sys
for name in sys.argv[2:]:
    sys.modules[name] = None
from vgpuctl.controller.sign_in import checks, settings
assert not {"authlib", "joserfc", "ldap"} & {name for name, module in sys.modules.items() if module}
given = settings.parse_settings(sys.argv[1], "sign-in.yaml")
problems = (*checks.check_oidc(given), *checks.check_ldap(given))
print(json.dumps([[problem.section, problem.text, problem.fix] for problem in problems]))
"""
OIDC = "oidc: {issuer: 'http://127.0.0.1:1', client_id: x, address: 'http://127.0.0.1:2'}"
LDAP = "ldap: {url: 'ldap://127.0.0.1:1', base_dn: dc=x}"


@pytest.mark.parametrize(
    ("text", "missing", "extra"),
    [(OIDC, "authlib", "oidc"), (LDAP, "ldap", "ldap")],
)
def test_a_library_that_is_missing(text: str, missing: str, extra: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE, text, missing], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    ((section, problem, fix),) = json.loads(done.stdout)
    assert section == extra
    assert f"the Python library {missing} cannot be loaded" in problem
    assert f"vgpuctl[{extra}]" in fix or f"python3-{missing}" in fix
