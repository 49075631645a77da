"""Draws a result file of the comparisons as bars: `python plot.py RESULTS.json` writes `RESULTS.png`."""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402  (the backend comes first)

COLOURS = {"jaxagent": "#1b6ca8"}
PEER_COLOUR = "#9aa5b1"


def draw(path: Path) -> Path:
    """One panel a level or setting; log axis, since the systems are orders of magnitude apart."""
    payload = json.loads(path.read_text())
    panels = list(dict.fromkeys(r["level"] for r in payload["results"]))
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 3.6), squeeze=False)
    for axis, panel in zip(axes[0], panels, strict=True):
        records = sorted((r for r in payload["results"] if r["level"] == panel), key=lambda r: r["steps_per_s"])
        rates = [r["steps_per_s"] for r in records]
        error = [
            [r["steps_per_s"] - r["steps_per_s_min"] for r in records],
            [r["steps_per_s_max"] - r["steps_per_s"] for r in records],
        ]
        colours = [COLOURS.get(r["system"], PEER_COLOUR) for r in records]
        bars = axis.barh([r["label"] for r in records], rates, xerr=error, color=colours, ecolor="#444444")
        axis.bar_label(bars, [f"{rate:,.0f}" for rate in rates], padding=4, fontsize=8)
        axis.set(title=panel, xscale="log", xlabel="environment steps / s")
        axis.set_xlim(min(rates) / 3, max(rates) * 12)
    figure.suptitle(payload["title"] + ("  (quick run)" if payload["quick"] else ""))
    figure.tight_layout()
    target = path.with_suffix(".png")
    figure.savefig(target, dpi=120)
    return target


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
