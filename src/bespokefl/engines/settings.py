"""The settings of a run beside its method: rounds, batches, workers, faults, noise."""

from dataclasses import dataclass

from bespokefl.engines.client import Budget
from bespokefl.engines.clipping import Privacy
from bespokefl.engines.faults import NO_FAULTS, Faults


@dataclass(frozen=True)
class Settings:
    """How to run, beside the method."""

    rounds: int = 20
    participation: float = 1.0
    batch_size: int = 10
    local_epochs: int = 1
    local_steps: int | None = None  # instead of local_epochs
    seed: int = 0
    eval_every: int = 0  # 0: only at the end
    workers: int = 0  # 0: all cores
    chunk: int | None = None  # None: chosen by chunks.choose
    warm: bool = False  # the start is given weights, not random ones
    reference: bool = False  # the plain loop instead of the fast engine
    keep_rounds: bool = False  # keep the common model of every round
    faults: Faults = NO_FAULTS  # clients that fail, simulated
    clip: float | None = None  # how far an upload may be from where it began
    noise: float | None = None  # on uploads, in units of clip
    state_dir: str | None = None  # keep clients' states in files here; None: in memory, if they fit
    record: bool = True  # False: only the outcome counts, nothing is counted, noted or screened (studies of small runs)

    @property
    def budget(self) -> Budget:
        expected_rounds = max(1, int(self.rounds * self.participation + 1e-9))
        return Budget(self.batch_size, self.local_epochs, self.local_steps, expected_rounds)

    @property
    def privacy(self) -> Privacy:
        return Privacy(self.clip, self.noise)
