"""Flower's SuperLink, with one more door shut: only this machine may start runs, register nodes or fetch tasks.

Flower serves nodes and administrators on one port, and the latter without asking who they are. `python -m
bespokefl.engines.flower.link` takes the arguments of `flower-superlink`.
"""

import ipaddress
import os
from typing import Any

OPEN = ("/v1/fleet/", "/health", "/ready")  # what nodes need; they are asked for their keys


class OnlyNodesFromOutside:
    """Refuses whatever is not for nodes, unless it comes from this machine."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(OPEN) and not _here(scope.get("client")):
            await send({"type": "http.response.start", "status": 403, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"Only the server's own machine may do that."})
            return
        await self.app(scope, receive, send)


def _here(client: tuple[str, int] | None) -> bool:
    try:
        return client is not None and ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def main() -> None:
    from flwr.superlink import extensions
    from flwr.superlink.cli.flower_superlink import flower_superlink
    from starlette.middleware import Middleware

    given = extensions.get_middleware
    extensions.get_middleware = lambda: (Middleware(OnlyNodesFromOutside), *given())
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    flower_superlink()


if __name__ == "__main__":
    main()
