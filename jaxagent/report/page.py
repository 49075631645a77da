"""The report as one HTML file that needs nothing else: no script, font or picture from elsewhere."""

from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jaxagent.files import write_atomic
from jaxagent.report import analysis, figures
from jaxagent.report.study import Study

_SHOWN_ROWS = 20  # of the leaderboard, before more is asked for
_INHERITED = (
    "No command trains it once more: during training it took over another trial's state, and settings that then changed."
)


def write(study: Study, report: Mapping[str, Any], path: Path) -> None:
    """Writes the page.

    Raises:
      ResourceError: the disk is full or refuses.
    """
    write_atomic(path, render(study, report).encode("utf-8", "replace"))


def render(study: Study, report: Mapping[str, Any]) -> str:
    """The page's HTML. All text is escaped."""
    import jinja2
    from markupsafe import Markup

    template = resources.files("jaxagent.report").joinpath("template.html").read_text("utf-8")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"brief": figures.brief, "short": figures.brief_settings}
    drawn = {name: Markup(svg) for name, svg in figures.draw(study, report).items()}  # matplotlib has escaped it
    return environment.from_string(template).render(
        report=report,
        answer=answer(report),
        figures=drawn,
        columns=figures.short_names(report["varied"]),
        updates_differ=len({row["updates"] for row in report["leaderboard"] if row["state"] == "done"}) > 1,
        shown_rows=_SHOWN_ROWS,
        inherited=_INHERITED,
        top=[row for row in report["leaderboard"] if row["score"] is not None][: analysis.TOP],
        provenance=report["provenance"][-1] if report["provenance"] else {},
    )


def answer(report: Mapping[str, Any]) -> dict[str, str]:
    """The main result in words.

    `best` is the setting, by what matters, `rest` its other hyperparameters, `score` its score; `sure` is yes, no or unknown,
    and `why` says why.
    """
    verdict, rows = report["verdict"], {row["trial"]: row for row in report["leaderboard"]}
    if verdict["best"] is None:
        all_failed = report["states"].get("failed") == report["trials"]
        why = "Every trial failed; the reasons are under Failures." if all_failed else "No trial has come to a score yet."
        return {"best": "No setting has a score", "rest": "", "score": "", "sure": "unknown", "why": why}
    row = rows[verdict["best"]]
    decisive = analysis.decisive(report)
    best = figures.brief_settings({name: row["settings"][name] for name in decisive})
    rest = figures.brief_settings({name: value for name, value in row["settings"].items() if name not in decisive})
    if report["kind"] == "runs":
        best, rest = row["trial"], figures.brief_settings(row["settings"])
        if verdict["tied"]:
            best, rest = f"{_listed([best, *verdict['tied']])}, with the same score", ""
    return {
        "best": best or f"trial {row['trial']}",
        "rest": rest,
        "score": f"{report['objective']} {_score(row)}",
        "sure": {True: "yes", False: "no", None: "unknown"}[verdict["sure"]],
        "why": " ".join(_reasons(report, row, rows)),
    }


def text(report: Mapping[str, Any]) -> str:
    """The main result for a terminal, in a few lines."""
    said = answer(report)
    lines = {"best": said["best"], "with": said["rest"], "score": said["score"], "sure": f"{said['sure']}. {said['why']}"}
    if any(row["inherited"] for row in report["leaderboard"] if row["trial"] == report["verdict"]["best"]):
        lines["again"] = _INHERITED
    return "\n".join([*(f"{name:6} {line}" for name, line in lines.items() if line), *_side_by_side(report)])


def _side_by_side(report: Mapping[str, Any]) -> list[str]:
    """The best runs as lines of a table, with what else their evaluations found."""
    if not report["evaluated"]:
        return []
    titles = ["", report["objective"].removeprefix("eval."), *report["evaluated"]]
    rows = [
        [row["trial"], *map(figures.brief, (row["score"], *row["evaluated"].values()))]
        for row in report["leaderboard"][: analysis.TOP]
    ]
    first, *others = (max(map(len, column)) for column in zip(titles, *rows, strict=True))
    return [
        "  ".join([name.ljust(first), *(text.rjust(width) for text, width in zip(texts, others, strict=True))])
        for name, *texts in (titles, *rows)
    ]


def _listed(names: Sequence[str]) -> str:
    """Up to three names in words, and how many more there are."""
    *first, last = names if len(names) <= 3 else [*names[:2], f"{len(names) - 2} more"]
    return f"{', '.join(first)} and {last}"


def _score(row: Mapping[str, Any]) -> str:
    of_seeds = f"{row['known_seeds']} seed{'s' * (row['known_seeds'] > 1)}"
    if row["interval"] is None:
        return f"{row['score']:.4g} ({of_seeds})"
    low, high = row["interval"]
    return f"{row['score']:.4g} (95%: {low:.4g} to {high:.4g}, {of_seeds})"


def _reasons(report: Mapping[str, Any], best: Mapping[str, Any], rows: Mapping[str, Any]) -> list[str]:
    verdict = report["verdict"]
    reasons = []
    if best["state"] == "stopped":
        reasons.append(f"No trial was trained to the end: this is the order at rung {best['rung']}, {best['updates']} updates.")
    if verdict["second"] is None:
        return [*reasons, "There is no other trained as far to compare it with."]
    second = rows[verdict["second"]]
    if verdict["tied"] and report["kind"] == "runs":
        return [*reasons, "Their scores are equal; what else was evaluated may tell them apart."]
    if verdict["tied"]:
        reasons.append("Its score is the second's, too.")
    if verdict["sure"] is None:
        single = [name for name, row in (("the best", best), ("the second", second)) if row["interval"] is None]
        who = "" if len(single) > 1 else f", and {single[0]} has no other"
        return [*reasons, f"One seed has no interval{who}: the order may be chance. Train the best ones with more seeds."]
    if verdict["second"] not in verdict["within_reach"]:
        reasons.append(f"Its interval lies apart from the second's: {_score(second)}.")
    else:
        count = len(verdict["within_reach"])
        reach = "the second's" if count == 1 else f"those of {count} others, the second's among them"
        reasons.append(f"Its interval overlaps {reach}: {_score(second)}.")
    if min(best["known_seeds"], second["known_seeds"]) < analysis.ENOUGH_SEEDS:
        reasons.append(f"With fewer than {analysis.ENOUGH_SEEDS} seeds intervals are too narrow to be sure.")
    if report["trials"] > _SHOWN_ROWS:
        reasons.append(f"The best of {report['trials']} owes a part of its score to luck: confirm it with new seeds.")
    return reasons
