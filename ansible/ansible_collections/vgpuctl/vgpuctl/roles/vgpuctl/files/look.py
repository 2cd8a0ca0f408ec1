# SPDX-License-Identifier: Apache-2.0
"""Print why vgpuctl cannot be installed on this host: one line for each reason, none if pip may try.

It runs under any Python 3, changes nothing, and needs no pip, which a bare host lacks. Its arguments: the oldest Python
that will do, what pip will install (nothing with a Debian package), the wheelhouse, the index, and where the program
will be; what is not given is empty. An index is refused for what pip could not fix either: no connection, or no such
name. What a certificate or a password is wrong for pip says. Which files pip reads is in its documentation,
"Configuration".
"""

import configparser
import glob
import http.client
import os
import re
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

TIMEOUT_SECONDS = 10
HOW = "set vgpuctl_wheelhouse, vgpuctl_index, or a wheel's path as vgpuctl_source"


def main(oldest: str, source: str, wheelhouse: str, index: str, program: str) -> None:
    """Print the reasons."""
    there = os.access(program, os.X_OK)  # then pip downloads nothing
    for reason in (_python(oldest), _source(source), "" if there else _place(source, wheelhouse, index)):
        if reason:
            print(reason)


def _python(oldest: str) -> str:
    seen = ".".join(str(number) for number in sys.version_info[:3])
    if sys.version_info[:2] >= tuple(int(number) for number in oldest.split(".")):
        return ""
    return f"{sys.executable} is Python {seen}, and vgpuctl needs {oldest} or newer: use a newer distribution"


def _source(source: str) -> str:
    if not source.startswith("/") or os.path.exists(source):
        return ""
    return f"vgpuctl_source: there is no {source} on this host: copy the wheel there"


def _place(source: str, wheelhouse: str, index: str) -> str:
    """Return why there is no place from which it can come."""
    if not source:
        return ""
    if wheelhouse:
        return _wheelhouse(wheelhouse, _name(source))
    if source.startswith("/") or "://" in source:
        return ""
    said = {"index-url": index} if index else _settings()
    if said.get("find-links") or (said.get("extra-index-url") and not said.get("index-url")):
        return ""
    places = (said.get("index-url", "") + " " + said.get("extra-index-url", "")).split()
    if not places or said.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        return f"there is no source for {source}: no wheelhouse, and no index in pip's configuration; {HOW}"
    faults = [_index(place, _name(source), said.get("proxy", "")) for place in places]
    return f"{source} cannot be downloaded: {'; '.join(faults)}; {HOW}" if all(faults) else ""


def _name(source: str) -> str:
    """Return a requirement's name as indexes write it."""
    found = re.match(r"[A-Za-z0-9._-]+", os.path.basename(source))
    return re.sub(r"[-_.]+", "-", found.group() if found else source).lower()


def _wheelhouse(wheelhouse: str, name: str) -> str:
    if not os.path.isdir(wheelhouse):
        return f"vgpuctl_wheelhouse: there is no directory {wheelhouse} on this host: copy the wheels there"
    wheels = [os.path.basename(path) for path in glob.glob(os.path.join(glob.escape(wheelhouse), "*.whl"))]
    if name.endswith("-whl") or any(_name(wheel.split("-")[0]) == name for wheel in wheels):
        return ""
    return f"vgpuctl_wheelhouse: {wheelhouse} has {len(wheels)} wheels, but none of {name}: build it and copy it there"


def _settings() -> dict:
    """Return what pip's files and its environment say; the last wins."""
    home = os.path.expanduser("~")
    mine = os.environ.get("XDG_CONFIG_HOME", os.path.join(home, ".config"))
    files = ["/etc/xdg/pip/pip.conf", "/etc/pip.conf", os.path.join(home, ".pip/pip.conf")]
    files += [os.path.join(mine, "pip/pip.conf"), os.environ.get("PIP_CONFIG_FILE", "")]
    found = {}
    for path in files:
        read = configparser.RawConfigParser()
        try:
            read.read(path)
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip names the line
        for section in ("global", "install"):
            found.update(read.items(section) if read.has_section(section) else ())
    for name in ("index-url", "extra-index-url", "find-links", "no-index", "proxy"):
        typed = os.environ.get("PIP_" + name.upper().replace("-", "_"))
        found.update({} if typed is None else {name: typed})
    return found


def _index(place: str, name: str, proxy: str) -> str:
    """Return why an index certainly does not give it; the address is shown, and asked, without its password."""
    url = urllib.parse.urlsplit(place)
    page = urllib.parse.urlunsplit(url._replace(netloc=url.netloc.rpartition("@")[2])).rstrip("/") + f"/{name}/"
    if url.scheme == "file":
        return "" if os.path.isdir(urllib.parse.unquote(urllib.parse.urlsplit(page).path)) else f"there is no {page}"
    handlers = [urllib.request.ProxyHandler({"http": proxy, "https": proxy})] if proxy else []
    try:
        urllib.request.build_opener(*handlers).open(page, timeout=TIMEOUT_SECONDS).close()
    except urllib.error.HTTPError as error:
        return f"there is no {page} ({error.code})" if error.code in (404, 410) else ""
    except urllib.error.URLError as error:
        return "" if isinstance(error.reason, ssl.SSLError) else f"{page}: {error.reason}"
    except (OSError, ValueError) as error:
        return f"{page}: {error}"
    except http.client.HTTPException:
        return ""
    return ""


if __name__ == "__main__":
    main(*sys.argv[1:])
