"""Signs requests to the SuperLink and verifies them.

A signature covers the method, the path, the time, a nonce and the SHA-256 of the body. Nodes sign with their private
key (ECDSA with SHA-256), the server's own processes and `bespoke deploy` with the deployment's secret (HMAC-SHA-256).
All of it stands in one header, so that a request can be rejected before its body is read.
"""

import base64
import binascii
import hashlib
import hmac
import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

HEADER = "bespoke-signature"
VERSION = "1"
SERVER = "server"  # who signs with the secret
CONTEXT = b"bespoke-administration"  # so that the secret is not used for two purposes
MAX_CLOCK_DIFFERENCE = 300.0  # seconds between the clocks of two machines; Flower accepts as many
MAX_HEADER = 1024  # characters
HEADER_FORMAT = re.compile(  # version, key, time, nonce, hash of the body, signature
    r"1 ([0-9a-f]{64}|server) ([0-9]{1,12}) ([0-9a-f]{32}) ([0-9a-f]{64}) ([A-Za-z0-9+/=]{1,300})"
)


class RejectedError(Exception):
    """A request without a valid signature; the message is one sentence for the caller."""


def key_id(key: ec.EllipticCurvePublicKey) -> str:
    """The hash by which a node names its public key."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


class Signer:
    """Signs requests as a node, with its private key, or as the server, with the deployment's secret."""

    def __init__(self, key: ec.EllipticCurvePrivateKey | bytes) -> None:
        self._key = key
        self.name = SERVER if isinstance(key, bytes) else key_id(key.public_key())

    def sign(self, method: str, path: str, body: bytes) -> str:
        """The value of the header for a request."""
        parts = VERSION, self.name, str(int(time.time())), secrets.token_hex(16), hashlib.sha256(body).hexdigest()
        text = _text(method, path, parts)
        signature = _mac(self._key, text) if isinstance(self._key, bytes) else self._key.sign(text, _algorithm())
        return " ".join((*parts, base64.b64encode(signature).decode()))


@dataclass
class Verifier:
    """Verifies signatures: of the server by its secret, of nodes by their public keys. No signature is valid twice."""

    secret: bytes
    keys: Mapping[str, ec.EllipticCurvePublicKey]  # by id
    clock: Callable[[], float] = time.time
    _seen: set[str] = field(default_factory=set)  # nonces whose signatures have not expired
    _expiring: deque[tuple[float, str]] = field(default_factory=deque)

    def verify(self, header: str, method: str, path: str) -> tuple[str, str]:
        """Return who signed a request, and the hash that its body must have; raise RejectedError."""
        found = HEADER_FORMAT.fullmatch(header) if len(header) <= MAX_HEADER else None
        if found is None:
            raise RejectedError("The request is not signed as this version of Bespoke signs it.")
        name, signed_at, nonce, body_hash, signature = found.groups()
        text = _text(method, path, (VERSION, name, signed_at, nonce, body_hash))
        try:
            self._verify(name, text, base64.b64decode(signature, validate=True))
        except (binascii.Error, InvalidSignature):
            raise RejectedError("The signature of the request is wrong.") from None
        now = self.clock()
        if abs(now - int(signed_at)) > MAX_CLOCK_DIFFERENCE:
            raise RejectedError(f"The clocks differ by {abs(now - int(signed_at)):.0f} seconds: set them.")
        self._use(nonce, now)
        return name, body_hash

    def _verify(self, name: str, text: bytes, signature: bytes) -> None:
        if name == SERVER:
            if not hmac.compare_digest(_mac(self.secret, text), signature):
                raise RejectedError("The request is not signed with the secret of this deployment.")
            return
        if name not in self.keys:
            raise RejectedError("The server does not know the key that signed the request.")
        self.keys[name].verify(signature, text, _algorithm())

    def _use(self, nonce: str, now: float) -> None:
        while self._expiring and self._expiring[0][0] < now:
            self._seen.discard(self._expiring.popleft()[1])
        if nonce in self._seen:
            raise RejectedError("The request was made before.")
        self._seen.add(nonce)
        self._expiring.append((now + 2 * MAX_CLOCK_DIFFERENCE, nonce))


def read_public_keys(directory: Path) -> dict[str, ec.EllipticCurvePublicKey]:
    """The public keys in the files of a directory, by id; files that are none are left out."""
    found = {}
    for path in sorted(directory.glob("*.pub")):
        try:
            key = load_ssh_public_key(path.read_bytes())
        except (OSError, ValueError, UnsupportedAlgorithm):  # the server reports it when it registers the node
            continue
        if isinstance(key, ec.EllipticCurvePublicKey):
            found[key_id(key)] = key
    return found


def _text(method: str, path: str, parts: tuple[str, ...]) -> bytes:
    return "\n".join((*parts, method, path)).encode()


def _mac(secret: bytes, text: bytes) -> bytes:
    return hmac.new(hmac.new(secret, CONTEXT, hashlib.sha256).digest(), text, hashlib.sha256).digest()


def _algorithm() -> ec.ECDSA:
    return ec.ECDSA(hashes.SHA256())
