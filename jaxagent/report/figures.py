"""The figures of a report, drawn from `analysis.analyse`. Text is taken as it is, never as mathematics."""

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxagent import metrics, schema
from jaxagent.files import disk_errors
from jaxagent.report import analysis
from jaxagent.report.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito's, told apart by all eyes
_INK, _GREY, _FAINT, _RED = "#1f2933", "#9aa5b1", "#d5dbe1", "#b42318"
_SHOWN = 10  # settings with an interval, and axes of the parallel coordinates
_MOST_VECTOR_LINES = 60  # beyond, lines in the background are pixels: a page of thousands of paths is slow
_LOG_FROM = 30  # ratio of the largest to the smallest value, both positive, from which an axis is logarithmic
_RC: dict[Any, Any] = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "jaxagent",
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _GREY,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "axes.labelcolor": _INK,
}


def draw(study: Study, report: Mapping[str, Any]) -> dict[str, str]:
    """The figures that there is something to show in, each as the text of an `svg` element.

    Lines of a setting are groups with the class `setting` and its place in `data-place`.
    """
    with _style():
        return {name: _svg(figure) for name, figure in _figures(study, report)}


def save_png(study: Study, report: Mapping[str, Any], directory: Path) -> list[Path]:
    """Saves each figure as `NAME.png` and returns the paths.

    Raises:
      ResourceError: the disk is full or refuses.
    """
    paths = []
    with disk_errors(directory, 0):
        directory.mkdir(parents=True, exist_ok=True)
    with _style():
        for name, figure in _figures(study, report):
            paths.append(directory / f"{name}.png")
            with disk_errors(paths[-1], 0):
                figure.savefig(paths[-1], dpi=150)
    return paths


def short_names(names: Sequence[str]) -> dict[str, str]:
    """The last part of each dotted path, where no other has the same."""
    last = [name.rpartition(".")[2] for name in names]
    return {name: short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)}


def brief(value: Any) -> str:
    """A setting or a score in few characters, all of them printable."""
    if value is None:
        return "–"
    text = f"{value:.4g}" if isinstance(value, float) else schema.written(value)
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return text if len(text) <= 28 else f"{text[:27]}…"


def brief_settings(settings: Mapping[str, Any]) -> str:
    names = short_names(list(settings))
    return ", ".join(f"{names[name]} {brief(value)}" for name, value in settings.items())


def _figures(study: Study, report: Mapping[str, Any]) -> "Iterator[tuple[str, Figure]]":
    drawn = {"intervals": _intervals, "curves": _curves, "parallel": _parallel, "importance": _importance}
    for name, draw_one in drawn.items():
        figure = draw_one(study, report)
        if figure is not None:
            yield name, figure


@contextmanager
def _style() -> Iterator[None]:
    import matplotlib

    with matplotlib.rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # text in any script: a browser has what matplotlib lacks
        yield


def _svg(figure: "Figure") -> str:
    file = io.StringIO()
    figure.savefig(file, format="svg", dpi=110, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = file.getvalue()
    width = figure.get_figwidth() * 96  # CSS pixels
    sizes = rf'<svg\1 style="min-width: {0.75 * width:.0f}px; max-width: {1.4 * width:.0f}px"'
    text = re.sub(r'^<svg( xmlns:xlink="[^"]*") width="[^"]*" height="[^"]*"', sizes, text[text.index("<svg") :])
    text = re.sub(r'<g id="setting-(\d+)">', r'<g class="setting" data-place="\1">', text)
    return re.sub(r'<g id="[^"]*">', "<g>", text)  # several figures on a page would share them


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


# intervals --------------------------------------------------------------------------------------------------------------------


def _intervals(study: Study, report: Mapping[str, Any]) -> "Figure | None":
    """The best settings' scores: each seed's, the interquartile mean, and its interval."""
    rows = [row for row in report["leaderboard"] if row["score"] is not None][:_SHOWN]
    if not rows:
        return None
    figure = _figure(4.8, 0.8 + 0.25 * max(3, len(rows)))
    axis = figure.subplots()
    for y, row in enumerate(rows):
        colour = _colour(row["place"])
        scores = [score for score in row["seed_scores"].values() if score is not None]
        if row["interval"] is not None:
            (bar,) = axis.plot(row["interval"], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt")
            bar.set_gid(f"setting-{row['place']}")
        axis.plot(scores, [y] * len(scores), "o", color=colour, alpha=0.3, markersize=3.5, markeredgewidth=0)
        axis.plot([row["score"]], [y], "o", color=colour, markersize=6.5)
    axis.set_yticks(range(len(rows)), [_label(row, report) for row in rows])
    axis.set(ylim=(len(rows) - 0.4, -0.6), xlabel=brief(report["objective"]))
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", alpha=0.3)
    return figure


def _label(row: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    shown = {name: row["settings"][name] for name in analysis.decisive(report)[:2]} if report["kind"] == "sweep" else {}
    text = brief_settings(shown) or _tail(row["trial"])
    stopped = f" (rung {row['rung']})" if row["state"] == "stopped" else ""
    return f"{row['place']}: {text}{stopped}"


def _tail(name: str) -> str:
    """The end of a path, which tells runs apart better than its beginning."""
    text = "".join(character if character.isprintable() else "\ufffd" for character in name)
    return text if len(text) <= 34 else f"…{text[-33:]}"


def _colour(place: int) -> str:
    return _COLOURS[place - 1] if place <= len(_COLOURS) else _GREY


# learning curves --------------------------------------------------------------------------------------------------------------


def _curves(study: Study, report: Mapping[str, Any]) -> "Figure | None":
    """The best settings in colour, mean and range over seeds; all others in grey, as far as they are usual."""
    from matplotlib.ticker import EngFormatter

    by_name = {trial.name: trial for trial in study.trials if trial.curves}
    shown = [(row, by_name[row["trial"]]) for row in report["leaderboard"] if row["trial"] in by_name]
    lines = [(row["place"], report["curves"].get(trial.name) or analysis.curves(trial)) for row, trial in shown]
    means = {name: [line[name]["mean"] for _, line in lines if name in line] for name in metrics.CURVES}
    measured = metrics.worth_drawing({name: np.concatenate(arrays) for name, arrays in means.items() if arrays})
    measured.sort(key=lambda name: report["objective"].removeprefix("eval.") != name)  # what is compared comes first
    if not measured:
        return None
    columns = len(measured) if len(measured) <= 4 else 3
    height = 2.5 * -(-len(measured) // columns) + 0.4
    figure = _figure(2.9 * columns + 0.9, height)
    axes = figure.subplots(-(-len(measured) // columns), columns, squeeze=False).ravel()
    for axis, name in zip(axes, measured, strict=False):
        _draw_curves(axis, [(place, line["env_steps"], line[name]) for place, line in lines if name in line])
        axis.set(title=name.replace("_", " "), xlabel="environment steps")
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        axis.grid(alpha=0.3)
    for axis in axes[len(measured) :]:
        axis.set_axis_off()
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles[::-1], labels[::-1], title="place", loc="outside right upper", frameon=False)
    return figure


def _draw_curves(axis: "Axes", lines: Sequence[tuple[int, np.ndarray, Mapping[str, np.ndarray]]]) -> None:
    from matplotlib.collections import LineCollection

    others = []
    for place, steps, line in reversed(lines):  # the best on top
        known = np.isfinite(line["mean"])
        steps, mean, low, high = steps[known], line["mean"][known], line["low"][known], line["high"][known]
        if place > analysis.TOP:
            others.append(np.stack([steps, mean], axis=-1))
            continue
        axis.fill_between(steps, low, high, color=_colour(place), alpha=0.13, linewidth=0, zorder=2)
        marker = "o" if len(mean) == 1 else None
        (drawn,) = axis.plot(steps, mean, color=_colour(place), linewidth=1.5, zorder=3, label=str(place), marker=marker)
        drawn.set_gid(f"setting-{place}")
    pixels = len(others) > _MOST_VECTOR_LINES
    axis.add_collection(LineCollection(others, colors=_FAINT, linewidths=0.7, zorder=1, rasterized=pixels))
    _limit(axis, [line["mean"] for _, _, line in lines], [line for place, _, line in lines if place <= analysis.TOP])


def _limit(axis: "Axes", all_means: Sequence[np.ndarray], best: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Shows the best whole, and of all others what is usual: one that diverges would flatten the rest."""
    axis.autoscale_view()
    means = np.concatenate(all_means)
    usual = np.quantile(means[np.isfinite(means)], [0.02, 0.98])
    shown = np.concatenate([usual, *(line[end] for line in best for end in ("low", "high"))])
    low, high = shown[np.isfinite(shown)].min(), shown[np.isfinite(shown)].max()
    margin = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    axis.set_ylim(low - margin, high + margin)


# parallel coordinates ---------------------------------------------------------------------------------------------------------


def _parallel(study: Study, report: Mapping[str, Any]) -> "Figure | None":
    """A line a setting, through its hyperparameters to its score. Failed ones end before it."""
    rows = report["leaderboard"]
    order = [found["setting"] for found in report["importance"]] or report["varied"]
    names = order[:_SHOWN][::-1]  # what matters most stands beside the score
    if not names or len(rows) < 2:
        return None
    titles = [*short_names(names).values(), brief(report["objective"])]
    columns = [_scaled([row["settings"][name] for row in rows]) for name in names]
    columns.append(_scaled([row["score"] for row in rows]))
    heights = np.array([column[0] for column in columns])  # [axes, rows]
    figure = _figure(max(6.0, 1.15 * len(columns) + 1), 3.6)
    axis = figure.subplots()
    _draw_settings(axis, rows, heights.T)
    for x, (title, (_, ticks)) in enumerate(zip(titles, columns, strict=True)):
        axis.plot([x, x], [-0.02, 1.02], color=_INK, linewidth=0.8, zorder=4)
        axis.text(x, 1.07, brief(title), ha="center", va="bottom", fontweight="bold", fontsize=8.5)
        for y, label in ticks:
            box = {"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.6}
            axis.text(x + 0.03, y, label, ha="left", va="center", fontsize=7.5, zorder=5, bbox=box)
    axis.set(xlim=(-0.15, len(columns) - 0.5), ylim=(-0.16, 1.18))
    axis.set_axis_off()
    return figure


def _draw_settings(axis: "Axes", rows: Sequence[Mapping[str, Any]], heights: np.ndarray) -> None:
    """Lines `[rows, axes]`: the best ones in front, failed ones up to the score."""
    import matplotlib
    from matplotlib.collections import LineCollection

    points = np.stack(np.broadcast_arrays(np.arange(heights.shape[1]), heights), axis=-1)  # [rows, axes, 2]
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 1, len(rows)))  # the darker, the better
    failed = np.array([row["state"] == "failed" for row in rows])
    behind = ~failed & (np.arange(len(rows)) >= _SHOWN)
    pixels = len(rows) > _MOST_VECTOR_LINES

    def in_background(chosen: np.ndarray, last: int | None, **style: Any) -> None:
        lines = list(points[chosen, :last])[::-1]
        axis.add_collection(LineCollection(lines, linewidths=0.8, rasterized=pixels, **style))

    in_background(failed, -1, colors=_RED, alpha=0.6, linestyles=":", zorder=1)
    if pixels:
        in_background(behind, None, colors=colours[behind][::-1], alpha=0.4, zorder=2)
    for i in reversed(np.flatnonzero(~failed if not pixels else ~failed & ~behind)):
        width, opacity, depth = (0.8, 0.5, 2) if behind[i] else (1.8, 0.95, 3)
        (drawn,) = axis.plot(heights[i], color=colours[i], linewidth=width, alpha=opacity, zorder=depth)
        drawn.set_gid(f"setting-{rows[i]['place']}")


def _scaled(values: Sequence[Any]) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Heights in `[0, 1]` of values, a little below where there is none, and the labelled ticks of their axis."""
    known = [value for value in values if value is not None]
    numeric = bool(known) and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
    place, ticks = _numeric_scale(known) if numeric else _category_scale(known)
    if len(known) < len(values):
        ticks = [*ticks, (-0.12, "–")]
    return np.array([-0.12 if value is None else place(value) for value in values]), ticks


def _numeric_scale(values: Sequence[float]) -> tuple[Any, list[tuple[float, str]]]:
    low, high = min(values), max(values)
    logarithmic = low > 0 and high / low >= _LOG_FROM
    to_line, back = (math.log, math.exp) if logarithmic else (float, float)
    start, extent = to_line(low), to_line(high) - to_line(low)

    def place(value: float) -> float:
        return (to_line(value) - start) / extent if extent else 0.5

    distinct = sorted(set(values))
    if len(distinct) > 6:
        distinct = [back(start + fraction * extent) for fraction in (0, 0.25, 0.5, 0.75, 1)]
        return place, [(fraction, f"{value:.3g}") for fraction, value in zip((0, 0.25, 0.5, 0.75, 1), distinct, strict=True)]
    ticks: list[tuple[float, str]] = []
    for value in distinct:
        if not ticks or place(value) - ticks[-1][0] > 0.05:  # else one would cover the other
            ticks.append((place(value), f"{value:.4g}"))
    return place, ticks


def _category_scale(values: Sequence[Any]) -> tuple[Any, list[tuple[float, str]]]:
    distinct = sorted({schema.written(value) for value in values})
    heights = {text: (i + 0.5) / len(distinct) for i, text in enumerate(distinct)}
    step = max(1, -(-len(distinct) // 12))
    return lambda value: heights[schema.written(value)], [(heights[text], brief(text)) for text in distinct[::step]]


# importance -------------------------------------------------------------------------------------------------------------------


def _importance(study: Study, report: Mapping[str, Any]) -> "Figure | None":
    """A bar a hyperparameter, and what chance reaches."""
    found = report["importance"][:20]
    if not found:
        return None
    figure = _figure(4.8, 0.8 + 0.27 * max(2, len(found)))
    axis = figure.subplots()
    colours = [_COLOURS[0] if row["matters"] else _FAINT for row in found]
    axis.barh(range(len(found)), [row["share"] for row in found], color=colours, height=0.62)
    for y, row in enumerate(found):
        axis.plot([row["floor"]] * 2, [y - 0.38, y + 0.38], color=_RED, linewidth=1.6, label="chance" if y == 0 else None)
    axis.set_yticks(range(len(found)), [brief(name) for name in short_names([row["setting"] for row in found]).values()])
    axis.set(ylim=(len(found) - 0.4, -0.6), xlim=(0, 1), xlabel="share of the variance of the ranks")
    axis.tick_params(axis="y", length=0)
    axis.legend(frameon=False, loc="lower right", handlelength=0.6)
    return figure
