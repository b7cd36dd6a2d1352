"""TLS and keys of nodes, with certificates made here: who has the wrong ones is refused, and the others train."""

from __future__ import annotations

import datetime
import ipaddress
import time
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("cryptography")

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedskew.flower.local import CONNECTION, Loopback
from fedskew.flower.template import write_app
from fedskew.store.runs import RunStore
from tests.flower_nodes import nodes_of, small

PEM = serialization.Encoding.PEM
PLAIN = serialization.NoEncryption()


def named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def authority(folder: Path, name: str) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = signed(name, key, named(name), key, x509.BasicConstraints(ca=True, path_length=None))
    (folder / f"{name}.pem").write_bytes(certificate.public_bytes(PEM))
    return certificate, key


def signed(name, key, issuer, by, *extensions) -> x509.Certificate:
    today = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(by, hashes.SHA384())


def key_pair(folder: Path, name: str) -> Path:
    """The private key's file, in the form of ssh-keygen; the public one beside it."""
    key = ec.generate_private_key(ec.SECP384R1())
    form, public = serialization.PrivateFormat.OpenSSH, serialization.PublicFormat.OpenSSH
    (folder / name).write_bytes(key.private_bytes(PEM, form, PLAIN))
    (folder / f"{name}.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.OpenSSH, public))
    return folder / name


def says(log: Path, words: tuple[str, ...], seconds: float = 120) -> bool:
    """Whether a process soon writes one of these."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(word in log.read_text(errors="replace").lower() for word in words):
            return True
        time.sleep(0.5)
    return False


@pytest.mark.slow
def test_only_nodes_with_the_right_certificate_and_key_take_part(tmp_path: Path) -> None:
    ca, ca_key = authority(tmp_path, "ca")
    authority(tmp_path, "other")
    key = ec.generate_private_key(ec.SECP384R1())
    address = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
    )
    server = signed("server", key, ca.subject, ca_key, address)
    (tmp_path / "server.pem").write_bytes(server.public_bytes(PEM))
    form = serialization.PrivateFormat.PKCS8
    (tmp_path / "server.key").write_bytes(key.private_bytes(PEM, form, PLAIN))
    tls = ["--ssl-ca-certfile", str(tmp_path / "ca.pem"), "--ssl-certfile", str(tmp_path / "server.pem")]
    tls += ["--ssl-keyfile", str(tmp_path / "server.key"), "--enable-supernode-auth"]

    experiment = small(rounds=1).replace(clients__number=2)
    good = nodes_of(experiment, tmp_path / "rows")
    keys = [key_pair(tmp_path, f"key-{i}") for i in range(4)]
    with Loopback(tmp_path / "flower", [], secure=tmp_path / "ca.pem", superlink=tls) as there:
        for i in (0, 1, 3):
            there.flwr("supernode", "register", f"{keys[i]}.pub", CONNECTION)

        def options(i: int) -> list[str]:
            return ["--auth-supernode-private-key", str(keys[i])]

        there.start_node(replace(good[0], client=2), options=options(2))
        assert says(there.folder / "node-2.log", ("failed to activate supernode",))
        assert "No SuperNode found with the given public key" in (there.folder / "superlink.log").read_text()
        there.start_node(replace(good[0], client=3), roots=tmp_path / "other.pem", options=options(3))
        assert says(there.folder / "node-3.log", ("certificate verify failed", "certificate_verify_failed"))
        for node in good:
            there.start_node(node, options=options(node.client))
        app = write_app(tmp_path / "app", experiment, str(tmp_path / "runs"))
        submitted = there.submit(app)
        end = time.monotonic() + 300
        while time.monotonic() < end and not there.status(submitted).startswith("finished"):
            time.sleep(1)
        assert there.status(submitted) == "finished:completed", there.flwr("log", submitted, CONNECTION, "--show")
        listed = there.flwr("supernode", "ls", CONNECTION, "--format", "json")
        assert listed.count('"online"') == 2
    assert RunStore(tmp_path / "runs").run(1).status == "finished"
