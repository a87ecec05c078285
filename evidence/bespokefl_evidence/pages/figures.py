"""The papers' figures, drawn from cells. A figure without cells is left out."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from bespokefl import methods
from bespokefl.metrics import fairness
from bespokefl.metrics.communication import SYSTEMS, System, round_time
from bespokefl.metrics.improvement import improvements, quantum
from bespokefl_evidence.pages.claim_tests import silhouettes
from bespokefl_evidence.pages.drawing import Drawing, Panel
from bespokefl_evidence.pages.outcomes import Outcome, outcomes
from bespokefl_evidence.pages.scores import Array, collaboration
from bespokefl_evidence.studies.cells import Cell, CellStore
from bespokefl_evidence.studies.experiment import Experiment

DIRECTORY = Path("figures")
ACCURACY = "test accuracy in %"
MAX_CLIENTS = 100  # of a heat map
NUM_BINS = 5  # of client sizes
NUM_DENSITY_POINTS = 100

ByScenario = Mapping[str, list[Outcome]]  # rows with at least one trained cell


def drawings(experiment: Experiment, store: CellStore) -> Iterator[Drawing]:
    """All figures of an experiment for which there are cells."""
    found: dict[str, list[Outcome]] = {}
    for one in outcomes(experiment, store):
        if one.trained:
            found.setdefault(one.scenario.name, []).append(one)
    for name, (title, panels) in _figures(experiment).items():
        made = list(panels(found))
        if made:
            yield Drawing(f"{experiment.name}-{name}.svg", title, made)


def _figures(experiment: Experiment) -> dict[str, tuple[str, Callable[[ByScenario], Iterator[Panel]]]]:
    """The figures that fit the paper of an experiment: name, title and panels."""
    metric = "weighted" if experiment.weighted else "personal"
    of_paper: dict[str, dict[str, tuple[str, Callable[[ByScenario], Iterator[Panel]]]]] = {
        "selffl": {"participation": ("Accuracy against the share of active clients", partial(_participation, metric))},
        "persfl": {
            "grid": ("Validation accuracy by λ and T, mean over clients", _grid),
            "improvement": ("Density of the clients' gains over FedAvg", _gain_density),
            "fairness": ("Fairness of the gains over FedAvg", _fairness),
        },
        "ucfl": {
            "collaboration": ("Collaboration matrix W, clients ordered by group", _collaboration),
            "silhouette": ("Silhouette of W against the number of streams", _silhouette),
            "time": ("Accuracy against time in the three systems", _times),
        },
        "pfedvem": {
            "size": ("Accuracy against the number of training examples of a client", _by_size),
            "confidence": ("Confidence against training examples and deviation", _confidence),
        },
    }
    rounds = {"rounds": ("Mean personal accuracy against rounds", _rounds)}
    return rounds | of_paper.get(experiment.name.partition("-")[0], {})


def _line(axes: Any, label: str, x: Any, y: Any) -> None:
    axes.plot(x, 100 * np.asarray(y), marker="o", linewidth=1, label=label)


def _mean_curve(one: Outcome) -> Array | None:
    """Rounds and mean personal accuracy over seeds, (n, 2); None if fewer than two rounds were evaluated."""
    curves = [[line[:2] for line in cell.results.get("curve", []) if line[1] is not None] for cell in one.trained]
    short = min(len(curve) for curve in curves)
    return np.mean([np.array(curve[:short], dtype=np.float64) for curve in curves], 0) if short > 1 else None


def _rounds(found: ByScenario) -> Iterator[Panel]:
    for scenario, own in found.items():
        curves = {one.row.label: curve for one in own if (curve := _mean_curve(one)) is not None}

        def draw(axes: Any, curves: dict[str, Array] = curves) -> None:
            for label, curve in curves.items():
                _line(axes, label, curve[:, 0], curve[:, 1])

        if curves:
            yield Panel(scenario, "round", ACCURACY, draw)


# -- Self-FL


def _participation(metric: str, found: ByScenario) -> Iterator[Panel]:
    """Figures 4 and 5: scenarios are named by C."""
    rates = {name: float(shown[1]) for name in found if (shown := re.fullmatch(r"C=(\d*\.?\d+)", name))}
    lines: dict[str, list[tuple[float, float]]] = {}
    for name, rate in rates.items():
        for one in found[name]:
            if (mean := one.mean(metric)) is not None:
                lines.setdefault(one.row.label, []).append((rate, mean[0]))

    def draw(axes: Any) -> None:
        for label, points in lines.items():
            if len(points) > 1:
                _line(axes, label, *np.array(sorted(points)).T)

    if len(rates) > 1:
        yield Panel("", "C, share of active clients", ACCURACY, draw)


# -- PersFL


def _grid(found: ByScenario) -> Iterator[Panel]:
    """The interaction of λ and T on validation data."""
    for scenario, own in found.items():
        for one in own:
            grids = [grid for cell in one.trained if (grid := _grid_accuracy(cell)) is not None]
            if one.row.label == "PersFL" and grids:
                method: Any = methods.build(one.row.method, dict(one.trained[0].settings["set"]))
                yield Panel(scenario, "temperature T", "imitation λ", partial(_draw_grid, method, grids), legend=False)


def _grid_accuracy(cell: Cell) -> Array | None:
    rows = cell.results.get("notes", {}).get("clients", {}).get("grid_accuracy")
    return None if rows is None or None in rows else np.array(rows, dtype=np.float64)


def _draw_grid(method: Any, grids: list[Array], axes: Any) -> None:
    shares, temperatures = (sorted({float(point[at]) for point in method.grid}) for at in (0, 1))
    mean = 100 * np.nanmean(np.concatenate(grids), 0).reshape(len(shares), len(temperatures))
    axes.imshow(mean, cmap="viridis", aspect="auto", origin="lower")
    axes.grid(visible=False)
    axes.set_xticks(range(len(temperatures)), [f"{one:g}" for one in temperatures])
    axes.set_yticks(range(len(shares)), [f"{one:g}" for one in shares])
    for (row, column), value in np.ndenumerate(mean):
        color = "black" if value > (np.nanmin(mean) + np.nanmax(mean)) / 2 else "white"
        axes.text(column, row, f"{value:.1f}", ha="center", va="center", color=color)


def _gains(own: list[Outcome]) -> dict[str, Array]:
    """The gains of all clients and seeds over FedAvg, by row."""
    scores = {one.row.label: {cell.seed: cell.results["personal"] for cell in one.trained} for one in own}
    base = scores.pop("FedAvg", {})
    found = {}
    for label, values in scores.items():
        seeds = [seed for seed in values if seed in base]
        if seeds:
            pair = [np.array([one[seed] for seed in seeds], dtype=np.float64).ravel() for one in (values, base)]
            found[label] = quantum(pair[0], global_=pair[1])
    return found


def _gain_density(found: ByScenario) -> Iterator[Panel]:
    from scipy.stats import gaussian_kde  # here, because it is slow to import

    for scenario, own in found.items():
        gains = {label: one[~np.isnan(one)] for label, one in _gains(own).items()}

        def draw(axes: Any, gains: dict[str, Array] = gains) -> None:
            for label, values in gains.items():
                if np.ptp(values) > 0:
                    x = np.linspace(values.min() - 0.1, values.max() + 0.1, NUM_DENSITY_POINTS)
                    axes.plot(100 * x, gaussian_kde(values)(x) / 100, label=label, linewidth=1)

        if gains:
            yield Panel(scenario, "gain over FedAvg in points", "density", draw)


def _fairness(found: ByScenario) -> Iterator[Panel]:
    """The measures for which more is fairer; the variance has another scale."""
    for scenario, own in found.items():
        gains = {label: improvements(one) for label, one in _gains(own).items()}
        measured = {label: fairness.measures(one) for label, one in gains.items() if len(one)}
        names = [name for name in next(iter(measured.values()), {}) if name not in fairness.LOWER_IS_FAIRER]

        def draw(axes: Any, measured: Any = measured, names: list[str] = names) -> None:
            width = 0.8 / len(measured)
            for at, (label, values) in enumerate(measured.items()):
                axes.bar(np.arange(len(names)) + at * width, [values[name] or 0 for name in names], width, label=label)
            axes.set_xticks(np.arange(len(names)) + 0.4 - width / 2, [name.replace("_", " ") for name in names])

        if measured:
            yield Panel(scenario, "", "higher is fairer", draw)


# -- UCFL


def _collaboration(found: ByScenario) -> Iterator[Panel]:
    """Figure 4, of the first seed of the first row that has W."""
    for scenario, own in found.items():
        cells = [cell for one in own for cell in one.trained[:1] if collaboration(cell) is not None]
        if not cells or len(cells[0].results["personal"]) > MAX_CLIENTS:
            continue
        groups = cells[0].results.get("groups") or [0] * len(cells[0].results["personal"])
        order = np.argsort(np.array([str(group) for group in groups]), kind="stable")
        weights = collaboration(cells[0])
        assert weights is not None
        ordered = weights[order][:, order]

        def draw(axes: Any, shown: Array = ordered) -> None:
            axes.grid(visible=False)
            axes.figure.colorbar(axes.imshow(shown, cmap="magma"), ax=axes)

        yield Panel(scenario, "client j", "client i", draw, legend=False)


def _silhouette(found: ByScenario) -> Iterator[Panel]:
    """Figure 5, mean over seeds."""
    for scenario, own in found.items():
        known = [[curve for cell in one.trained if (curve := silhouettes(cell)) is not None] for one in own]
        curves = next((some for some in known if some), None)
        if curves is not None:
            mean = np.mean(curves, 0)
            k = np.flatnonzero(~np.isnan(mean))

            def draw(axes: Any, k: Any = k, mean: Array = mean) -> None:
                axes.plot(k + 1, mean[k], marker="o", linewidth=1)

            yield Panel(scenario, "streams k", "silhouette", draw, legend=False)


def _times(found: ByScenario) -> Iterator[Panel]:
    """Figure 6: rows whose number of models sent down is known."""
    for scenario, own in found.items():
        curves = []
        for one in own:
            curve, streams = _mean_curve(one), _streams(one)
            if curve is not None and streams is not None:
                curves.append((one.row.label, curve, streams, len(one.trained[0].results["personal"])))
        if len(curves) > 1:
            for system in SYSTEMS:
                where = f"{scenario}, {system.name}"
                yield Panel(where, "time in T_dl", ACCURACY, partial(_draw_times, system, curves))


def _streams(one: Outcome) -> int | None:
    results = one.trained[0].results
    noted = results.get("notes", {}).get("server", {}).get("streams")
    known = {"fedavg": 1, "fedprox": 1, "oracle": len(set(results.get("groups", ()))) or None}
    return known.get(one.row.method) if noted is None else int(noted)


def _draw_times(system: System, curves: list[tuple[str, Array, int, int]], axes: Any) -> None:
    for label, curve, streams, num in curves:
        _line(axes, label, curve[:, 0] * round_time(system, streams=streams, uploads=num, clients=num), curve[:, 1])


# -- pFedVEM


def _by_size(found: ByScenario) -> Iterator[Panel]:
    """Figure 2: clients in groups of equal number by size, all seeds."""
    for scenario, own in found.items():
        lines = {}
        for one in own:
            sizes = np.concatenate([cell.results["sizes"]["train"] for cell in one.trained])
            values = np.concatenate([np.array(cell.results["personal"], dtype=np.float64) for cell in one.trained])
            bins = np.array_split(np.argsort(sizes, kind="stable"), NUM_BINS)
            if len(sizes) >= NUM_BINS:
                lines[one.row.label] = [(sizes[part].mean(), np.nanmean(values[part])) for part in bins]

        def draw(axes: Any, lines: dict[str, list[tuple[float, float]]] = lines) -> None:
            for label, points in lines.items():
                _line(axes, label, *np.array(points).T)

        if lines:
            yield Panel(scenario, "training examples of a client", ACCURACY, draw)


def _confidence(found: ByScenario) -> Iterator[Panel]:
    """The confidence of the last round of each client, in the first seed."""
    for scenario, own in found.items():
        for one in own:
            results = one.trained[0].results
            notes = results.get("notes", {}).get("clients", {})
            if one.row.label != "pFedVEM" or "confidence" not in notes:
                continue
            confidence, deviation = (np.array(notes[key], dtype=np.float64) for key in ("confidence", "deviation"))
            sizes = np.array(results["sizes"]["train"], dtype=np.float64)
            for name, values in (("training examples", sizes), ("deviation", deviation)):

                def draw(axes: Any, x: Array = values, y: Array = confidence) -> None:
                    axes.scatter(x, y, s=6)
                    axes.set(xscale="log", yscale="log")

                yield Panel(scenario, name, "confidence", draw, legend=False)
