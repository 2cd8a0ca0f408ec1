# SPDX-License-Identifier: Apache-2.0
"""Inventories in both forms, their groups and variables, and which hosts a limit selects."""

from __future__ import annotations

import tracemalloc

import pytest

from vgpuctl.errors import InvalidInput, NotFound
from vgpuctl.remote import inventory
from vgpuctl.remote.target import Target

INI = """
# a site
lonely ansible_host=10.0.0.9   ; comments may end a file's line only with a hash
front:2222

[gpu]
gpu-[01:03] ansible_user=ops   # three
"gpu-10" ansible_port=22022 ansible_ssh_private_key_file='~/keys/a key'

[rack:children]
gpu
spare

[spare]
spare[a:c:2]

[rack:vars]
ansible_user = root
ansible_port="2200"
http_port=80

[all:vars]
ansible_port=22
"""

YAML = """
all:
  hosts:
    lonely: {ansible_host: 10.0.0.9}
    front: {ansible_port: 2222}
  vars: {ansible_port: 22, http_port: 80}
  children:
    rack:
      vars: {ansible_user: root, ansible_port: "2200"}
      children:
        gpu:
          hosts:
            gpu-[01:03]: {ansible_user: ops}
            gpu-10: {ansible_port: 22022, ansible_ssh_private_key_file: ~/keys/a key}
        spare:
          hosts:
            spare[a:c:2]:
"""


def _ini() -> inventory.Inventory:
    return inventory.parse_inventory(INI.replace("   ; comments may end a file's line only with a hash", ""), "hosts")


def _yaml() -> inventory.Inventory:
    return inventory.parse_inventory(YAML, "hosts.yml")


@pytest.mark.parametrize("read", [_ini, _yaml], ids=["ini", "yaml"])
def test_both_forms_say_the_same(read):
    result = read()
    assert set(result.hosts) == {"lonely", "front", "gpu-01", "gpu-02", "gpu-03", "gpu-10", "sparea", "sparec"}
    assert result.hosts["lonely"] == Target("lonely", "10.0.0.9", 22)
    assert result.hosts["front"] == Target("front", "front", 2222)
    assert result.hosts["gpu-02"] == Target("gpu-02", "gpu-02", 2200, "ops")
    assert result.hosts["gpu-10"] == Target("gpu-10", "gpu-10", 22022, "root", ("~/keys/a key",))
    assert result.hosts["sparec"] == Target("sparec", "sparec", 2200, "root")
    assert result.groups["rack"] == ("gpu-01", "gpu-02", "gpu-03", "gpu-10", "sparea", "sparec")
    assert result.groups["ungrouped"] == ("lonely", "front") or read is _yaml


def test_yaml_is_known_without_its_ending():
    assert set(inventory.parse_inventory("# hosts\nall:\n  hosts: {a: {}}\n", "inventory").hosts) == {"a"}
    assert set(inventory.parse_inventory('{"all": {"hosts": {"a": null}}}', "-").hosts) == {"a"}


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("gpu", ["gpu"]),
        ("gpu[08:11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[8:11]", ["gpu8", "gpu9", "gpu10", "gpu11"]),
        ("n[0:4:2]-[a:b].x", ["n0-a.x", "n0-b.x", "n2-a.x", "n2-b.x", "n4-a.x", "n4-b.x"]),
    ],
)
def test_ranges(pattern, names):
    assert list(inventory.expand_pattern(pattern, "hosts:1")) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu[5:1]", "hosts:1: \\[5:1\\] is not a range"),
        ("gpu[1:b]", "is not a range"),
        ("gpu[1:99999999]", "is not a range of 1 to 10000 hosts"),
        ("gpu[1:1000][1:1000]", "more than 10000 hosts"),
        ("a b", "hosts:1: 'b' is not a variable"),
        ("[x:friends]", "hosts:1: \\[x:friends\\] is not a group"),
        ("a ansible_host='x", "a quote is not closed"),
        ("a ansible_host={{ip}}", "hosts:1: ansible_host is a template"),
        ("a ansible_host=-oProxyCommand=x", "a: '-oProxyCommand=x' is not a host name or address"),
        ("a ansible_user='-l root'", "is not a user name"),
        ("a ansible_port=ssh", "'ssh' is not a port"),
        ("a ansible_port=70000", "70000 is not a port"),
        ("[a:children]\nb", "group a has the child b, which does not exist"),
        ("[a:children]\nb\n[b:children]\na", "is its own child: a > b > a|is its own child: b > a > b"),
    ],
)
def test_invalid_inventories_are_refused(text, message):
    with pytest.raises(InvalidInput, match=message):
        inventory.parse_inventory(text, "hosts")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("all: [a, b]", "expected a mapping"),
        ("all: {host: {a: }}", "unknown key 'host' in a group"),
        ("all: {hosts: {a: {ansible_host: !vault x}}}", "tag"),
        ("all: {hosts: {a: 1}}", "expected"),
    ],
)
def test_yaml_that_is_no_inventory_is_refused(text, message):
    with pytest.raises(InvalidInput, match=message):
        inventory.parse_inventory(text, "hosts.yaml")


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ([], ["lonely", "front", "gpu-01", "gpu-02", "gpu-03", "gpu-10", "sparea", "sparec"]),
        (["gpu-01"], ["gpu-01"]),
        (["spare,gpu-1*"], ["gpu-10", "sparea", "sparec"]),
        (["!rack"], ["lonely", "front"]),
        (["rack", "!gpu-0*,!sparea"], ["gpu-10", "sparec"]),
        (["!gpu-01", "gpu"], ["gpu-02", "gpu-03", "gpu-10"]),
        (["rack,&spare"], ["sparea", "sparec"]),
        (["gpu-{01..03},!gpu-02"], ["gpu-01", "gpu-03"]),
        (["spare{a,c}"], ["sparea", "sparec"]),
        (["all", "!{front,lonely}"], ["gpu-01", "gpu-02", "gpu-03", "gpu-10", "sparea", "sparec"]),
        (["ungrouped"], ["lonely", "front"]),
        (["all"], ["lonely", "front", "gpu-01", "gpu-02", "gpu-03", "gpu-10", "sparea", "sparec"]),
    ],
)
def test_limits(patterns, names):
    assert [target.name for target in inventory.apply_limit(_ini(), patterns)] == names


def test_a_limit_that_means_nothing_is_a_typing_error():
    with pytest.raises(NotFound) as caught:
        inventory.apply_limit(_ini(), ["gpu,!gpu-011"])
    assert caught.value.hint.startswith("did you mean gpu-01")
    with pytest.raises(InvalidInput, match="matches no host"):
        inventory.apply_limit(_ini(), ["gpu", "!rack"])


@pytest.mark.parametrize(
    ("limit", "instead"),
    [("gpu-0[1:3]", "gpu-0{1..3}"), ("all,!gpu-[01:10]", "gpu-{01..10}"), ("spare[a:c]", "spare{a,b,c}")],
)
def test_a_range_as_the_inventory_has_it_is_refused_with_what_to_write(limit, instead):
    with pytest.raises(InvalidInput, match="is a set of characters") as caught:
        inventory.apply_limit(_ini(), [limit])
    assert caught.value.hint == f"write '{instead}'"


def test_a_host_with_another_connection_than_ssh_is_refused_if_it_is_selected():
    text = (
        "[sim]\ngpu-a\ngpu-b\n[sim:vars]\nansible_connection=local\n"
        "[real]\ngpu-c ansible_connection=ansible.builtin.ssh\ngpu-d ansible_connection=smart\ngpu-e\n"
    )
    parsed = inventory.parse_inventory(text, "hosts")
    with pytest.raises(InvalidInput, match="by ssh only") as caught:
        inventory.apply_limit(parsed, [])
    assert "2 of 5: gpu-a (ansible_connection=local), gpu-b (ansible_connection=local)" in caught.value.message
    limit = str(caught.value.hint).split("'")[1]
    assert [target.name for target in inventory.apply_limit(parsed, [limit])] == ["gpu-c", "gpu-d", "gpu-e"]
    with pytest.raises(InvalidInput) as caught:
        inventory.apply_limit(parsed, ["sim"])
    assert "--host local" in str(caught.value.hint)


def test_too_many_hosts_are_refused_before_their_names_are_made():
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInput, match="more than 10000 hosts"):
            inventory.expand_pattern("gpu[1:1000][1:1000]", "hosts:1")
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
