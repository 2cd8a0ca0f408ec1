"""Two virtual GPU hosts with a cable between them, for tests that move a VM from one to the other.

Each has its own name, address and identity, because libvirt refuses to migrate a VM to the host that it is on. Both
accept each other's ssh key and certificates, and load the VFIO modules that can migrate an mtty.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial

from tests.lab import recipe
from tests.lab.machine import Lab

SOURCE, TARGET = "vgpulab-source", "vgpulab-target"
ADDRESSES = {SOURCE: "10.77.0.1", TARGET: "10.77.0.2"}
# An emulated CPU pays for packets more than for bytes.
MTU = 9000

# Runs in each L2 with its name, its address and its UUID.
SET_UP = """set -eu
name=$1 address=$2 identity=$3
hostname "$name"
echo "$name" > /etc/hostname
cat > /etc/hosts
echo "$identity" | tr -d - > /etc/machine-id
printf '\\nhost_uuid = "%s"\\nauth_tcp = "none"\\n' "$identity" >> /etc/libvirt/libvirtd.conf
ip link set eth1 address "52:54:00:77:00:0${address##*.}" mtu {mtu}
ip address add "$address/24" dev eth1
ip link set eth1 up
# In place of Debian's modules, so that a reboot loads them too. kmod looks at the content, not at the name.
for module in /{vfio}/*.ko; do
    cat "$module" > "$(modinfo -n "$(basename "$module" .ko)")"
done
modprobe -r vfio_pci vfio_iommu_type1
modprobe -a vfio_pci vfio_iommu_type1
systemctl stop libvirtd.service
systemctl start libvirtd-tcp.socket libvirtd.service
virsh uri > /dev/null
"""
# Runs in the source and prints an archive: a new authority, and a certificate for each host as server and as client.
CERTIFY = """set -eu
cd "$(mktemp -d)"
printf 'cn = vgpulab\\nca\\ncert_signing_key\\nexpiration_days = 700\\n' > ca
certtool --generate-privkey --key-type ecdsa --outfile ca-key.pem 2> log
certtool --generate-self-signed --load-privkey ca-key.pem --template ca --outfile ca-cert.pem 2>> log
for host in "$@"; do
    mkdir "$host"
    printf 'cn = %s\\ndns_name = %s\\n' "$host" "$host" > template
    printf 'tls_www_server\\ntls_www_client\\nsigning_key\\nexpiration_days = 700\\n' >> template
    cp ca-cert.pem "$host"
    certtool --generate-privkey --key-type ecdsa --outfile "$host/server-key.pem" 2>> log
    certtool --generate-certificate --load-privkey "$host/server-key.pem" --load-ca-certificate ca-cert.pem \\
        --load-ca-privkey ca-key.pem --template template --outfile "$host/server-cert.pem" 2>> log
    for kind in key cert; do cp "$host/server-$kind.pem" "$host/client-$kind.pem"; done
done
tar -c "$@" | base64
"""
INSTALL_CERTIFICATES = """set -eu
mkdir -p /etc/pki/qemu
base64 -d | tar -x -C /etc/pki/qemu --strip-components 1 "$1"
"""


@dataclass(frozen=True)
class Pair:
    """Two Labs, both in the state that `ready` made."""

    source: Lab
    target: Lab

    def certify(self) -> None:
        """Give both the certificates that `virsh migrate --tls` needs."""
        archive = self.source.run(["bash", "-c", CERTIFY, "certify", SOURCE, TARGET]).stdout
        for lab, name in ((self.source, SOURCE), (self.target, TARGET)):
            lab.run(["bash", "-c", INSTALL_CERTIFICATES, "install", name], stdin=archive)


def ready(source: Lab, target: Lab) -> Pair:
    """Return two running Labs as a pair in its clean state; the first call makes that state."""
    # Not in threads: an emulator is killed when the thread ends that started it.
    for lab, name in ((source, SOURCE), (target, TARGET)):
        lab.at(name, partial(_set_up, name=name))
    source.emulator.connect(target.emulator)
    target.emulator.connect(source.emulator)
    return Pair(source, target)


def _set_up(lab: Lab, name: str) -> None:
    hosts = "".join(f"{address} {host}\n" for host, address in ADDRESSES.items())
    script = SET_UP.replace("{mtu}", str(MTU)).replace("{vfio}", recipe.VFIO_PLACE)
    words = ["bash", "-c", script, "set-up", name, ADDRESSES[name], str(uuid.uuid5(uuid.NAMESPACE_DNS, name))]
    lab.run(words, stdin=f"127.0.0.1 localhost\n{hosts}")
    key = (lab.built.image / "id_ed25519").read_text()
    lab.run("umask 077; cat > /root/.ssh/id_ed25519", stdin=key)
    # One image, one host key.
    _, kind, public = (lab.built.image / "known_hosts").read_text().split()
    lab.run("cat > /root/.ssh/known_hosts", stdin=f"{SOURCE},{TARGET} {kind} {public}\n")
