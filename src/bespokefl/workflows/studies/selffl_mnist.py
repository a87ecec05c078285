"""Self-FL on MNIST with FedProx's power law: section 4.2, Figures 2 to 5."""

from bespokefl.workflows.studies.paper_table import Column, PaperTable, Row

STUDY = PaperTable(
    name="selffl-mnist",
    title="Self-FL on MNIST with FedProx's power law, 1000 clients of two digits",
    source="section 4.2, Figures 2 to 5; no table is printed",
    data="mnist",
    model="logistic",
    columns=[Column("C=.1", "fedprox-mnist")],
    rows=[
        Row("Self-FL", "selffl", 200, {}, {"lr": 0.03, "max_steps": 40}),
        Row("FedAvg", "fedavg", 200, {}, {"lr": 0.03}, {"local_steps": 20}),
        Row("Ditto", "ditto", 200, {}, {"lr": 0.03, "personal_lr": 0.03}, {"local_steps": 20}),
        Row("pFedMe", "pfedme", 200, {}, {"lr": 0.03, "personal_lr": 0.03}, {"local_steps": 20}),
        Row("Per-FedAvg", "perfedavg", 200, {}, {"lr": 0.03}, {"local_steps": 20}),
        Row("Local", "local", 200, {}, {"lr": 0.03}, {"local_steps": 20}),
    ],
    seeds=5,
    options={"batch_size": 10, "participation": 0.1},
    differs=["The paper prints curves only, so there are no figures to compare with; Local is our addition."],
)
