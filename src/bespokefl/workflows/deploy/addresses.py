"""Addresses of servers: host:port, with an IPv6 host in brackets."""

import ipaddress
import re

from bespokefl.core.errors import InputError

DEFAULT_PORT = 9092
LABEL = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST = re.compile(rf"{LABEL}(?:\.{LABEL})*")


def port_of(address: str) -> int:
    return _parse(address)[1]


def host_of(address: str) -> str:
    """The host, without the brackets of an IPv6 address."""
    return _parse(address)[0].strip("[]")


def is_host(host: str) -> bool:
    """Whether this is a host name, an IPv4 address, or an IPv6 address in brackets."""
    try:
        if host.startswith("[") and host.endswith("]"):
            return ipaddress.IPv6Address(host[1:-1]).scope_id is None
        if re.fullmatch(r"[0-9.]+", host):
            return bool(ipaddress.IPv4Address(host))
    except ValueError:
        return False
    return len(host) <= 253 and HOST.fullmatch(host) is not None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _parse(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not is_host(host) or not re.fullmatch(r"[0-9]{1,5}", port) or not 0 < int(port) < 65536:
        raise InputError(
            f"an address must be host:port, as in server.example.org:{DEFAULT_PORT} or 192.0.2.7:{DEFAULT_PORT}, got "
            f"{address!r}."
        )
    return host, int(port)
