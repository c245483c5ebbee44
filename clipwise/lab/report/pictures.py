"""Pictures that the command line draws: epsilon over steps, schedules over epochs, and a plan over batch sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clipwise.lab.report.plots import COLOURS
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SUFFIXES = (".png", ".svg", ".pdf")
# After eight lines the colours come again, with dashes.
_DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (4, 1.5, 1, 1.5)))


def check_file(option: str, file: Path) -> None:
    """Refuse what cannot be drawn to, before anything is computed."""
    if file.suffix.lower() not in _SUFFIXES:
        raise BadArgument(f"{option}={str(file)!r} is not a picture's name; let it end in .png, .svg or .pdf")
    if not file.resolve().parent.is_dir():
        raise BadArgument(f"{option}={str(file)!r}: its folder does not exist; make it first")


def plot_curve(file: Path, curve: Sequence[tuple[int, float]], delta: float, target: float | None) -> None:
    """Epsilon over the steps charged, with the budget as a line."""
    figure, (axes,) = _figure(1)
    axes.plot([0, *(steps for steps, _ in curve)], [0, *(value for _, value in curve)], "o-", color=COLOURS[0], ms=4)
    if target is not None:
        axes.axhline(target, color=COLOURS[1], dashes=(6, 2), label=f"budget, epsilon {target:g}")
        axes.legend(frameon=False)
    axes.set(xlabel="steps charged", ylabel=f"epsilon at delta {delta:g}", xlim=(0, None), ylim=(0, None))
    axes.set_title("Privacy spent", loc="left", weight="bold")
    _save(figure, file)


def plot_schedules(
    file: Path, lines: Sequence[tuple[str, Sequence[float], Sequence[float]]], noise_multiplier: float
) -> None:
    """The noise multiplier and its square over epochs, a line a schedule: (label, epochs, noise multipliers)."""
    figure, axes = _figure(2)
    for index, (label, epochs, noises) in enumerate(lines):
        look: dict[str, Any] = {
            "color": COLOURS[index % len(COLOURS)],
            "linestyle": _DASHES[index // len(COLOURS) % len(_DASHES)],
            "linewidth": 1.8,
            "drawstyle": "steps-post",
        }
        axes[0].plot(epochs, noises, label=label, **look)
        axes[1].plot(epochs, [noise**2 for noise in noises], **look)
    for each, name in zip(axes, ("noise multiplier $\\sigma$", "noise variance $\\sigma^2$"), strict=True):
        each.margins(x=0.01, y=0.06)
        each.set(xlabel="epoch", ylabel=name, ylim=(0, None))
    axes[0].set_title(f"Noise schedules from $\\sigma_0$ = {noise_multiplier:g}", loc="left", weight="bold")
    widest = max(len(label) for label, _, _ in lines)
    columns = min(len(lines), max(1, 130 // (widest + 8)))  # as many as fit side by side
    figure.legend(loc="outside lower center", ncols=columns, frameon=False)
    _save(figure, file)


def plot_plan(file: Path, batches: Sequence[tuple[float, float, float, int]], planned: float, title: str) -> None:
    """Noise, noise on the mean gradient and steps against the batch: (batch, noise multiplier, noise on the mean, steps)."""
    figure, axes = _figure(3)
    names = ("noise multiplier $\\sigma$", "noise on the mean gradient, $\\sigma / B$", "steps")
    xs = [batch for batch, *_ in batches]
    for place, (each, name) in enumerate(zip(axes, names, strict=True)):
        ys = [row[place + 1] for row in batches]
        each.plot(xs, ys, "o-", color=COLOURS[place], ms=4)
        for batch, *values in batches:
            if batch == planned:
                each.plot([batch], [values[place]], "D", color=COLOURS[place], ms=9, label="as planned")
        each.set_xscale("log")
        each.set_xticks(xs, [f"{x:,.0f}" for x in xs], rotation=30)
        each.minorticks_off()
        each.set(xlabel="expected batch size B, same epochs", ylabel=name, ylim=(0, None))
        each.legend(frameon=False)
    axes[0].set_title(title, loc="left", weight="bold")
    _save(figure, file)


def _figure(panels: int) -> tuple[Any, list[Axes]]:
    # Straight to a canvas without a display, and without pyplot's global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * panels, 4.0), layout="constrained", dpi=150)
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.grid(alpha=0.25)
    return figure, axes


def _save(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file)
    except OSError as error:
        raise BadArgument(f"{str(file)!r} cannot be written ({error}); name another file") from error
