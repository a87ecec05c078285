"""Who is who: an authority, the server's certificate, and a key pair for every node."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bespokefl.core.errors import InputError

PEM = serialization.Encoding.PEM
EARLIER = datetime.timedelta(hours=1)  # clocks differ
AUTHORITY_DAYS = 3650


def write_authority(key: Path, certificate: Path) -> None:
    """A new authority. Whoever has its key can pretend to be the server."""
    private = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bespoke deployment authority")])
    made = (
        _lasting(x509.CertificateBuilder(), AUTHORITY_DAYS)
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(private.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(private, hashes.SHA384())
    )
    write_secret(key, private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    certificate.write_bytes(made.public_bytes(PEM))


def write_certificate(
    authority: tuple[Path, Path], key: Path, certificate: Path, hosts: Sequence[str], days: int
) -> None:
    """The server's certificate, for the names and addresses by which nodes reach it."""
    signer = serialization.load_pem_private_key(authority[0].read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    issuer = x509.load_pem_x509_certificate(authority[1].read_bytes())
    private = ec.generate_private_key(ec.SECP384R1())
    made = (
        _lasting(x509.CertificateBuilder(), days)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]))
        .issuer_name(issuer.subject)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .sign(signer, hashes.SHA384())
    )
    write_secret(key, private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    certificate.write_bytes(made.public_bytes(PEM))


def write_pair(private_file: Path, public_file: Path) -> None:
    """A node's key pair, as OpenSSH writes them."""
    private = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    write_secret(private_file, private.private_bytes(PEM, openssh, serialization.NoEncryption()))
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public_file.write_bytes(public + b"\n")


def check_certificate(path: Path, renew: str) -> None:
    """Refuse a server certificate that is over, or has not begun."""
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the certificate {str(path)!r}: {error.strerror or error}.") from None
    except ValueError as error:
        raise InputError(f"{str(path)!r} must be a certificate, which it is not: {error}.") from None
    now = datetime.datetime.now(datetime.UTC)
    if now >= found.not_valid_after_utc:
        raise InputError(f"the server's certificate ended on {found.not_valid_after_utc:%Y-%m-%d}; renew it: {renew}")
    if now < found.not_valid_before_utc:
        raise InputError(
            f"the server's certificate begins on {found.not_valid_before_utc:%Y-%m-%d}; set this machine's clock."
        )


def write_secret(path: Path, data: bytes) -> None:
    """A file that nobody else may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _lasting(builder: x509.CertificateBuilder, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return builder.not_valid_before(now - EARLIER).not_valid_after(now + datetime.timedelta(days=days))


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
