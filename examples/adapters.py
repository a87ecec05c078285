"""Personalize a small transformer for the authors of short texts: adapters compared with training all weights.

    python examples/adapters.py sent140_by_user.npz

The file has three arrays: `text_utf8`, the bytes of all texts, separated by newlines; `y`, a class for each text;
`user`, the author of each text as an integer. A transformer is pre-trained on the texts of people with few of them,
pooled. Each person with at least `--texts` texts is a client. A frozen backbone with low-rank adapters and a trained
head is compared with a model whose weights are all trained. The learning rate of each line is the one with the best
accuracy on validation data with the first seed. Every run has its own process, so that its memory can be measured.
"""

import argparse
import multiprocessing
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import bespokefl as bf
from bespokefl.core import rng

LENGTH, VOCABULARY, WIDTH, RANK = 32, 5000, 64, 8
PADDING, UNKNOWN = 0, 1
LEARNING_RATES = (0.02, 0.1, 0.5)
LINES = (  # what is trained, and by which method
    *(("adapters", name) for name in ("local", "fedavg", "fedper", "ditto", "selffl", "fedsa-lora")),
    *(("all weights", name) for name in ("local", "fedavg", "ditto")),
)


class Transformer(nn.Module):
    """Two layers over the embeddings of words and positions; the head reads the mean over the words."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        words = (x != PADDING).unsqueeze(-1)
        hidden = self.encoder(self.embedding(x) + self.position) * words
        return self.head(hidden.sum(1) / words.sum(1).clamp(min=1))


@dataclass(frozen=True)
class Texts:
    """Texts as word ids, with class and author."""

    x: Tensor  # (texts, LENGTH)
    y: Tensor
    user: np.ndarray

    def of(self, which: np.ndarray) -> "Texts":
        """Some of the texts."""
        chosen = torch.from_numpy(which)
        return Texts(self.x[chosen], self.y[chosen], self.user[which])


def read(path: Path, least: int) -> tuple[Texts, Texts]:
    """Return the texts of people with few of them, which also give the vocabulary, and those of the others."""
    with np.load(path, allow_pickle=False) as file:
        documents = file["text_utf8"].tobytes().decode("utf-8").split("\n")
        y, user = file["y"].astype(np.int64), file["user"].astype(np.int64)
    words = [re.findall(r"\w+|[^\w\s]", one.lower())[:LENGTH] for one in documents[: len(y)]]
    many = np.bincount(user)[user] >= least
    counted = Counter(word for at in np.flatnonzero(~many) for word in words[at])
    index = {word: at for at, (word, _) in enumerate(counted.most_common(VOCABULARY - 2), start=2)}
    x = np.full((len(y), LENGTH), PADDING)
    for row, own in zip(x, words, strict=True):
        row[: len(own)] = [index.get(word, UNKNOWN) for word in own]
    texts = Texts(torch.from_numpy(x), torch.from_numpy(y), user)
    return texts.of(np.flatnonzero(~many)), texts.of(np.flatnonzero(many))


def pretrain(texts: Texts, epochs: int, seed: int) -> dict[str, Tensor]:
    """Train a transformer to classify pooled texts; return its weights."""
    with rng.torch_seeded(seed, "pretrained"):
        module = Transformer(int(texts.y.max()) + 1)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
    for epoch in range(epochs):
        order = torch.from_numpy(rng.generator(seed, "pretraining", epoch).permutation(len(texts.y)))
        for some in order.split(64):
            optimizer.zero_grad()
            F.cross_entropy(module(texts.x[some]), texts.y[some]).backward()
            optimizer.step()
    return {name: value.detach() for name, value in module.state_dict().items()}


def model_of(state: dict[str, Tensor], trained: str) -> Callable[[], nn.Module]:
    """A function that returns the pre-trained model, with adapters or with all weights trained."""

    def make() -> nn.Module:
        module = Transformer(len(state["head.bias"]))
        module.load_state_dict(state)
        return bf.models.lora(module, "encoder.*", rank=RANK) if trained == "adapters" else module

    return make


@dataclass(frozen=True)
class Job:
    """One run."""

    trained: str
    method: str
    lr: float
    seed: int
    rounds: int
    texts: Texts
    state: dict[str, Tensor]

    @property
    def clients(self) -> bf.Clients:
        """The authors; the seed divides the texts of each into training, validation and test."""
        data = bf.Dataset.from_arrays(self.texts.x, self.texts.y, self.texts.user, "texts", tokens=True)
        return data.split("by_column", seed=self.seed, fractions=(0.5, 0.2, 0.3))


@dataclass(frozen=True)
class Found:
    """What a run gave."""

    lr: float
    validation: float
    accuracy: float  # on the test data of a client, mean over clients
    seconds: float  # of processor time
    megabytes: float  # of memory in use, at most, above what the process had before the run
    sent: float  # kilobytes that a client uploads in a round
    columns: int  # trained weights


def train(job: Job) -> Found:
    """Run one job in this process."""
    torch.set_num_threads(1)
    kind, clients, make = bf.methods.REGISTRY[job.method], job.clients, model_of(job.state, job.trained)
    rates = {name: job.lr for name in kind().hyper() if name.endswith("lr")}
    before, began = _memory("VmRSS"), time.process_time()
    Path("/proc/self/clear_refs").write_text("5")  # the peak from now on
    budget = {"rounds": job.rounds, "participation": 0.25, "local_epochs": 2, "batch_size": 10, "eval_every": 0}
    result = bf.run(kind(**rates), clients, model=make, seed=job.seed, workers=1, **budget)
    seconds, memory = time.process_time() - began, _memory("VmHWM") - before
    uploads = sum(one["up_bytes"] for one in result.rounds) / sum(one["reported"] for one in result.rounds)
    columns = sum(one.numel() for one in make().parameters() if one.requires_grad)
    scores = [float(np.nanmean(result.personal[name])) for name in ("validation_accuracy", "accuracy")]
    return Found(job.lr, *scores, seconds, memory / 1024, uploads / 1000, columns)


def apart(job: Job) -> Found:
    """Run one job in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("fork")) as pool:
        return pool.submit(train, job).result()


def _memory(name: str) -> int:
    """The memory of this process in kB: VmRSS now, VmHWM at most (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name + ":"))


def unchanged(job: Job) -> float:
    """The test accuracy of the pre-trained model as it is, mean over clients."""
    clients, module = job.clients, model_of(job.state, "all weights")().eval()
    with torch.no_grad():
        hits = (module(clients.x).argmax(1) == clients.y).double()
    parts = [clients.test.of(client) for client in range(len(clients))]
    return statistics.mean(float(hits[own].mean()) for own in parts if len(own))


def compare(jobs: Sequence[Job], rates: Sequence[float]) -> list[Found]:
    """Choose the learning rate on validation data with the first seed; return the runs of all seeds with it."""
    tried = [apart(replace(jobs[0], lr=lr)) for lr in rates]
    best = max(tried, key=lambda one: one.validation)
    return [best, *(apart(replace(job, lr=best.lr)) for job in jobs[1:])]


def _line(trained: str, method: str, found: Sequence[Found]) -> str:
    accuracies = [100 * one.accuracy for one in found]
    spread = f" ± {statistics.stdev(accuracies):.1f}" if len(found) > 1 else ""
    seconds, memory, sent = (
        statistics.median(getattr(one, name) for one in found) for name in ("seconds", "megabytes", "sent")
    )
    accuracy = f"{statistics.mean(accuracies):.1f}{spread}"
    return f"| {trained} | {method} | {found[0].lr} | {accuracy} | {seconds:.0f} | {memory:.0f} | {sent:.1f} |"


def main(given: Sequence[str] | None = None) -> None:
    """Read the arguments, run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--texts", type=int, default=10, help="texts that a person has, at least, to be a client")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=3, help="of pre-training")
    parser.add_argument("--rates", type=float, nargs="+", default=LEARNING_RATES, help="learning rates to try")
    parser.add_argument("--methods", nargs="+", default=sorted({method for _, method in LINES}))
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    pool, texts = read(options.data, options.texts)
    starts = [pretrain(pool, options.epochs, seed) for seed in range(options.seeds)]
    jobs = [Job("", "", 0.0, seed, options.rounds, texts, state) for seed, state in enumerate(starts)]
    accuracies = [100 * unchanged(job) for job in jobs]
    people = len(np.unique(texts.user))
    print(f"pre-trained on {len(pool.y)} texts of others; {people} clients with {len(texts.y)} texts", flush=True)
    print(f"the pre-trained model, unchanged: {statistics.mean(accuracies):.1f}", flush=True)
    print("| trained | method | rate | accuracy | seconds | MB | kB up |\n|---|---|---|---|---|---|---|", flush=True)
    for trained, method in LINES:
        if method in options.methods:
            own = [replace(job, trained=trained, method=method) for job in jobs]
            found = compare(own, options.rates)
            print(_line(trained, method, found), flush=True)


if __name__ == "__main__":
    main()
