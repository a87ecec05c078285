"""How long the server of a deployment waits, and for how many."""

from dataclasses import dataclass

from bespokefl.core.errors import InputError


@dataclass(frozen=True)
class Timeouts:
    """In seconds."""

    timeout: float = 600.0  # for the answers of a round
    minimum: int = 1  # clients that must have answered before a round may end
    give_up: float = 3600.0  # for the minimum
    gather: float = 600.0  # for the nodes, at the beginning
    resend: float = 90.0  # until a letter without an answer is sent again
    poll: float = 0.02  # between two requests for answers; the SuperLink keeps each until there are some

    def __post_init__(self) -> None:
        for name in ("timeout", "give_up", "gather", "resend"):
            if not getattr(self, name) > 0:
                raise InputError(f"{name} must be more than 0 seconds, got {getattr(self, name)}.")
        if self.minimum < 1:
            raise InputError(f"the minimum of clients must be at least 1, got {self.minimum}.")
