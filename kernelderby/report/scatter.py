"""Pictures of marks for --plot: S of every shape, and a race."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kernelderby.report.numbers import percent
from kernelderby.report.plot import MARKERS, PALETTE, entitle, finish, in_digits, looks_of, new_figure, shortened_label

REGIMES = {"C": "C  more than 10 flop / byte", "M": "M  fewer", "I": "I  no arithmetic"}
NAMED_FROM = 2.0  # percent of importance from which an operator's mark has a name


def shares(
    shapes: Sequence[tuple[str, float, float]],
    operators: Sequence[tuple[str, str, float, float, float]],
    path: Path,
    *,
    title: str,
) -> None:
    """S over flop per byte, both logarithmic: a dot for each shape, a ring for each operator, sized by importance.

    shapes: regime (C, M, I), flop per byte, S. operators: name, regime, flop per byte, S, importance in percent. Shapes
    without arithmetic are at the left edge.
    """
    figure, axes = new_figure(path, 11, 6.5)
    colors = dict(zip(REGIMES, (PALETTE[0], PALETTE[2], PALETTE[5]), strict=True))
    edge = min([intensity for _, intensity, _ in shapes if intensity], default=1) / 3
    for regime, meaning in REGIMES.items():
        dots = [(intensity or edge, share) for own, intensity, share in shapes if own == regime]
        if dots:
            axes.scatter(*zip(*dots, strict=True), s=9, color=colors[regime], alpha=0.45, linewidth=0, label=meaning)
    named_from = NAMED_FROM if any(importance for *_, importance in operators) else 0
    names: list[Any] = []
    for name, regime, intensity, share, importance in operators:
        place, size = (intensity or edge, share), 40 + 30 * importance
        axes.scatter(*place, s=size, facecolor="none", edgecolor=colors[regime], linewidth=1.6)
        if importance >= named_from:
            text = f"{shortened_label(name, 34)} {percent(share)}"
            names.append(axes.annotate(text, place, xytext=(7, 5), textcoords="offset points", fontsize=8))
    axes.axhline(1, color="#666666", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(axis="y", color="#E6E6E6", linewidth=0.8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:g}%")
    axes.set_ylabel("S = T_SOL / T")
    axes.legend(loc="lower right", frameon=False, fontsize=9, title="dot: shape, ring: operator")
    unit = "flop / byte  (left edge: no arithmetic)"
    entitle(axes, title, unit)
    _keep_apart(figure, names)
    finish(figure, axes, path, title, unit)


def _keep_apart(figure: Any, names: Sequence[Any]) -> None:
    """Moves names up or down, each by as little as it takes, until none lies on another."""
    figure.canvas.draw()
    figure.set_layout_engine("none")  # the layout must not change after the measurement
    taken: list[Any] = []
    for name in names:
        right, _ = name.get_position()
        for step in range(60):
            name.set_position((right, 5 + 5 * ((step + 1) // 2) * (1 if step % 2 else -1)))
            box = name.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
        taken.append(name.get_window_extent())


def lanes(
    rows: Mapping[str, Mapping[str, tuple[float, float, float]]],
    floors: Mapping[str, float],
    path: Path,
    *,
    title: str,
) -> None:
    """A race: a line for each workload, a mark for each solution on one logarithmic time axis, and a dash at the floor.

    rows: workload -> solution -> (time, the ends of its interval). The shortest time of a line is written beside it.
    floors: workload -> its floor.
    """
    solutions = list(dict.fromkeys(name for times in rows.values() for name in times))
    looks, step = looks_of(solutions, ()), 0.7 / max(1, len(solutions) - 1)

    def lane(index: int) -> float:
        """The solution's distance from the middle of its line."""
        return index * step - 0.35 if len(solutions) > 1 else 0

    figure, axes = new_figure(path, 11, max(2.5, 1.3 + max(0.3, 0.12 * len(solutions)) * len(rows)))
    axes.set_xscale("log")
    for place, (workload, times) in enumerate(rows.items()):
        if workload in floors:
            axes.vlines(floors[workload], place - 0.4, place + 0.4, color="#444444", linestyle=(0, (2, 2)), linewidth=1)
        if times:
            best = min(times, key=lambda name: times[name][0])
            axes.annotate(
                in_digits(times[best][0], ""),
                (times[best][0], place + lane(solutions.index(best))),
                xytext=(-6, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
            )
    for index, name in enumerate(solutions):
        points = [(*times[name], place + lane(index)) for place, times in enumerate(rows.values()) if name in times]
        middle, low, high, at = zip(*points, strict=True)
        color = looks[name][0]
        axes.hlines(at, low, high, color=color, linewidth=2.5, alpha=0.5)
        look = {"marker": MARKERS[index % 8], "edgecolor": "white", "linewidth": 0.4}
        axes.scatter(middle, at, s=26, color=color, label=shortened_label(name, 44), zorder=3, **look)
    axes.set_yticks(range(len(rows)), [shortened_label(name) for name in rows], fontsize=8.5)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    finish(figure, axes, path, title, "us  (dashes: the floor)")
