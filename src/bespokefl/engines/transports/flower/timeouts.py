"""How long the server of a deployment waits, and for how many clients."""

import math
from dataclasses import dataclass

from bespokefl.core.errors import InputError


@dataclass(frozen=True)
class Timeouts:
    """Times in seconds; server.toml has the same keys, except for `poll`."""

    timeout: float = 600.0  # for the replies of a round
    minimum: int = 1  # clients that must have replied before a round may end
    give_up: float = 3600.0  # for the replies of the minimum
    gather: float = 600.0  # for the nodes to connect before the first round
    resend: float = 90.0  # without any reply until requests that have none are sent again
    poll: float = 0.02  # between two requests for replies, which the SuperLink holds until there are some

    def __post_init__(self) -> None:
        for name in ("timeout", "give_up", "gather", "resend"):
            seconds = getattr(self, name)
            if not (seconds > 0 and math.isfinite(seconds)):
                raise InputError(f"{name} in server.toml must be a number of seconds greater than 0, got {seconds:g}.")
        if self.minimum < 1:
            raise InputError(f"minimum in server.toml must be at least 1 client, got {self.minimum}.")
