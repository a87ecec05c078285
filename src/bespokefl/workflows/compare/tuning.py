"""Tune the methods of a comparison within a limited time, all by the same schedule.

The stages of successive halving (`tune/schedule.py`) are run for all methods before the next one begins. If the time
runs out, a stage that is not complete for every method is discarded for all of them, so that no method is tuned more
carefully than another.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bespokefl import methods as registry
from bespokefl.core.errors import InputError, TrainingError, count, listing
from bespokefl.workflows.compare import budget as budgets
from bespokefl.workflows.compare import candidates, storage
from bespokefl.workflows.compare.candidates import Candidate
from bespokefl.workflows.results import score_tables
from bespokefl.workflows.run import jobs
from bespokefl.workflows.run.settings import Mark
from bespokefl.workflows.tune import schedule, shared_settings
from bespokefl.workflows.tune.api import StoredTable, train_points
from bespokefl.workflows.tune.duration import in_words
from bespokefl.workflows.tune.grid import Grid, Point
from bespokefl.workflows.tune.result import FILE, Cells, Tuning
from bespokefl.workflows.tune.schedule import Stage

if TYPE_CHECKING:
    from bespokefl.workflows.compare.plan import ComparisonPlan

Shifted = Callable[
    [int], jobs.OnProgress | None
]  # progress of a part of the comparison that begins after so many trainings


NO_SCORES = "there were no scores."  # although nothing failed: the metric is undefined for all clients


@dataclass
class _Race:
    """The tuning of one candidate."""

    one: Candidate
    grid: Grid
    points: list[Point]
    widens: bool  # a given grid is not widened
    seeds: Sequence[int]  # of the comparison
    metric: str | None  # that decides; None: accuracy, or loss for regression
    untried: dict[str, Any] = field(default_factory=dict)  # local steps that are tried once, at the best point
    tried_steps: dict[str, Any] = field(default_factory=dict)  # of these, what was tried
    alive: list[int] = field(default_factory=list)  # indices of the points of the present stage
    trained: dict[tuple[int, int], int] = field(default_factory=dict)  # number of seeds by point and rounds
    cells: Cells | None = None
    best: int | None = None
    rounds: int = 0  # after which the best point was chosen
    widened: int = 0  # how often values beyond an edge were tried
    lowered: int = 0  # how often all learning rates were lowered because no point could be trained
    beyond_edge: bool = False  # whether the points added last have such values
    closed: set[str] = field(default_factory=set)  # keys that have no valid value beyond their edge

    def tuning(self, trainings: Sequence[tuple[int, int]], num_seeds: int) -> Tuning:
        """Return the scores of these points and numbers of rounds."""
        points = [self.at(*one) for one in trainings]
        return Tuning({}, points, self.seeds[:num_seeds], self.cells or {}, False, metric=self.metric)

    def lines(self) -> list[dict[str, Any]]:
        """Return the scores of every point after its longest training, and over how many seeds they are means."""
        longest = {index: (index, rounds) for index, rounds in sorted(self.trained)}
        numbers = [(one, self.trained[one]) for one in longest.values()]
        return [{**self.tuning([one], number).table[0], "seeds": number} for one, number in numbers]

    def at(self, index: int, rounds: int) -> Point:
        """Return a point that is trained for this many rounds."""
        point = self.points[index]
        if point.options.get("rounds") == rounds:
            return point
        return replace(point, values=point.values | {"rounds": rounds}, options=point.options | {"rounds": rounds})

    def edge(self) -> dict[str, Any]:
        """Return the keys whose best value lies on the edge of what was tried, and the next value of each."""
        assert self.best is not None
        tried = schedule.tried_values(self.points, list(self.grid))
        found = schedule.edges(self.points[self.best].values, tried)
        return {key: value for key, value in found.items() if key not in self.closed}


@dataclass
class Tuner:
    """Tunes the candidates of a plan and gives them what it chooses."""

    plan: "ComparisonPlan"
    path: Path
    processes: int
    workers: int  # of each process
    limit: float | None  # in seconds; None for no limit
    grids: Mapping[str, Grid]
    given: frozenset[str]  # candidates whose grid was given
    races: list[_Race] = field(default_factory=list)
    out_of_time: bool = False
    done: int = 0  # trainings

    def __post_init__(self) -> None:
        stored = storage.read_tuned(self.path)
        gone = {name for name, _ in self.plan.failed} | set(self.plan.left_out)
        for one in [one for one in self.plan.candidates if one.name not in gone]:
            grid = score_tables.plain(dict(self.grids[one.name]))
            known = stored.get(one.name)
            if grid and known is not None and known["grid"] == grid:
                self._use(one, known)
            elif grid:
                points = candidates.points(one, self.grids[one.name], self._options(one))
                plan, widens = self.plan, one.name not in self.given
                race = _Race(one, self.grids[one.name], points, widens, plan.seeds, plan.metric)
                sizes = plan.clients.train.sizes.tolist()
                race.untried = candidates.other_local_steps(one, plan.config, sizes, plan.budget != budgets.NONE)
                race.alive = list(range(len(points)))
                self.races.append(race)
        self.stages = schedule.stages(self.plan.config.rounds, len(self.plan.seeds))

    @property
    def num_trainings(self) -> int:
        """The number of trainings of all stages, without those of widened grids."""
        total = 0
        for race in self.races:
            num, trained = len(race.points), 0
            for stage in self.stages:
                total += num * (stage.seeds - (trained if stage.seeds > 1 else 0))
                num, trained = schedule.num_kept(num), stage.seeds
        return total

    def run(self, shifted: Shifted) -> None:
        """Run all stages, widen grids, and give every candidate the chosen point."""
        if not self.races:
            self._update_summary()
            return
        began, before = time.monotonic(), self._seconds_before()
        deadline = inf if self.limit is None else began + max(0.0, self.limit - before)
        complete: list[Stage] = []
        for stage in self.stages:
            if not self._stage({race.one.name: race.alive for race in self.races}, stage, deadline, shifted):
                break
            complete.append(stage)
            for race in self.races:
                race.best = race.alive[0]
                race.alive = race.alive[: schedule.num_kept(len(race.alive))]
        if complete and not self.out_of_time:
            self._widen(complete[-1], deadline, shifted)
        spent = before + time.monotonic() - began
        self._finish(complete, spent)

    # -- stages

    def _stage(self, todo: Mapping[str, Sequence[int]], stage: Stage, deadline: float, shifted: Shifted) -> bool:
        """Train points of each method for a stage and sort those alive; return False if the time ran out.

        A method of which no point can be trained goes on with lower learning rates, or is given up.
        """
        while todo:
            if not self._train_all(todo, stage, deadline, shifted):
                return False
            todo = {}
            for race in list(self.races):
                trainings = [(index, self._rounds(race.one, stage.rounds)) for index in race.alive]
                error = self._sort(race, trainings, stage.seeds)
                if error and error != NO_SCORES and self._lower_rates(race):
                    todo[race.one.name] = race.alive
                elif error:
                    self._give_up(race, TrainingError(f"no point of its grid could be trained: {error}"))
        return True

    def _train_all(self, todo: Mapping[str, Sequence[int]], stage: Stage, deadline: float, shifted: Shifted) -> bool:
        """Train points of each method for a stage; return False if the time ran out."""
        work: dict[jobs.Job, tuple[_Race, list[tuple[int, int]]]] = {}
        for race in self.races:
            own = [(index, self._rounds(race.one, stage.rounds)) for index in todo.get(race.one.name, ())]
            missing = {one: stage.seeds - race.trained.get(one, 0) for one in own}
            if size := sum(missing.values()):
                train = partial(self._train, race, own, stage.seeds, deadline)
                work[jobs.Job(f"{race.one.name}, tuning:", train, size)] = race, own
        late = False
        for job, outcome in jobs.run_jobs(list(work), self.processes, shifted(self.done)):
            race, _ = work[job]
            if isinstance(outcome, Exception):
                self._give_up(race, outcome)
                continue
            race.cells, late = outcome["cells"], late or outcome["late"]
        self.done += sum(job.size for job in work)
        if late:
            self.out_of_time = True
            return False
        for race, own in work.values():
            if race in self.races:
                race.trained |= dict.fromkeys(own, stage.seeds)
        return True

    def _sort(self, race: _Race, trainings: Sequence[tuple[int, int]], num_seeds: int) -> str | None:
        """Sort the points alive, the best first; without any score, return an error."""
        found = race.tuning(trainings, num_seeds)
        known = [at for at, line in enumerate(found.table) if line[found.by] is not None]
        if not known:
            return next((line["failed"] for line in found.table if line["failed"]), NO_SCORES)
        race.alive, race.rounds = [trainings[at][0] for at in found.ranked(known)], trainings[0][1]
        return None

    def _lower_rates(self, race: _Race) -> bool:
        """Replace the points of a race that has no best point by the same with lower learning rates, if it may."""
        if not race.widens or race.best is not None or race.lowered == schedule.WIDENINGS:
            return False
        race.lowered += 1
        lower = schedule.with_lower_rates(race.grid, race.lowered)
        known = [point.values for point in race.points]
        points = candidates.points(race.one, lower, self._options(race.one))
        added = [point for point in points if point.values not in known]
        race.alive = list(range(len(known), len(known) + len(added)))
        race.points += added
        return bool(added)

    def _train(
        self,
        race: _Race,
        trainings: Sequence[tuple[int, int]],
        num_seeds: int,
        deadline: float,
        report: jobs.OnProgress,
    ) -> dict[str, Any]:
        """Train what has no scores yet, in a process of its own."""
        plan, one = self.plan, race.one
        settings = plan.settings | {"workers": self.workers}
        settings.pop("checkpoint_every", None)
        settings.pop("log", None)  # trackers get the runs that are compared
        config = shared_settings.config_of(
            registry.name_of(one.method) or registry.title_of(one.method), plan.clients, settings
        )
        overwrite = not {"model", "loss", one.name}.isdisjoint(plan.from_python())
        found = train_points(
            one.method,
            plan.clients,
            [race.at(*training) for training in trainings],
            config,
            settings,
            plan.seeds[:num_seeds],
            StoredTable(self.path / "tune" / one.slug, overwrite, race.cells),
            report,
            metric=plan.metric,
            deadline=deadline,
        )
        if found.interrupted:
            raise jobs.Interrupted
        return {"cells": score_tables.plain(found.cells), "late": found.out_of_time}

    def _widen(self, stage: Stage, deadline: float, shifted: Shifted) -> None:
        """Try values beyond the edges on which a best point lies, at most `WIDENINGS` times, and those untried."""
        for _ in range(schedule.WIDENINGS):
            todo: dict[str, list[int]] = {}
            for race in (race for race in self.races if race.widens):
                assert race.best is not None
                added = self._beyond(race)
                if added:
                    todo[race.one.name] = added
                    race.alive = [race.best, *added]
            if not todo or not self._stage(todo, stage, deadline, shifted):
                return
            for race in self.races:
                if race.one.name in todo:
                    race.best = race.alive[0]
                    race.widened += race.beyond_edge
                    race.tried_steps |= race.untried
                    race.untried = {}

    def _beyond(self, race: _Race) -> list[int]:
        """Add points beyond the edges of a race's best point; a value that is invalid closes its edge."""
        assert race.best is not None
        added = []
        best = {key: (value,) for key, value in race.points[race.best].values.items()}
        edge, race.beyond_edge = race.edge(), False
        for key, value in (race.untried | edge).items():
            try:
                race.points += candidates.points(race.one, best | {key: (value,)}, self._options(race.one))
                added.append(len(race.points) - 1)
                race.beyond_edge |= key in edge
            except InputError:
                race.closed.add(key)
                race.untried.pop(key, None)
        return added

    # -- results

    def _finish(self, complete: Sequence[Stage], spent: float) -> None:
        """Give every candidate its best point, write the choices down, and describe what was tried."""
        found: dict[str, Any] = {}
        edges = {}
        for race in self.races:
            grid = score_tables.plain(dict(race.grid))
            if race.best is None:
                found[race.one.name] = {"grid": grid, "tuned": None}
                continue
            edge = race.edge()
            if edge:
                edges[race.one.name] = {key: race.points[race.best].values[key] for key in edge}
            tuned = {
                "by": race.tuning([*race.trained], 1).by,
                "chosen": race.points[race.best].values,
                "points": race.lines(),
                "rounds": race.rounds,
                "edge": list(edge),
                "widened": race.widened,
                "lowered": race.lowered,
                "other_steps": race.tried_steps,
            }
            found[race.one.name] = {"grid": grid, "tuned": score_tables.plain(tuned)}
        untuned = self._untuned({name for name, one in found.items() if one["tuned"] is not None})
        self.plan.tuning = self._summary(complete, spent, edges, untuned)
        for race in self.races:
            self._use(race.one, found[race.one.name])
        storage.write_tuned(self.path, found, self.plan.tuning)

    def _untuned(self, chosen: Set[str]) -> list[str]:
        """Return the candidates that keep their given or default hyper-parameters."""
        gone = {name for name, _ in self.plan.failed} | set(self.plan.left_out)
        return [one.name for one in self.plan.candidates if one.name not in {*self.plan.tuned, *chosen, *gone}]

    def _update_summary(self) -> None:
        """Name the candidates that were added to a tuned comparison without a grid of their own."""
        summary, untuned = self.plan.tuning, self._untuned(set())
        if summary is not None and summary.get("untuned") != untuned:
            self.plan.tuning = summary | {"untuned": untuned}
            storage.write_tuned(self.path, {}, self.plan.tuning)

    def _summary(
        self, complete: Sequence[Stage], spent: float, edges: Mapping[str, Mapping[str, Any]], untuned: Sequence[str]
    ) -> dict[str, Any]:
        """Return what was tuned and how, with sentences for the report."""
        limit = "" if self.limit is None else f" of {in_words(self.limit)}"
        sentences: list[str] = []
        summary = {"seconds": spent, "limit": self.limit, "untuned": untuned, "sentences": sentences}
        who = "all methods" if len(untuned) == len(self.plan.candidates) else listing(untuned, len(untuned))
        if not complete:
            first = count(self.stages[0].rounds, "round")
            sentences.append(
                f"Untuned: the time for tuning{limit} ran out before all points were trained for {first}, so "
                f"{who} {_verb(untuned, 'has', 'have')} given or default hyper-parameters; give more time with --tune."
            )
            return {"tuned": False, **summary}
        sizes = sorted({candidates.num_points(race.grid) for race in self.races})
        num = "" if len(sizes) == 1 else f"{sizes[0]} to "
        stages = [str(one.rounds) for one in complete if one.seeds == 1]
        when = " and ".join(stages)
        halving = " (the best third of the points goes on from one to the next)" if len(stages) > 1 else ""
        several = complete[-1].seeds
        tuned = (
            "each method" if not untuned else listing([race.one.name for race in self.races if race.best is not None])
        )
        repeated = f", the best of them with {several} seeds" if several > 1 else ""
        beyond = f", and at most {schedule.WIDENINGS} times values beyond its edge" * any(
            race.widens for race in self.races
        )
        sentences.append(
            f"Tuned on validation data with seed {self.plan.seeds[0]}{limit and f', in at most{limit[3:]}'}: {num}"
            f"{count(sizes[-1], 'point')} of a grid for {tuned}, compared after {when} rounds{halving}{repeated}"
            f"{beyond}."
        )
        if untuned:
            verb = _verb(untuned, "is not tuned and has", "are not tuned and have")
            sentences.append(f"{who} {verb} given or default hyper-parameters.")
        if self.out_of_time:
            left = [str(one.rounds) for one in self.stages if one.seeds == 1 and one not in complete]
            more = complete[-1] != self.stages[-1]
            what = f"trainings of {listing(left)} rounds" if left else "other seeds" if more else "some other values"
            sentences.append(f"The time for tuning ran out: {what} were not tried.")
        if lowered := [race.one.name for race in self.races if race.lowered and race.best is not None]:
            sentences.append(
                f"No point of the grid of {listing(lowered)} could be trained, so that all learning rates were lowered."
            )
        for name, own in edges.items():
            values = listing([f"{key} = {value}" for key, value in own.items()])
            sentences.append(
                f"The best point of {name} lies on the edge of what was tried ({values}): values beyond may be better."
            )
        return {"tuned": True, "stages": [[one.rounds, one.seeds] for one in complete], **summary}

    def _use(self, one: Candidate, known: Mapping[str, Any]) -> None:
        """Give a candidate the chosen hyper-parameters and settings."""
        plan, tuned = self.plan, known["tuned"]
        plan.tuning = plan.tuning or storage.read_tuning_summary(self.path)
        if tuned is None:
            return
        grid = {key: (value,) for key, value in tuned["chosen"].items()}
        (point,) = candidates.points(one, grid, self._options(one))
        options = {key: value for key, value in point.values.items() if key not in one.method.hyper()}
        plan.tuned[one.name] = tuned
        at = next(at for at, other in enumerate(plan.candidates) if other.name == one.name)
        plan.candidates[at] = replace(one, method=point.method, options=one.options | options)

    def _give_up(self, race: _Race, error: Exception) -> None:
        self.races.remove(race)
        self.plan.give_up(race.one, error)

    def _rounds(self, one: Candidate, rounds: int) -> int:
        """Return the rounds of a stage for a candidate, in proportion to the rounds of its runs."""
        own: int = one.options.get("rounds", self.plan.config.rounds)
        return max(1, round(rounds * own / self.plan.config.rounds))

    def _options(self, one: Candidate) -> dict[str, Any]:
        return self.plan.config.select(Mark.TUNABLE) | one.options

    def _seconds_before(self) -> float:
        """Return the time that a tuning which was killed has spent."""
        total = 0.0
        for path in (self.path / "tune").glob(f"*/{FILE}"):
            try:
                cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
                total += sum(float(cell["seconds"]) for cell in cells.values())
            except (OSError, ValueError, KeyError, TypeError, AttributeError):
                continue  # reported when it is used
        return total / self.processes


def _verb(names: Sequence[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several
