"""Who is who: an authority, the server's certificate, and a key pair for every node."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.files import unwritten

PEM = serialization.Encoding.PEM
EARLIER = datetime.timedelta(hours=1)  # clocks differ
LONGEST = 3650  # days for which a server's certificate may be valid; its authority is, for one more


def write_authority(key: Path, certificate: Path) -> None:
    """A new authority. Whoever has its key can pretend to be the server."""
    private = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bespoke deployment authority")])
    made = (
        _lasting(x509.CertificateBuilder(), LONGEST + 1)
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
    """The server's certificate, for the names and addresses by which it is reached. What is there is replaced last."""
    signer, issuer = _read_authority(*authority)
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    if ends > issuer.not_valid_after_utc:
        raise InputError(
            f"the authority itself is valid until {issuer.not_valid_after_utc:%Y-%m-%d}: give fewer days than {days}, "
            "or make a new deployment with bespoke deploy init."
        )
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
    secret = private.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    new = {path: path.with_name(f".{path.name}.{os.getpid()}") for path in (key, certificate)}
    try:
        for path, data in ((key, secret), (certificate, made.public_bytes(PEM))):
            new[path].unlink(missing_ok=True)
            write_secret(new[path], data)
        for path, aside in new.items():
            aside.replace(path)
    except OSError as error:
        raise unwritten(certificate.parent, error) from None
    finally:
        for aside in new.values():
            aside.unlink(missing_ok=True)


def write_pair(private_file: Path, public_file: Path) -> None:
    """A node's key pair, as OpenSSH writes them."""
    private = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    write_secret(private_file, private.private_bytes(PEM, openssh, serialization.NoEncryption()))
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public_file.write_bytes(public + b"\n")


def check_certificate(path: Path, renew: str, host: str | None = None) -> None:
    """Refuse a server certificate that is over, or has not begun, or is not for this host."""
    found = _read_certificate(path)
    now = datetime.datetime.now(datetime.UTC)
    if now >= found.not_valid_after_utc:
        raise InputError(f"the server's certificate ended on {found.not_valid_after_utc:%Y-%m-%d}; renew it: {renew}")
    if now < found.not_valid_before_utc:
        raise InputError(
            f"the server's certificate begins on {found.not_valid_before_utc:%Y-%m-%d}; set this machine's clock."
        )
    if host is not None:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if _alternative(host) not in names:
            raise InputError(f"the server's certificate is not for {host}, where it is to listen; renew it: {renew}")


def write_secret(path: Path, data: bytes) -> None:
    """A file that nobody else may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _read_authority(key: Path, certificate: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    try:
        signer = serialization.load_pem_private_key(key.read_bytes(), None)
    except OSError as error:
        raise InputError(f"cannot read the authority's key {str(key)!r}: {error.strerror or error}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(
            f"{str(key)!r} must be the authority's key, as deploy init wrote it, which it is not: {in_brief(error)}."
        ) from None
    issuer = _read_certificate(certificate)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise InputError(
            f"{str(key)!r} is not the key of the authority in {str(certificate)!r}; put the right one there."
        )
    return signer, issuer


def _read_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read the certificate {str(path)!r}: {error.strerror or error}.") from None
    except ValueError as error:
        raise InputError(f"{str(path)!r} must be a certificate, which it is not: {in_brief(error)}.") from None


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
