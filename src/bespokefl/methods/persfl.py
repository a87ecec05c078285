"""PersFL: each client keeps the global model that fits it best and distils it into a personal model.

Divi, "Unifying Distillation with Personalization in Federated Learning", Purdue University 2021, Algorithm 1.
    O_k = argmin_{G_1, G_2, …} CE(G_e; validation data of k)                                                   (4.1)
    A_k = argmin_A (1−λ) CE(y, A) + λ T² KL(softmax(O_k / T) ‖ softmax(A / T)),  A starts at O_k                 (4.2)
    PersFL-GD has CE with the labels softmax(O_k / T) in place of the KL                                       (6.1)
Stage 1 is FedAvg. In stage 2, a further round without uploads, each client trains a model for every (λ, T) of a grid.
G_e is the model that clients receive in round e: G_1 is the initial model, G_{e+1} the mean after round e.

Differs from the paper: (4.2) prints the arguments of the KL in reverse; this follows Algorithm 1. Teachers are compared
by loss (the text once says accuracy), and the mean after the last round is a candidate, too. (λ, T) are chosen by
validation accuracy, never on test data; the first in ascending order wins ties. λ = 0 is trained once, as T has no
effect, and λ = 1 not at all, as the gradient is zero at the teacher. The grid is derived from Table 6.5; the paper does
not mention learning rates, batch sizes or epochs. Clients that are not drawn in a round do not see that round's model.
Clients without validation data use the last model as teacher and the first point of the grid, by default plain
fine-tuning.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf

import torch
import torch.nn.functional as F
from torch import Tensor

from bespokefl.core.cohort_data import Batch
from bespokefl.core.errors import InputError
from bespokefl.core.local_sgd import local_sgd
from bespokefl.core.method import ALL, NONE, CohortData, Message, Method, Phase, Round, State, Task, Update, Uploads
from bespokefl.core.rows import Rows
from bespokefl.core.uploads import Declarations, Weights
from bespokefl.core.user_input.hyper_parameters import above, at_least, each, interval, one_of


@dataclass(frozen=True, kw_only=True)
class PersFL(Method):
    """Each client distils the global model with its lowest validation loss into a personal model."""

    name = "persfl"
    limits = {
        "distil_epochs": at_least(1, "E"),
        "imitations": each(interval("[0, 1]", "λ")),
        "temperatures": each(above(0, "T")),
        "teacher": one_of("best", "last"),
    }

    lr: float = 0.1  # η of stage 1; both rates are the best of .1, .01, .001 on the validation data of digits
    distil_lr: float = 0.1  # η of stage 2
    distil_epochs: int = 20  # E of stage 2
    imitations: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)  # λ to try: the teacher's weight; 0 is fine-tuning
    temperatures: tuple[float, ...] = (1.0, 5.0, 25.0)  # T to try: how much the teacher's labels are softened
    teacher: str = "best"  # O_k: of all models received, by validation loss, or the "last"
    momentum: float = 0.0  # of both stages
    weights: str = "examples"  # n_k / n, or "equal"

    @property
    def grid(self) -> list[tuple[float, float]]:
        """Every (λ, T), ascending."""
        return list(product(sorted(set(map(float, self.imitations))), sorted(set(map(float, self.temperatures)))))

    def phases(self, rounds: int) -> list[Phase]:
        return [Phase("train", rounds), Phase("distil", 1, trains=ALL, reports=NONE)]

    def start_clients(self, start: Rows, cohort: Sequence[str]) -> State:
        size = len(cohort)
        return {
            "teacher": start.expand(size),  # O_k
            "teacher_loss": torch.full((size,), inf, dtype=torch.float64),  # l_k
            "teacher_round": torch.zeros(size, dtype=torch.int64),
            "personal": start.expand(size),  # A_k
            "distilled": torch.zeros(size, dtype=torch.bool),
        }

    def local_update(self, task: Task, message: Message, state: State, data: CohortData, round: Round) -> Update:
        received: Rows = message["weights"]  # G_e
        state = state | self._choose_teacher(task, received, state, data, round.number)
        if round.phase == "distil":
            personal = self._distil(task, state["teacher"], data)
            return {}, state | {"personal": personal, "distilled": torch.ones_like(state["distilled"])}
        return {"weights": local_sgd(task.gradient, received, data, self.lr, **self.sgd)}, state

    def upload(self, message: Message) -> Declarations:
        return {"weights": Weights(phase="train")}

    def aggregate(self, server: State, uploads: Uploads, round: Round) -> State:
        return {"weights": uploads.mean("weights", by=self.weights)}  # Σ n_k/n w_k

    def personal(self, task: Task, message: Message, state: State, data: CohortData) -> Rows:
        done: Tensor = state["distilled"]
        received: Rows = message["weights"]
        return received.expand(len(data)).replace(done, state["personal"][done])

    def newcomer(self, task: Task, server: State, data: CohortData) -> Rows:
        """§7.1: the teacher is the best of all rounds' models if the server has kept them, else the last model."""
        kept: Rows | None = server.get("rounds")
        if kept is None:
            return self._distil(task, server["weights"], data)
        state = self.start_clients(kept[:1], data.names)
        for at in range(len(kept)):
            state |= self._choose_teacher(task, kept[at : at + 1], state, data, at + 2)  # G_2 is round 1's mean
        return self._distil(task, state["teacher"], data)

    def _choose_teacher(self, task: Task, received: Rows, state: State, data: CohortData, number: int) -> State:
        """Algorithm 1, lines 5-9."""
        if not task.classifies:
            raise InputError(
                f"{self.name} needs classes and the loss cross_entropy, got another loss; use another method."
            )
        loss = task.score(received, data.sweep("validation"))["loss"]
        blind = data.validation.sizes == 0  # their loss is NaN; other NaNs (overflow) are never the lowest
        better = (loss < state["teacher_loss"]) | blind | (self.teacher == "last")
        found = {
            "teacher_loss": torch.where(better, loss, state["teacher_loss"]),
            "teacher_round": torch.where(better, number, state["teacher_round"]),
        }
        data.note(validation_loss=loss, **found)
        return found | {"teacher": state["teacher"].replace(better, received.expand(len(data))[better])}

    def _distil(self, task: Task, teacher: Rows, data: CohortData) -> Rows:
        """Algorithm 1, lines 14-25: each client trains one row per point of the grid and keeps the best."""
        lowest = min(map(float, self.temperatures))
        same = [(share, temperature if 0 < share < 1 else lowest) for share, temperature in self.grid]
        points = sorted(set(same))  # the grid without duplicates, as T has no effect at λ = 0 and 1
        num = len(points)
        teacher, copies, client = teacher.expand(len(data)), data.repeat(num), torch.arange(len(data))
        hyper = torch.tensor(points, dtype=teacher.dtype, device=teacher.device).repeat(len(data), 1)
        trains = torch.tensor([share < 1 for share, _ in points]).repeat(len(data))

        def gradient(student: Rows, batch: Batch, client: Tensor, share: Tensor, temperature: Tensor) -> Rows:
            first = client.diff(prepend=client[:1] - 1) != 0  # the rows of a client are adjacent and see the same batch
            answers = task.predict(teacher[client[first]], batch.x[first])[first.cumsum(0) - 1]
            return task.gradient(student, batch, self.objective, (answers, share, temperature))

        students = local_sgd(
            gradient,
            teacher.repeat(num),
            copies,
            self.distil_lr,
            steps=copies.num_steps(self.distil_epochs) * trains,
            per_row=(client.repeat_interleave(num), hyper[:, :1], hyper[:, 1:]),
            **self.sgd,
        )
        scores = task.score(students, copies.sweep("validation"))
        accuracy, loss = (scores[name].reshape(-1, num) for name in ("accuracy", "loss"))
        accuracy = accuracy.where(loss.isfinite(), torch.nan)  # a diverged student has none
        right = (accuracy * data.validation.sizes[:, None]).round()  # counts, so that rounding of a mean breaks no tie
        best = right.nan_to_num(-1.0).argmax(1)  # the first of equals, and without validation data the first of all
        chosen = torch.tensor(points, dtype=torch.float64)[best]
        index = torch.tensor([points.index(point) for point in same])
        data.note(imitation=chosen[:, 0], temperature=chosen[:, 1])
        data.note(grid_accuracy=accuracy[:, index], grid_loss=loss[:, index])
        return students[torch.arange(len(data)) * num + best]

    def objective(self, outputs: Tensor, batch: Batch, teacher: Tensor, share: Tensor, temperature: Tensor) -> Tensor:
        """(4.2) for each example: outputs of student and teacher are (K, B, C), λ and T are (K, 1)."""
        hard = F.cross_entropy(outputs.mT, batch.y, reduction="none")
        softened = (F.log_softmax(logits / temperature[..., None], -1) for logits in (teacher, outputs))
        return (1 - share) * hard + share * temperature**2 * self.soft_loss(*softened)

    def soft_loss(self, teacher: Tensor, student: Tensor) -> Tensor:
        """KL(teacher ‖ student) of log-probabilities."""
        return F.kl_div(student, teacher, reduction="none", log_target=True).sum(-1)


@dataclass(frozen=True, kw_only=True)
class PersFLGD(PersFL):
    """PersFL with cross-entropy to the teacher's softened labels instead of the KL divergence."""

    name = "persfl-gd"

    def soft_loss(self, teacher: Tensor, student: Tensor) -> Tensor:
        """CE(teacher, student) of log-probabilities: the KL divergence plus the teacher's entropy."""
        return -(teacher.exp() * student).sum(-1)
