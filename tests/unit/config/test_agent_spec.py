# SPDX-License-Identifier: Apache-2.0
"""The section `agent:` of host.yaml: read, refused with its line, written back, kept by edits of other sections."""

from __future__ import annotations

import pytest

from vgpuctl.config.agent_spec import AgentSpec, flat_agent
from vgpuctl.config.allow_spec import AllowSpec
from vgpuctl.config.host_editor import edit_gpu, render_host_file
from vgpuctl.config.host_spec import HostSpec, parse_host_spec
from vgpuctl.config.pinned_hosts import PinnedHost
from vgpuctl.errors import InvalidInput
from vgpuctl.model.caller import Limits

NAME = "host.yaml"
KEY = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"
TEXT = """version: 1
# the people of the lab
agent:
  allow:
    folders: [/srv/images, /srv/iso]    # only root writes there
    pools: default
    networks: [default, bridge=br0, {bridge: br0, vlan: 30}]
    vgpu_params: [frame_rate_limiter, cuda_enabled=1]
    modes: [vgpu, sriov]
    migrate_to:
      gpu02: {host_key: 'ssh-ed25519 SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU', address: '[2001:db8::2]:4000'}
  accounts:
    ada@example.org: operator   # she is on call
    controller: fleet
  limits:
    each_account: {vms: 2, gpu_memory: 16GiB, removals_per_hour: 5, keep_deleted_days: 14}
    all_accounts: {vgpus: 100}
    # pools
    accounts: {controller: {vms: 50}}
  notify:
    pager: {program: /usr/local/sbin/page, types: [vm-crashed, gpu-lost]}
    portal: {url: 'https://portal.example.org/events', secret_file: /etc/vgpuctl/portal.key}
  alerts: {gpu_hot_celsius: 80, gpu_busy_ratio: 0.9}
"""


def test_the_section_is_read() -> None:
    agent = parse_host_spec(TEXT, NAME).agent
    assert agent.allow == AllowSpec(
        ("/srv/images", "/srv/iso"),
        ("default",),
        ("default", "bridge=br0", "bridge=br0,vlan=30"),
        ("frame_rate_limiter", "cuda_enabled=1"),
        ("vgpu", "sriov"),
        migrate_to={"gpu02": PinnedHost(f"ssh-ed25519 {KEY}", None, "[2001:db8::2]:4000")},
    )
    assert agent.allow.migrate_to["gpu02"].fingerprint == KEY
    assert agent.allow.migrate_to["gpu02"].uri("gpu02") == "qemu+ssh://gpu02/system"
    assert agent.accounts == {"ada@example.org": "operator", "controller": "fleet"}
    assert agent.limits.of_account("ada") == Limits(2, None, 16384, 5, 14)
    assert agent.limits.of_account("controller") == Limits(50, None, 16384, 5, 14)
    assert agent.limits.all_accounts == Limits(vgpus=100)


def test_without_it_nothing_is_allowed() -> None:
    for text in ("version: 1", "version: 1\nagent: {}", "version: 1\nagent: {allow: {}, limits: {accounts: {a: }}}"):
        agent = parse_host_spec(text, NAME).agent
        assert agent.allow == AllowSpec((), (), (), (), ("vgpu",))
        assert agent.accounts == {}
        assert agent.limits.of_account("ada") == Limits()
    assert "agent" not in render_host_file(HostSpec(1))
    assert parse_host_spec("version: 1", NAME).agent == AgentSpec()


def test_it_is_written_back_with_the_same_meaning() -> None:
    read = parse_host_spec(TEXT, NAME)
    text = render_host_file(read)
    assert parse_host_spec(text, NAME) == read
    assert render_host_file(parse_host_spec(text, NAME)) == text


def test_an_edit_of_a_gpu_keeps_it_with_its_comments() -> None:
    text = edit_gpu(TEXT, "0000:3b:00.0", {"cordoned": True}, NAME)
    assert text.startswith(TEXT)
    assert parse_host_spec(text, NAME).agent == parse_host_spec(TEXT, NAME).agent


def test_every_value_has_the_path_of_its_key() -> None:
    assert flat_agent(parse_host_spec(TEXT, NAME).agent) == {
        "allow.folders": ["/srv/images", "/srv/iso"],
        "allow.pools": ["default"],
        "allow.networks": ["default", "bridge=br0", "bridge=br0,vlan=30"],
        "allow.vgpu_params": ["frame_rate_limiter", "cuda_enabled=1"],
        "allow.modes": ["vgpu", "sriov"],
        "allow.migrate_to.gpu02.host_key": f"ssh-ed25519 {KEY}",
        "allow.migrate_to.gpu02.address": "[2001:db8::2]:4000",
        "accounts.ada@example.org": "operator",
        "accounts.controller": "fleet",
        "limits.each_account.vms": 2,
        "limits.each_account.gpu_memory": "16GiB",
        "limits.each_account.removals_per_hour": 5,
        "limits.each_account.keep_deleted_days": 14,
        "limits.all_accounts.vgpus": 100,
        "limits.accounts.controller.vms": 50,
        "notify.pager.program": "/usr/local/sbin/page",
        "notify.pager.types": ["vm-crashed", "gpu-lost"],
        "notify.portal.url": "https://portal.example.org/events",
        "notify.portal.secret_file": "/etc/vgpuctl/portal.key",
        "alerts.gpu_hot_celsius": 80,
        "alerts.gpu_busy_ratio": 0.9,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("allow: {folders: [/]}", "2:27: agent.allow.folders[0]: '/' is not the path of a file"),
        ("allow: {folders: /srv/../etc}", "agent.allow.folders: '/srv/../etc' is not the plain path of a folder"),
        ("allow: {folders: //srv}", "'//srv' is not the plain path of a folder"),
        ("allow: {folders: srv}", "'srv' is not an absolute path"),
        ("allow: {folders: []}", "agent.allow.folders: the list is empty"),
        ("allow: {pools: a/b}", "agent.allow.pools: 'a/b' is not a name"),
        ("allow: {networks: none}", "agent.allow.networks: 'none' is not a network"),
        ("allow: {networks: {network: a, model: virtio}}", "is not a network: write its name, or bridge=br0"),
        ("allow: {vgpu_params: 'A B'}", "agent.allow.vgpu_params: 'A B' is not a plugin parameter"),
        ("allow: {modes: all}", "'all' is not vgpu, sriov, passthrough or virtio-gpu"),
        ("allow: {folder: /srv}", "agent.allow.folder: unknown field (did you mean 'folders'?)"),
        ("allow: {migrate_to: [gpu02]}", "agent.allow.migrate_to: expected a mapping of names"),
        ("allow: {migrate_to: {gpu02: }}", "agent.allow.migrate_to.gpu02.host_key: missing"),
        ("allow: {migrate_to: {a b: {host_key: x}}}", "'a b' is not the name of a host"),
        ("allow: {migrate_to: {g: {host_key: 'SHA256:x'}}}", "'SHA256:x' is not the fingerprint of a host's key"),
        (f"allow: {{migrate_to: {{g: {{host_key: '{KEY}', libvirt: h}}}}}}", "'h' is not a URI of libvirt"),
        (
            f"allow: {{migrate_to: {{g: {{host_key: '{KEY}', libvirt: 'qemu+tls://h/system?no_verify=1'}}}}}}",
            "does not check who answers: leave no_verify out",
        ),
        (
            f"allow: {{migrate_to: {{g: {{host_key: '{KEY}', address: '2001:db8::2'}}}}}}",
            "an IPv6 address needs brackets: [2001:db8::2]",
        ),
        (
            f"allow: {{migrate_to: {{g: {{host_key: '{KEY}', libvirt: 'qemu:///system'}}}}}}",
            "'qemu:///system' is this host's own libvirt",
        ),
        (
            f"allow: {{migrate_to: {{g: {{host_key: '{KEY}', address: 'a b'}}}}}}",
            "'a b' is not a host's name or address",
        ),
        ("accounts: {ada: root}", "agent.accounts.ada: 'root' is not operator or fleet"),
        ("accounts: {'a b': fleet}", "agent.accounts.a b: 'a b' is not the name of a user"),
        ("accounts: [ada]", "agent.accounts: expected a mapping of accounts"),
        ("limits: {each_account: {vms: -1}}", "agent.limits.each_account.vms: -1 is not between 0 and"),
        ("limits: {accounts: {ada: {gpu_memory: 1GB}}}", "'1GB' has the unit GB, which is ambiguous"),
        ("notify: {a: {}}", "agent.notify.a: a receiver of events is either a program or a url"),
        ("notify: {a: {program: /bin/x, url: 'https://h'}}", "is either a program or a url"),
        ("notify: {a: {url: 'http://h'}}", "'http://h' is not an https address"),
        ("notify: {a: {url: 'https://h'}}", "needs the key that signs the events"),
        ("notify: {a: {program: x}}", "'x' is not an absolute path"),
        ("notify: {a: {program: /x, types: boom}}", "boom"),
        ("removals_per_hour: 5", "agent.removals_per_hour: unknown field"),
        ("limits: {all_accounts: {removals_per_hour: 5}}", "all_accounts.removals_per_hour: unknown field"),
        ("limits: {each_account: {removals_per_hour: 1001}}", "1001 is not between 0 and 1000"),
        ("limits: {all_accounts: {keep_deleted_days: 5}}", "all_accounts.keep_deleted_days: unknown field"),
        ("limits: {accounts: {ada: {keep_deleted_days: 0}}}", "0 is not between 1 and 366"),
        ("limits: {each_account: {keep_deleted_days: 367}}", "367 is not between 1 and 366"),
        ("limits: {each_account: {keep_deleted_days: 1.5}}", "1.5"),
        ("alerts: {gpu_hot_celsius: 300}", "agent.alerts.gpu_hot_celsius: 300 is not between 30 and 120"),
        ("alerts: {gpu_busy_ratio: 95}", "agent.alerts.gpu_busy_ratio: 95 is not a number between 0 and 1"),
        ("alerts: {gpu_busy_ratio: true}", "is not a number between 0 and 1, such as 0.95"),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host_spec(f"version: 1\nagent: {{{text}}}", NAME)
    assert message in caught.value.message
    assert "host.yaml:2:" in caught.value.message
