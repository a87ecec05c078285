"""A signature covers the whole request, is valid once, and for a short time."""

from collections.abc import Callable

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from bespokefl.engines.transports.flower.security.signing import (
    MAX_CLOCK_DIFFERENCE,
    RejectedError,
    Signer,
    Verifier,
    key_id,
)

SECRET, PATH, BODY = b"s" * 32, "/v1/fleet/pull-messages", b"a body"
NODE = ec.generate_private_key(ec.SECP384R1())


def verifier(later: float = 0.0) -> Verifier:
    import time

    return Verifier(SECRET, {key_id(NODE.public_key()): NODE.public_key()}, lambda: time.time() + later)


@pytest.mark.parametrize("key", [NODE, SECRET], ids=["node", "server"])
def test_a_signed_request_is_accepted_once(key: ec.EllipticCurvePrivateKey | bytes) -> None:
    signer, one = Signer(key), verifier()
    header = signer.sign("POST", PATH, BODY)
    name, body_hash = one.verify(header, "POST", PATH)
    assert name == signer.name and len(body_hash) == 64
    with pytest.raises(RejectedError, match="was made before"):
        one.verify(header, "POST", PATH)
    one.verify(signer.sign("POST", PATH, BODY), "POST", PATH)


@pytest.mark.parametrize("key", [NODE, SECRET], ids=["node", "server"])
@pytest.mark.parametrize(
    "change",
    [
        lambda header: (header, "GET", PATH),
        lambda header: (header, "POST", "/v1/fleet/push-messages"),
        *(
            # another key, time, nonce or hash of the body
            lambda header, at=at, value=value: (
                " ".join([*header.split()[:at], value, *header.split()[at + 1 :]]),
                "POST",
                PATH,
            )
            for at, value in ((2, "1"), (3, "0" * 32), (4, "0" * 64), (5, "AAAA"), (5, "A"))
        ),
    ],
)
def test_nothing_that_is_signed_can_be_changed(
    key: ec.EllipticCurvePrivateKey | bytes, change: Callable[[str], tuple[str, str, str]]
) -> None:
    with pytest.raises(RejectedError, match=r"not signed with the secret|signature of the request is wrong"):
        verifier().verify(*change(Signer(key).sign("POST", PATH, BODY)))


@pytest.mark.parametrize("header", ["", "1", "2 server 1 2 3 4", "1 server " + "9" * 5000, "é" * 40])
def test_a_header_of_another_form_is_rejected(header: str) -> None:
    with pytest.raises(RejectedError, match="not signed as this version"):
        verifier().verify(header, "POST", PATH)


def test_strangers_are_rejected() -> None:
    stranger = Signer(ec.generate_private_key(ec.SECP384R1()))
    with pytest.raises(RejectedError, match="does not know the key"):
        verifier().verify(stranger.sign("POST", PATH, BODY), "POST", PATH)
    with pytest.raises(RejectedError, match=r"not signed with the secret"):
        verifier().verify(Signer(b"another secret").sign("POST", PATH, BODY), "POST", PATH)


@pytest.mark.parametrize("later", [MAX_CLOCK_DIFFERENCE + 10, -MAX_CLOCK_DIFFERENCE - 10])
def test_clocks_may_differ_a_little(later: float) -> None:
    header = Signer(NODE).sign("POST", PATH, BODY)
    with pytest.raises(RejectedError, match=r"The clocks differ by 3\d\d seconds: set them"):
        verifier(later).verify(header, "POST", PATH)
    verifier(later * 0.9).verify(header, "POST", PATH)


def test_nonces_are_forgotten_when_signatures_have_expired() -> None:
    now = [0.0]
    one = Verifier(SECRET, {}, lambda: now[0])
    import time

    now[0] = time.time()
    one.verify(Signer(SECRET).sign("POST", PATH, BODY), "POST", PATH)
    assert len(one._seen) == 1
    now[0] += 2 * MAX_CLOCK_DIFFERENCE + 1
    with pytest.raises(RejectedError, match="clocks"):  # and this one does not grow the memory
        one.verify(Signer(SECRET).sign("POST", PATH, BODY), "POST", PATH)
    now[0] -= MAX_CLOCK_DIFFERENCE + 2
    one.verify(Signer(SECRET).sign("POST", PATH, BODY), "POST", PATH)
    now[0] += 4 * MAX_CLOCK_DIFFERENCE
    one._use("0", now[0])
    assert one._seen == {"0"}
