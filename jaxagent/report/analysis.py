"""What a study shows, in plain numbers: which setting is best and how sure that is, what matters, what failed.

Trials are ordered by how far they got, since scores after different budgets do not compare: those trained to the end first,
then those that stopped at the last rung, and so on down; at equal rungs those without a failed seed first, then by score.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxagent import metrics, schema, statistics
from jaxagent.loop import Schedule
from jaxagent.report.study import Curve, Seed, Study, Trial

ENOUGH_SEEDS = 5  # for intervals that hold the truth nearly as often as they say
TOP = 5  # settings whose curves are drawn in colour
_LEAST_TRIALS = 8  # that importance can be told from
_MOST_POINTS = 200  # of a curve
_IDLE = {f"train.{field.name}" for field in dataclasses.fields(Schedule)} - {"train.num_updates"}  # change nothing learnt


def analyse(study: Study) -> dict[str, Any]:
    """The report as JSON values, see `jaxagent.files.jsonable`."""
    varied = varied_settings(study.trials)
    ranked = sorted(study.trials, key=lambda trial: _order(trial, study.mode))
    evaluated = list(dict.fromkeys(name for trial in ranked for name in trial.evaluated))
    rows = [_row(place, trial, varied, evaluated) for place, trial in enumerate(ranked, start=1)]
    return {
        "kind": study.kind,
        "name": study.name,
        "directories": [str(path) for path in study.directories],
        "objective": study.objective,
        "mode": study.mode,
        "trials": len(rows),
        "states": dict(Counter(row["state"] for row in rows)),
        "seeds": sorted({len(trial.seeds) for trial in study.trials}),
        "env_steps": sum(seed.env_steps for trial in study.trials for seed in trial.seeds),
        "varied": varied,
        "evaluated": evaluated,
        "verdict": _verdict(rows),
        "leaderboard": rows,
        "importance": _importance(ranked, varied, study.mode),
        "curves": {trial.name: curves(trial) for trial in ranked[:TOP] if trial.curves},
        "failures": [failure for trial in ranked for failure in _failures(trial, varied)],
        "warnings": list(study.warnings),
        "provenance": list(study.provenance),
    }


def varied_settings(trials: Sequence[Trial]) -> list[str]:
    """The settings that differ between trials, in their order; of different learners only those that all of them have.

    How often something is logged, evaluated or saved counts only where nothing else differs.
    """
    names = dict.fromkeys(name for trial in trials for name in trial.settings)
    varied = [name for name in names if len({repr(trial.settings.get(name)) for trial in trials}) > 1]
    varied = [name for name in varied if name not in _IDLE] or varied
    if "learner.name" not in varied:
        return varied
    return [name for name in varied if not name.startswith("learner.") or all(name in trial.settings for trial in trials)]


def decisive(report: Mapping[str, Any]) -> list[str]:
    """The varied settings that were found to matter, the most important first; all of them where that is not known."""
    return [found["setting"] for found in report["importance"] if found["matters"]] or report["varied"]


# the leaderboard --------------------------------------------------------------------------------------------------------------


def _row(place: int, trial: Trial, varied: Sequence[str], evaluated: Sequence[str]) -> dict[str, Any]:
    scores = _scores(trial)
    low, high = statistics.stratified_bootstrap([scores]) if len(scores) > 1 else (None, None)
    return {
        "place": place,
        "trial": trial.name,
        "state": _state(trial),
        "rung": _rung(trial),
        "score": float(statistics.iqm(scores)) if scores else None,
        "interval": None if low is None else [low, high],
        "seed_scores": {str(seed.seed): seed.score for seed in trial.seeds},
        "evaluated": {name: trial.evaluated.get(name) for name in evaluated},
        "known_seeds": len(scores),
        "failed_seeds": len(trial.seeds) - len(_alive(trial)),
        "updates": max(seed.updates for seed in trial.seeds),
        "env_steps": sum(seed.env_steps for seed in trial.seeds),
        "settings": {name: trial.settings.get(name) for name in varied},
        "inherited": trial.inherited,
        "commands": list(trial.commands),
    }


def _scores(trial: Trial) -> list[float]:
    return [seed.score for seed in trial.seeds if seed.score is not None]


def _alive(trial: Trial) -> list[Seed]:
    return [seed for seed in trial.seeds if seed.status != "failed"]


def _state(trial: Trial) -> str:
    alive = _alive(trial)
    if not alive:
        return "failed"
    return "done" if all(seed.status == "done" for seed in alive) else "stopped"


def _rung(trial: Trial) -> int:
    """The rung that all seeds which have not failed reached."""
    return min((seed.rung for seed in _alive(trial)), default=-1)


def _merit(trial: Trial, mode: str) -> tuple[float, ...]:
    """Numbers that order trials, the first one foremost; more is better."""
    alive = _alive(trial)
    if not alive:
        return (-1.0, 0.0, 0.0, 0.0)
    scores, whole = _scores(trial), len(alive) == len(trial.seeds)
    score = float(statistics.iqm(scores)) * (1 if mode == "max" else -1) if scores else -np.inf
    return (float(_state(trial) == "done"), float(_rung(trial)), float(whole), score)


def _order(trial: Trial, mode: str) -> tuple[Any, ...]:
    return (*(-merit for merit in _merit(trial, mode)), trial.name)


def _verdict(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Which setting is best, and whether that is sure: its interval apart from the second's, both of enough seeds.

    `sure` is None where that cannot be told: nothing to compare, or a single seed. `within_reach` are the trials as far
    trained as the best whose intervals meet its own, `tied` those of them with the same score.
    """
    scored = [row for row in rows if row["score"] is not None]
    if not scored:
        return {"best": None, "second": None, "sure": None, "within_reach": [], "tied": []}
    best, *others = scored
    peers = [row for row in others if (row["state"], row["rung"]) == (best["state"], best["rung"])]
    meeting = [row["trial"] for row in peers if _meet(best["interval"], row["interval"])]
    known = best["interval"] is not None and peers and peers[0]["interval"] is not None
    sure = peers[0]["trial"] not in meeting and _enough_seeds(best, peers[0]) if known else None
    second = peers[0]["trial"] if peers else None
    tied = [row["trial"] for row in peers if row["score"] == best["score"]]
    return {"best": best["trial"], "second": second, "sure": sure, "within_reach": meeting, "tied": tied}


def _enough_seeds(*rows: Mapping[str, Any]) -> bool:
    return min(row["known_seeds"] for row in rows) >= ENOUGH_SEEDS


def _meet(one: Sequence[float] | None, other: Sequence[float] | None) -> bool:
    return one is not None and other is not None and one[0] <= other[1] and other[0] <= one[1]


def _failures(trial: Trial, varied: Sequence[str]) -> list[dict[str, Any]]:
    """What ended seeds of a trial: those that ended alike are together."""
    alike: dict[tuple[Any, ...], list[int]] = {}
    for seed in trial.seeds:
        if seed.status == "failed":
            alike.setdefault((seed.reason, seed.rung, seed.updates), []).append(seed.seed)
    told = {"trial": trial.name, "settings": {name: trial.settings.get(name) for name in varied}}
    return [
        told | {"reason": reason, "rung": rung, "updates": updates, "seeds": seeds}
        for (reason, rung, updates), seeds in alike.items()
    ]


# what matters -----------------------------------------------------------------------------------------------------------------


def _importance(trials: Sequence[Trial], varied: Sequence[str], mode: str) -> list[dict[str, Any]]:
    """The share of each setting in the order of the trials, the largest first; failed trials share the last place."""
    if len(trials) < _LEAST_TRIALS:
        return []
    rank = statistics.ranks([_merit(trial, mode) for trial in trials])
    found = []
    for name in varied:
        values = [_hashable(trial.settings.get(name)) for trial in trials]
        bin_of = statistics.bins(values)
        share = statistics.importance(bin_of, rank)
        best_bin = max(set(bin_of.tolist()), key=lambda b: rank[bin_of == b].mean())
        best_values = [value for value, b in zip(values, bin_of, strict=True) if b == best_bin]
        found.append({"setting": name, **share._asdict(), "matters": share.p_value <= 0.05, "best_values": _span(best_values)})
    return sorted(found, key=lambda row: (-row["share"], row["p_value"]))


def _hashable(value: Any) -> Any:
    return schema.written(value) if isinstance(value, list) else value


def _span(values: Sequence[Any]) -> list[Any]:
    """The only value, or the least and the greatest number."""
    distinct = list(dict.fromkeys(values))
    numbers = [value for value in distinct if isinstance(value, int | float) and not isinstance(value, bool)]
    return [min(numbers), max(numbers)] if len(numbers) == len(distinct) > 1 else distinct[:3]


# learning curves --------------------------------------------------------------------------------------------------------------


def curves(trial: Trial) -> dict[str, Any]:
    """The learning curves of a trial: `env_steps` of one seed `[n]`, and for each measure mean, least and most over seeds."""
    updates = np.unique(np.concatenate([curve.update for curve in trial.curves]))
    updates = updates[np.unique(np.linspace(0, len(updates) - 1, _MOST_POINTS).astype(int))]
    names = [name for name in metrics.CURVES if any(name in curve.values for curve in trial.curves)]
    aligned = {name: _aligned(trial.curves, name, updates) for name in names}
    steps = np.nanmax([_at(curve, curve.env_steps.astype(np.float64), updates) for curve in trial.curves], axis=0)
    return {"env_steps": steps} | {name: _over_seeds(values) for name, values in aligned.items()}


def _aligned(seeds: Sequence[Curve], name: str, updates: np.ndarray) -> np.ndarray:
    """`[seeds, n]`, NaN where a seed has no value."""
    return np.array([_at(curve, curve.values.get(name, np.full(len(curve.update), np.nan)), updates) for curve in seeds])


def _at(curve: Curve, values: np.ndarray, updates: np.ndarray) -> np.ndarray:
    found = np.searchsorted(curve.update, updates).clip(0, len(curve.update) - 1)
    return np.where(curve.update[found] == updates, values[found], np.nan)


def _over_seeds(values: np.ndarray) -> dict[str, np.ndarray]:
    known = np.isfinite(values)
    count = known.sum(0)
    nothing = count == 0
    mean = np.where(nothing, np.nan, np.where(known, values, 0).sum(0) / np.maximum(count, 1))
    low = np.where(nothing, np.nan, np.where(known, values, np.inf).min(0))
    high = np.where(nothing, np.nan, np.where(known, values, -np.inf).max(0))
    return {"mean": mean, "low": low, "high": high}
