"""User-Centric FL under permuted labels on CIFAR-10: Table I, third scenario."""

from bespokefl.workflows.studies.paper_table import Column, PaperTable, Row

STUDY = PaperTable(
    name="ucfl-cifar10",
    title="User-Centric FL under permuted labels, CIFAR-10, 20 clients",
    source="Table I, third scenario",
    data="cifar10",
    model='lenet(init="glorot")',
    columns=[Column("permuted", "ucfl-permuted", fractions=(0.9, 0.1, 0.0))],
    rows=[
        Row("UCFL k=m", "ucfl", 100, {"permuted": 47.7}),
        Row("UCFL k=4", "ucfl", 100, {"permuted": 49.1}, {"streams": 4}),
        Row("SCAFFOLD", "scaffold", 100, {"permuted": 17.5}, {"lr": 0.01}, {"local_epochs": 5}),
        Row(
            "Ditto",
            "ditto",
            100,
            {"permuted": 44.1},
            {"lr": 0.01, "personal_lr": 0.01, "momentum": 0.9, "prox_weight": 0.1},
        ),
        Row("pFedMe", "pfedme", 100, {"permuted": 46.6}, {"lr": 0.01, "personal_lr": 0.01}, {"batch_size": 20}),
        Row("FedProx", "fedprox", 100, {"permuted": 22.3}, {"lr": 0.01, "momentum": 0.9, "prox_weight": 0.1}),
        Row("Local", "local", 100, {"permuted": 38.3}, {"lr": 0.01, "momentum": 0.9}),
        Row("FedAvg", "fedavg", 100, {"permuted": 24.2}, {"lr": 0.01, "momentum": 0.9}),
        Row("Oracle", "oracle", 100, {"permuted": 49.5}, {"lr": 0.01, "momentum": 0.9}),
        Row("CFL", "cfl", 100, {}, {"lr": 0.01, "momentum": 0.9}),
        Row("FedFOMO", "fedfomo", 100, {}, {"lr": 0.01, "momentum": 0.9}),
    ],
    seeds=5,
    options={"batch_size": 64, "local_epochs": 1},
    differs=[
        "The paper's text does not give the number of rounds; ours is 100.",
        "Initial weights are Glorot's (the paper does not say): with torch's default the gradients at the initial "
        "weights do not separate the groups, W is flat, and the silhouette has no maximum at k = 4 as in Figure 5.",
        "FedProx's μ and Ditto's λ are 0.1, not the best of three values.",
        "pFedMe trains one local epoch of batch 20 per round, not twenty.",
        "A tenth of a client's training images is used for validation; test images are the official ones, permuted.",
    ],
)
