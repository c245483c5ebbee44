"""Draws the pictures of docs/methods/ and writes those parts of its pages that follow from the code: side queries,
guarantee, options, reference and the tables of the index. Run: .venv/bin/python docs/make_methods.py

A page is written by hand around blocks that begin with `<!-- made: NAME -->` and end with `<!-- /made -->`; what stands
between is replaced. A test fails where a page is not what this command would write.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import torch

from clipwise.cli.methods import BATCH, NOISE, describe, guarantee_text, side_facts, tune_text
from clipwise.clipping import METHODS, Context, make_method, method_options
from clipwise.lab.report import svg
from clipwise.lab.report.figures import Figure, Point, Series

FOLDER = Path(__file__).parent / "methods"
CONTEXT = Context(expected_batch_size=256.0, noise_multiplier=1.0, parameters=10_000, steps=1000, sample_rate=0.01)
REACH = 5.0  # norms are drawn from 0 to this
COMPARED = {"threshold": 1.0, "upper": 3.0}  # the settings at which methods are drawn side by side

# The option that a method's picture varies; any other method varies its threshold.
VARIED: dict[str, tuple[str, tuple[float, ...]]] = {
    "auto-dp": ("scale", (0.5, 1.0, 2.0)),
    "auto-s": ("gamma", (0.01, 0.1, 0.5)),
    "nsgd": ("gamma", (0.01, 0.1, 0.5)),
    "psac": ("r", (0.01, 0.1, 0.5)),
    "global": ("upper", (2.0, 3.0, 4.0)),
    "global-adapt": ("upper", (1.5, 3.0, 4.5)),
    "global-adapt-v2": ("upper", (3.0, 1.5, 0.75)),
}
ANY = ("threshold", (0.5, 1.0, 2.0))


def curve(name: str, **options: Any) -> tuple[list[Point], dict[str, list[Point]]]:
    """weight x norm against norm in the method's first state; the same for each vector it releases beside."""
    known = {option["name"] for option in method_options(name)}
    method = make_method(name, **{key: value for key, value in options.items() if key in known})
    norms = torch.arange(0, REACH * 200 + 1, dtype=torch.float64) / 200
    norms = torch.cat([norms, norms + 1e-9]).sort().values  # both sides of a jump
    decision = method.decide(method.init(CONTEXT), norms, torch.zeros(len(norms), dtype=torch.long))
    beside = {key: _points(norms, weights) for key, weights in decision.gradient_rows.items()}
    return _points(norms, decision.weights), beside


def _points(norms: torch.Tensor, weights: torch.Tensor) -> list[Point]:
    return [Point(x, y) for x, y in zip(norms.tolist(), (weights * norms).tolist(), strict=True)]


def series(label: str, points: list[Point], highest: float, *, dashed: bool = False) -> Series:
    """Up to `highest`, with as few points as show no difference."""
    points = [p for p in points if p.y <= highest]
    return Series(label, (*_simplified(points), points[-1]), dashed=dashed, marked=False)


def _simplified(points: list[Point], tolerance: float = 0.001) -> list[Point]:
    """Without its last: the line through fewer points, none further than the tolerance from it (Douglas, Peucker)."""
    first, last = points[0], points[-1]
    length = math.hypot(last.x - first.x, last.y - first.y) or 1.0
    away = [abs((last.x - first.x) * (p.y - first.y) - (p.x - first.x) * (last.y - first.y)) / length for p in points]
    place = max(range(len(points)), key=lambda i: away[i])
    if away[place] <= tolerance:
        return [first]
    return _simplified(points[: place + 1], tolerance) + _simplified(points[place:], tolerance)


def picture(name: str) -> str:
    option, values = VARIED.get(name, ANY)
    if option not in {o["name"] for o in method_options(name)}:
        option, values = "", (0.0,)
    drawn, highest = [], 2.5
    for value in values:
        points, beside = curve(name, **{**COMPARED, option: value})
        drawn.append(series(f"{option} = {value:g}" if option else name, points, highest))
    drawn += [
        series(f"{key}, released beside ({drawn[-1].label})", points, highest, dashed=True)
        for key, points in beside.items()
    ]
    top = max(p.y for s in drawn for p in s.points)
    drawn.append(series("not clipped", [Point(0, 0), Point(top, top)], top, dashed=True))
    return _draw(f"{name}: what is left of a gradient, by its norm", drawn, 640, 320)


def comparison() -> str:
    """All methods; those that clip alike share a line."""
    alike: dict[tuple[Point, ...], list[str]] = {}
    for name in METHODS:
        alike.setdefault(tuple(curve(name, **COMPARED)[0]), []).append(name)
    drawn = [
        series(", ".join(names), list(points), 1.5, dashed=place % 2 == 1)  # so that one shows under another
        for place, (points, names) in enumerate(alike.items())
    ]
    return _draw("All methods: what is left of a gradient, by its norm", drawn, 760, 400)


def _draw(title: str, drawn: list[Series], width: int, height: int) -> str:
    figure = Figure(
        name="x",
        title=title,
        x_label="norm of a gradient",
        y_label="weight × norm",
        series=tuple(drawn),
        from_zero=True,
    )
    return svg.draw(figure, width=width, height=height, standalone=True) + "\n"


def facts(name: str) -> str:
    m = describe(name)
    lines = ["## What it costs", ""]
    if m["side_queries"]:
        lines += _table(
            ["side query", "numbers", "l2 bound", "noise multiplier", "share of the step's budget"],
            [[q["name"], q["width"] or "as many as the model has", *side_facts(q)] for q in m["side_queries"]],
        )
        lines += [
            "",
            f"At expected batch size {BATCH:g} and a total noise multiplier of {NOISE:g}, with default options.",
        ]
        if m["gradient_noise"] is not None:
            lines[-1] += f" The gradient then gets {m['gradient_noise']:.4f} times the noise it would get alone."
    else:
        lines += ["Nothing is released beside the gradient: all of the step's budget is the gradient's."]
        if m["automatic"]:
            lines[-1] += " What is measured before the first step is charged in the same ledger (above)."
    lines += ["", f"Guarantee: {guarantee_text(m)}.", "", f"It adapts: {m['adapts']}. Left to tune: {tune_text(m)}."]
    if m["needs_groups"]:
        lines += ["", "It needs the group of each record; `clipwise train` takes the class."]
    lines += ["", "## Options", ""]
    lines += _table(
        ["option", "type", "default", "meaning"],
        [[f"`{o['name']}`", o["type"], o["default"], o["help"]] for o in m["options"]],
    )
    return "\n".join([*lines, "", "## Reference", "", m["reference"]])


def index() -> str:
    rows = []
    for name in METHODS:
        m = describe(name)
        sides = ", ".join(f"{q['name']} ({side_facts(q)[-1]})" for q in m["side_queries"]) or "none"
        rows.append(
            [f"[{name}]({name}.md)", m["paper"], m["summary"], m["adapts"], sides, tune_text(m), guarantee_text(m)]
        )
    columns = ["method", "paper", "what it does", "adapts", "side queries (share)", "left to tune", "guarantee"]
    return "\n".join(_table(columns, rows))


def _table(columns: list[str], rows: list[list[Any]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def filled(page: str, blocks: dict[str, str]) -> str:
    """The page with its made blocks written anew; each must be there once."""
    for name, content in blocks.items():
        pattern = rf"(<!-- made: {name} -->\n).*?(<!-- /made -->)"
        page, found = re.subn(pattern, lambda m, content=content: f"{m[1]}{content}\n{m[2]}", page, flags=re.DOTALL)
        if found != 1:
            raise SystemExit(f"a page has {found} blocks '<!-- made: {name} -->'; each page of docs/methods needs one")
    return page


def files() -> dict[str, str]:
    """Every file that this command writes, with its content. A method without a page is an error that says so."""
    made = {"all.svg": comparison()}
    shown = "![All methods: weight × norm against norm](all.svg)"
    made["README.md"] = filled((FOLDER / "README.md").read_text(), {"picture": shown, "table": index()})
    for name in METHODS:
        page = FOLDER / f"{name}.md"
        if not page.exists():
            raise SystemExit(f"method {name!r} has no page; write docs/methods/{name}.md after the model of fixed.md")
        made[f"{name}.svg"] = picture(name)
        shown = f"![{name}: weight × norm against norm]({name}.svg)"
        made[f"{name}.md"] = filled(page.read_text(), {"picture": shown, "facts": facts(name)})
    return made


def main() -> None:
    for name, content in files().items():
        (FOLDER / name).write_text(content)


if __name__ == "__main__":
    main()
