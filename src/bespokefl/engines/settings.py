"""The settings of the engines: rounds, batches, workers, faults, privacy."""

from dataclasses import dataclass, field

from bespokefl.engines.faults import Faults
from bespokefl.engines.protection.clipping import Privacy

FOLLOWED = ("loss", "accuracy")  # metrics that every evaluation computes


@dataclass(frozen=True)
class Settings:
    """How to run a method. `RunSettings` of the workflows holds the user's settings, which include these."""

    rounds: int = 20
    participation: float = 1.0
    stragglers: bool = False  # all clients train, and those drawn report
    batch_size: int = 10
    local_epochs: int = 1
    local_steps: int | None = None  # instead of local_epochs
    seed: int = 0
    eval_every: int = 0  # 0: only at the end
    skip_train_scores: bool = False  # between rounds, score validation and test data only
    follow: str | None = None  # a metric recorded over the rounds, besides loss and accuracy
    workers: int = 0  # 0: all cores
    cluster: str = "none"  # the address of a Ray cluster; "none": this machine alone
    chunk: int | None = None  # None: chosen by a rule
    warm: bool = False  # the run starts from given weights, not from random ones
    reference: bool = False  # the plain PyTorch loop instead of the fast engine
    keep_rounds: bool = False  # keep the global model of every round
    faults: Faults = field(default_factory=Faults)  # simulated client failures
    max_share: float | None = None  # of one client in a mean by examples; None: no limit
    clip: float | None = None  # the largest norm of an upload, relative to its reference
    noise: float | None = None  # standard deviation of the noise on uploads, in units of clip
    state_dir: str | None = None  # keep clients' states in files here; None: in memory if they fit
    record: bool = True  # False: no counting, notes or screening, for studies of many small runs

    @property
    def expected_rounds(self) -> int:
        """The number of rounds in which an average client trains."""
        return max(1, int(self.rounds * self.participation + 1e-9))

    @property
    def followed(self) -> tuple[str, ...]:
        """The metrics recorded over the rounds; the others are computed at the end only."""
        return FOLLOWED if self.follow in (None, *FOLLOWED) else (*FOLLOWED, str(self.follow))

    @property
    def privacy(self) -> Privacy:
        """Clipping and noise."""
        return Privacy(self.clip, self.noise)
