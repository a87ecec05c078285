"""Certificates and keys of a deployment: an authority, the server's certificate, and a key pair for each node."""

import datetime
import ipaddress
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bespokefl.core.errors import InputError, in_brief
from bespokefl.core.system.files import unwritten

PEM = serialization.Encoding.PEM
CLOCK_TOLERANCE = datetime.timedelta(hours=1)  # a certificate is valid a little earlier: clocks differ
MAX_DAYS = 3650  # of the server's certificate; the authority's is valid for one more
KEY_USAGES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def write_authority(key: Path, certificate: Path) -> None:
    """Write a new authority. Whoever has its key can impersonate the server."""
    private = ec.generate_private_key(ec.SECP384R1())
    name = _name("Bespoke deployment authority")
    extensions = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (x509.SubjectKeyIdentifier.from_public_key(private.public_key()), False),
        (_key_usage("key_cert_sign", "crl_sign"), True),
    ]
    signed = _sign(private, name, name, private.public_key(), MAX_DAYS + 1, extensions)
    write_secret(key, _private_pem(private))
    certificate.write_bytes(signed.public_bytes(PEM))


def write_certificate(
    authority: tuple[Path, Path], key: Path, certificate: Path, hosts: Sequence[str], days: int
) -> None:
    """Write the server's key and its certificate for these hosts; existing files are replaced last."""
    signer, issuer = _read_authority(*authority)
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    if ends > issuer.not_valid_after_utc:
        raise InputError(
            f"the authority itself is valid until {issuer.not_valid_after_utc:%Y-%m-%d}: give fewer days than {days}, "
            "or make a new deployment with bespoke deploy init."
        )
    private = ec.generate_private_key(ec.SECP384R1())
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (_key_usage("digital_signature"), True),
    ]
    signed = _sign(signer, _name(hosts[0][:64]), issuer.subject, private.public_key(), days, extensions)
    try:
        with tempfile.TemporaryDirectory(dir=certificate.parent) as folder:
            new = {path: Path(folder, path.name) for path in (key, certificate)}
            write_secret(new[key], _private_pem(private))
            write_secret(new[certificate], signed.public_bytes(PEM))
            for path, written in new.items():
                written.replace(path)
    except OSError as error:
        raise unwritten(certificate.parent, error) from None


def write_key_pair(private_file: Path, public_file: Path) -> None:
    """Write a node's key pair in the format of OpenSSH."""
    private = ec.generate_private_key(ec.SECP384R1())
    openssh = serialization.PrivateFormat.OpenSSH
    write_secret(private_file, private.private_bytes(PEM, openssh, serialization.NoEncryption()))
    public = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    public_file.write_bytes(public + b"\n")


def check_certificate(path: Path, renew: str, host: str | None = None) -> None:
    """Reject a server certificate that has expired, is not valid yet or is not for this host.

    `renew` is the command that renews it.
    """
    certificate: x509.Certificate = _load(path, "the server's certificate", x509.load_pem_x509_certificate)
    now = datetime.datetime.now(datetime.UTC)
    if now >= certificate.not_valid_after_utc:
        raise InputError(
            f"the server's certificate expired on {certificate.not_valid_after_utc:%Y-%m-%d}; renew it: {renew}"
        )
    if now < certificate.not_valid_before_utc:
        raise InputError(
            f"the server's certificate is not valid before {certificate.not_valid_before_utc:%Y-%m-%d}; set this "
            "machine's clock."
        )
    if host is not None:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if _general_name(host) not in names:
            raise InputError(f"the server listens on {host}, but its certificate is not for that; renew it: {renew}")


def write_secret(path: Path, data: bytes) -> None:
    """Write a new file that only its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _read_authority(key: Path, certificate: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    signer = _load(key, "the authority's key", partial(serialization.load_pem_private_key, password=None))
    issuer: x509.Certificate = _load(certificate, "the authority's certificate", x509.load_pem_x509_certificate)
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or signer.public_key() != issuer.public_key():
        raise InputError(
            f"{str(key)!r} is not the key of the authority in {str(certificate)!r}; put the right one there."
        )
    return signer, issuer


def _load(path: Path, what: str, load: Callable[[bytes], Any]) -> Any:
    try:
        return load(path.read_bytes())
    except OSError as error:
        raise InputError(f"cannot read {what} {str(path)!r}: {error.strerror or error}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"{str(path)!r} must be {what} as deploy init wrote it: {in_brief(error)}.") from None


def _sign(
    signer: ec.EllipticCurvePrivateKey,
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    days: int,
    extensions: Sequence[tuple[x509.ExtensionType, bool]],
) -> x509.Certificate:
    """Sign a certificate; `extensions` are pairs of an extension and whether it is critical."""
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer_name=issuer, subject_name=subject, public_key=public_key)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - CLOCK_TOLERANCE).not_valid_after(now + datetime.timedelta(days=days))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA384())


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_usage(*purposes: str) -> x509.KeyUsage:
    return x509.KeyUsage(**{name: name in purposes for name in KEY_USAGES})
