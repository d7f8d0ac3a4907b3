"""Pictures of profiles for --plot: stage shares, kernel bars, layer bars, what-if, changes. scatter.py has the others.

matplotlib comes with the extra `plot` and is imported only here; no display is needed. Colours are the Okabe-Ito
palette (Okabe and Ito, "Color Universal Design", 2008), which suits every kind of colour vision. If there are more
parts than colours, the second round is hatched.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from kernelderby.errors import DerbyError
from kernelderby.store.counts import shortened
from kernelderby.store.files import write_whole

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
REST = "#BBBBBB"
MARKERS = "os^DvP*X"
HATCHES = ("", "////", "....", "xxxx")
SUFFIXES = (".png", ".svg", ".pdf")
LABEL_FROM = 0.035  # a part narrower than this share of the picture has no label
LONGEST = 62  # characters of a label


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]],
    path: Path,
    *,
    title: str,
    unit: str,
    as_share: bool = False,
    rest: Sequence[str] = (),
    meanings: Mapping[str, str] | None = None,
) -> None:
    """One horizontal bar per profile, with its parts in order of first appearance. bars: profile -> part -> value.

    unit: of the values, "us". as_share: bars of one length, with the sum at their ends. rest: parts drawn in grey.
    meanings: part -> text after it in the legend.
    """
    parts = list(dict.fromkeys(part for values in bars.values() for part in values))
    looks = looks_of(parts, rest)
    figure, axes = new_figure(path, 11.5, max(1.5 + 0.55 * len(bars), 1.1 + 0.19 * len(parts)))
    longest = max((sum(values.values()) for values in bars.values()), default=0) or 1
    for place, (_, values) in enumerate(bars.items()):
        total, left = sum(values.values()), 0.0
        scale = 100 / total if as_share and total else 1.0
        width = 100 if as_share else longest
        for part in parts:
            value = values.get(part, 0.0) * scale
            color, hatch = looks[part]
            axes.barh(place, value, left=left, height=0.66, color=color, hatch=hatch, edgecolor="white", linewidth=0.8)
            if value >= LABEL_FROM * width:
                _inside(axes, left + value / 2, place, part, value, looks[part], width, as_share)
            left += value
        axes.text(left + 0.008 * width, place, in_digits(total, unit.partition(" ")[0]), va="center", fontsize=9)
    axes.set_yticks(range(len(bars)), [shortened_label(name) for name in bars])
    axes.set_ylim(max(len(bars) - 0.4, 0.9), -0.6 if len(bars) > 1 else -0.9)
    end = 100 if as_share else longest
    axes.set_xlim(0, end * 1.1)
    if as_share:
        axes.spines["bottom"].set_bounds(0, end)
    if as_share:
        axes.set_xticks(range(0, 101, 20))
        unit = f"share of the time, %  (at the end of a bar: {unit})"
    _legend(axes, parts, looks, meanings or {})
    finish(figure, axes, path, title, unit)


def bars(
    values: Mapping[str, float],
    path: Path,
    *,
    title: str,
    unit: str,
    total: float | None = None,
    groups: Mapping[str, str] | None = None,
) -> None:
    """One bar per name, in the given order, with its value and, with a total, its share. groups: name -> its group in
    the legend, which has a colour (a library, a role)."""
    keys = list(dict.fromkeys(groups.get(name, "") for name in values)) if groups else [""]
    looks = looks_of(keys, ())
    figure, axes = new_figure(path, 10.5, 1.3 + 0.32 * len(values))
    for place, (name, value) in enumerate(values.items()):
        color, hatch = looks[groups.get(name, "") if groups else ""]
        axes.barh(place, value, height=0.72, color=color, hatch=hatch, edgecolor="white", linewidth=0.8)
        share = f"  {value / total:.1%}" if total else ""
        axes.text(value, place, f" {in_digits(value, unit)}{share}", va="center", fontsize=8.5)
    axes.set_yticks(range(len(values)), [shortened_label(name) for name in values], fontsize=8.5)
    axes.invert_yaxis()
    axes.set_xlim(0, max(values.values(), default=1) * 1.3)
    if groups:
        _legend(axes, keys, looks, {}, loc="lower right", bbox_to_anchor=None)
    finish(figure, axes, path, title, unit)


def dots(rows: Mapping[str, Mapping[str, float]], path: Path, *, title: str, unit: str) -> None:
    """One line per name with a dot for each of its values: row -> series -> value, from 0."""
    series = list(dict.fromkeys(key for values in rows.values() for key in values))
    looks = looks_of(series, ())
    figure, axes = new_figure(path, 10.5, max(2.2, 1.3 + 0.34 * len(rows)))
    furthest = max((value for values in rows.values() for value in values.values()), default=0) or 1
    for place, values in enumerate(rows.values()):
        most = max(values.values())
        axes.hlines(place, 0, most, color="#DDDDDD", linewidth=2, zorder=1)
        at = most + 0.015 * furthest
        axes.text(at, place, in_digits(most, ""), va="center", fontsize=8.5, color="#444444")
    for index, key in enumerate(series):
        points = [(values[key], place) for place, values in enumerate(rows.values()) if key in values]
        look = {"color": looks[key][0], "marker": MARKERS[index % 6], "edgecolor": "white", "linewidth": 0.6}
        axes.scatter(*zip(*points, strict=True), s=52, zorder=2, label=key, clip_on=False, **look)
    axes.set_yticks(range(len(rows)), [shortened_label(name) for name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0, furthest * 1.08)
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=9)
    finish(figure, axes, path, title, unit)


def differences(values: Mapping[str, float], path: Path, *, title: str, unit: str) -> None:
    """One bar per name, to the left if it got faster (blue) and to the right if it got slower (orange)."""
    figure, axes = new_figure(path, 10.5, 1.3 + 0.34 * len(values))
    widest = max((abs(value) for value in values.values()), default=0) or 1
    for place, value in enumerate(values.values()):
        axes.barh(place, value, height=0.7, color=PALETTE[0] if value < 0 else PALETTE[5])
        side = "right" if value < 0 else "left"
        sign = "+" if value > 0 else "-" if value < 0 else ""
        number = in_digits(abs(value), unit.partition(" ")[0])
        axes.text(value, place, f" {sign}{number} ", va="center", ha=side, fontsize=8.5)
    axes.axvline(0, color="#666666", linewidth=0.8)
    axes.set_yticks(range(len(values)), [shortened_label(name) for name in values], fontsize=8.5)
    axes.invert_yaxis()
    least, most = min(values.values(), default=0), max(values.values(), default=0)
    axes.set_xlim(min(-0.15 * widest, least * 1.25), max(0.15 * widest, most * 1.25))
    finish(figure, axes, path, title, f"{unit}  (left: faster, right: slower)")


def expect_picture(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise DerbyError(f"--plot {path}: {path.suffix or 'no suffix'} is no picture; end it in {', '.join(SUFFIXES)}")


def new_figure(path: Path, width: float, height: float) -> tuple[Any, Any]:
    expect_picture(path)
    new_canvas, new = _of_matplotlib()
    figure = new(figsize=(width, height), layout="constrained")
    new_canvas(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#E6E6E6", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _of_matplotlib() -> tuple[Any, Any]:
    """matplotlib's canvas and figure with default settings, so that pictures look the same everywhere: no display, no
    settings of the user or the current directory, and no formula for a name with two dollar signs."""
    os.environ.pop("MPLBACKEND", None)
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # the place of its cache does not matter
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise DerbyError("--plot: matplotlib is missing; pip install 'kernelderby[plot]'") from None
    except Exception as error:  # any error from its settings  # noqa: BLE001
        raise DerbyError(f"--plot: matplotlib does not start ({error!s:.200}); look at its matplotlibrc") from None
    matplotlib.rcdefaults()
    matplotlib.rcParams["text.parse_math"] = False
    matplotlib.rcParams["svg.hashsalt"] = "kernelderby"  # two pictures of one answer have the same bytes
    return FigureCanvasAgg, Figure


_DATES = {"svg": ("Date",), "pdf": ("CreationDate", "ModDate")}


def entitle(axes: Any, title: str, unit: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    axes.set_xlabel(unit)


def finish(figure: Any, axes: Any, path: Path, title: str, unit: str) -> None:
    """The title, the axis of the values, the file."""
    entitle(axes, title, unit)
    if not path.parent.is_dir():
        raise DerbyError(f"--plot {path}: cannot be written (no such folder); name an existing folder")
    drawn, kind = BytesIO(), path.suffix.removeprefix(".") or "png"
    undated = dict.fromkeys(_DATES.get(kind, ()))
    try:
        figure.savefig(drawn, dpi=160, format=kind, metadata=undated or None)
    except (ValueError, OverflowError, OSError, RuntimeError) as error:
        raise DerbyError(f"--plot {path}: cannot be drawn ({error!s:.200}); is $SOURCE_DATE_EPOCH a number?") from None
    write_whole(path, drawn.getvalue())


def looks_of(parts: Sequence[str], rest: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Part -> (colour, hatch), in order; grey for the rest."""
    looks, place = {}, 0
    for part in parts:
        if part in rest:
            looks[part] = (REST, "")
            continue
        looks[part] = (PALETTE[place % len(PALETTE)], HATCHES[place // len(PALETTE) % len(HATCHES)])
        place += 1
    return looks


def _legend(
    axes: Any,
    parts: Sequence[str],
    looks: Mapping[str, tuple[str, str]],
    meanings: Mapping[str, str],
    *,
    loc: str = "upper left",
    bbox_to_anchor: tuple[float, float] | None = (1.01, 1),
) -> None:
    from matplotlib.patches import Patch

    handles = []
    for part in parts:
        color, hatch = looks[part]
        label = shortened_label(f"{part}  {meanings.get(part, '')}".strip(), 44)
        handles.append(Patch(facecolor=color, hatch=hatch, edgecolor="white", label=label))
    axes.legend(handles=handles, loc=loc, bbox_to_anchor=bbox_to_anchor, frameon=False, fontsize=9)


def _inside(
    axes: Any, x: float, y: float, part: str, value: float, look: tuple[str, str], width: float, as_share: bool
) -> None:
    """The part's name above its share, if it fits."""
    number = f"{value:.1f}" if as_share else in_digits(value, "")
    text = f"{part}\n{number}" if len(part) <= value / width * 80 else number
    color, hatch = look
    red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
    letters = "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 140 else "black"
    box = {"facecolor": color, "edgecolor": "none", "pad": 1} if hatch else None
    axes.text(x, y, text, ha="center", va="center", fontsize=8, color=letters, linespacing=1.1, bbox=box)


def in_digits(value: float, unit: str) -> str:
    digits = 0 if value >= 1000 else 1 if value >= 10 else 2
    return f"{value:.{digits}f} {unit}".strip()


def shortened_label(text: str, longest: int = LONGEST) -> str:
    return shortened(text, longest)
