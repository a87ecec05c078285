"""PersFL's comparison on MNIST: thesis, tables 6.2 and 6.3."""

from bespokefl.workflows.studies.paper_table import Column, PaperTable, Row

DS = ("DS-1", "DS-2", "DS-3")


def _persfl(label: str, method: str, rounds: tuple[int, int, int], published: tuple[float, float, float]) -> Row:
    lr = {"personal_lr": 0.1} if method == "pfedme" else {}
    return Row(
        label,
        method,
        dict(zip(DS, rounds, strict=True)),
        dict(zip(DS, published, strict=True)),
        {"lr": 0.1, **lr},
        # pFedMe and Per-FedAvg take few local steps and many rounds, as in their papers.
        {"local_steps": 20, "local_epochs": 1, "batch_size": 20} if rounds[0] >= 800 else {},
    )


STUDY = PaperTable(
    name="persfl-mnist",
    title="PersFL's comparison on MNIST",
    source="Tables 6.2 and 6.3",
    data="mnist",
    model="mlp",
    columns=[Column(name, name.lower()) for name in DS],
    rows=[
        Row("Local", "local", dict(zip(DS, (100, 50, 100), strict=True)), {}, {"lr": 0.1}),
        _persfl("FedAvg", "fedavg", (100, 50, 100), (92.0, 85.5, 96.4)),
        _persfl("PersFL", "persfl", (100, 25, 100), (98.6, 88.0, 99.4)),
        _persfl("FedPer", "fedper", (100, 50, 100), (98.3, 85.5, 99.4)),
        _persfl("pFedMe", "pfedme", (800, 800, 800), (94.8, 87.1, 98.2)),
        _persfl("Per-FedAvg", "perfedavg", (800, 800, 800), (98.9, 87.6, 97.3)),
    ],
    seeds=5,
    options={"batch_size": 128, "local_epochs": 5},
    differs=[
        "All 70,000 images are split; the thesis does not say how many its ten clients had.",
        "The learning rate is 0.1 for all, one of the three in the thesis; it was not tuned on these data.",
        "pFedMe and Per-FedAvg have 800 rounds (the thesis: 800 to 1000), with 20 local steps of batch 20.",
        "In the thesis, FedPer's figure for DS-2 is a copy of FedAvg's.",
    ],
)
