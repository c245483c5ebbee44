"""The page of a study: what was compared and how, the methods side by side, every run in a sortable table."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from clipwise.lab.report import html
from clipwise.lab.report.bars import Bar, bars_png, draw_bars, in_words
from clipwise.lab.report.figures import Figure
from clipwise.lab.report.heat import Heat, draw_heat, heat_png
from clipwise.lab.report.plots import png
from clipwise.lab.report.study_curves import study_curves
from clipwise.lab.report.study_figures import regret_heats, study_figures, study_heats
from clipwise.lab.study import About, Cell, read_results, summarise
from clipwise.lab.study.regret import regret_section
from clipwise.lab.study.table import facts, heading, legend
from clipwise.lab.study.tuning_table import tuning_section
from clipwise.training.folder import RunFolder
from clipwise.types import BadArgument

MOST_BARS = 32  # of a picture: more are read by nobody
COLUMNS = ("variant", "data", "model", "target_epsilon", "epsilon", "accuracy", "noise_multiplier", "steps", "seed")

SUMMARY = (
    *("method", "data", "model", "epsilon", "accuracy %", "std over seeds", "runs"),
    *("lost to privacy", "published %", "ours above it"),
)
COMPARED = (
    "Lost to privacy: points below the run without it. Published: the source's own figure, with its own settings and its own "
    "way of counting epsilon (see what differs, above)."
)


class _Drawn(NamedTuple):
    """The page's charts, as HTML, and the names of their files."""

    side_by_side: list[str]
    went: list[str]
    files: tuple[str, ...]


class Written(NamedTuple):
    page: Path
    pictures: dict[Path, str]  # with what each shows, in words


def is_study(folder: str | Path) -> bool:
    return (Path(folder) / "study.json").is_file()


def write_study_report(folder: str | Path, out: str | Path | None = None) -> Written:
    """`report.html`, and `report/*.png` for what has a line, in the study's folder or in `out`."""
    folder = Path(folder)
    about = About.read(folder)
    found = {line["id"]: line for line in read_results(folder / "results.jsonl")}
    lines = [found[id_] for id_ in about.trials if id_ in found]
    cells = summarise(about, lines)
    figures = [] if about.regret else study_figures(about, lines, cells)  # of a whole grid: too many lines to read
    heats = [*regret_heats(about, cells), *study_heats(about, lines)]
    curves = study_curves(about, lines, folder)
    target = folder if out is None else Path(out)
    drawn = {f"{each.name}.png": png(each) for each in (*figures, *curves)}
    drawn |= {f"{heat.name}.png": heat_png(heat) for heat in heats}
    columns = {} if about.regret or figures or heats else _columns(about, cells)
    drawn |= {name: bars_png(title, bars) for name, (title, bars) in columns.items()}
    shown: list[Figure | Heat] = [*figures, *heats, *curves]
    alts = {target / "report" / name: in_words(title, bars) for name, (title, bars) in columns.items()}
    alts |= {target / "report" / f"{each.name}.png": each.alt() for each in shown}
    charts = [html.charts(figures, wide=True)] if figures else []
    charts += [draw_heat(heat) for heat in heats]
    went = [html.section("How the runs went", html.charts(curves))] if curves else []
    way = os.path.relpath(folder.resolve(), target.resolve())
    page = _page(about, lines, cells, _Drawn(charts, went, tuple(drawn)), folder, way=way)
    try:
        (target / "report").mkdir(parents=True, exist_ok=True)
        for name, content in drawn.items():
            RunFolder(target / "report").write(name, content)
        RunFolder(target).write("report.html", page)
    except OSError as error:
        raise BadArgument(f"out={str(target)!r} cannot be written ({error}); name a folder with --out") from error
    return Written(target / "report.html", alts)


def _page(
    about: About,
    lines: Sequence[Mapping[str, Any]],
    cells: Sequence[Cell],
    drawn: _Drawn,
    folder: Path,
    way: str,
) -> str:
    """`way` leads from the page to the study's folder."""

    def link(name: str) -> str:
        return quote(Path(way, name).as_posix())

    title = about.title or about.name
    body = [
        f"<header><h1>{html.escape(title)}</h1></header>",
        f'<div class="statement">{html.markdown("".join(f"- {fact}{chr(10)}" for fact in facts(about, lines)))}</div>',
    ]
    if len(lines) < len(about.trials):
        body.append(
            html.warning(
                f"{len(about.trials) - len(lines)} of {len(about.trials)} runs are missing; run the study again."
            )
        )
    blocks = list(drawn.side_by_side)
    for data, model in dict.fromkeys((cell.data, cell.model) for cell in cells):
        blocks += _all_bars(about, data, model, [cell for cell in cells if (cell.data, cell.model) == (data, model)])
    words = legend(about, lines) + (
        " A diamond marks the source's own figure." if any(c.published for c in cells) else ""
    )
    if regret := regret_section(about.regret, cells):
        body.append(f'<section class="statement">{html.markdown(chr(10).join(regret))}</section>')
    body += [html.section("Methods side by side", html.text(words), *blocks), *drawn.went]
    body.append(html.section("Summary", html.text(COMPARED), _summary(about, cells)))
    if searched := tuning_section(lines):
        body.append(f'<section class="statement">{html.markdown(chr(10).join(searched))}</section>')
    rows = []
    for line in lines:
        ledger = f"{line.get('run')}/ledger.jsonl"
        there = (folder / ledger).is_file()
        rows.append([*(line.get(column) for column in COLUMNS), html.Link("ledger", link(ledger)) if there else None])
    every = html.table([*COLUMNS, "ledger"], rows, caption="results.jsonl, a line a run, numbers as in the file")
    body.append(html.section("Every run", html.details(f"{len(lines)} runs", every)))
    files = [(name, link(name)) for name in ("results.jsonl", "table.md") if (folder / name).is_file()]
    pictures = [(f"report/{name}", quote(f"report/{name}")) for name in drawn.files]
    body.append(html.section("Files", html.links([*files, *pictures])))
    return html.page(f"Clipwise: {title}", body)


def _summary(about: About, cells: Sequence[Cell]) -> str:
    """Every cell of the table with what it is to be compared with, a row each."""
    plain = {(c.data, c.model): c.mean for c in cells if c.at is None}
    rows = []
    for c in cells:
        spent = c.spent if about.keyed == "noise" else c.at
        without = None if c.at is None else plain.get((c.data, c.model))
        rows.append(
            [
                *(c.variant, c.data, c.model),
                None if spent is None else html.Shown(spent, f"{spent:.4g}"),
                *(_two(c.mean), _two(c.spread), len(c.accuracies)),
                _two(None if without is None else without - c.mean),
                *(_two(c.published), _two(None if c.published is None else c.mean - c.published)),
            ]
        )
    kept = [n for n in range(len(SUMMARY)) if n < 7 or any(row[n] is not None for row in rows)]
    shown = [[row[n] for n in kept] for row in rows]
    return html.table([SUMMARY[n] for n in kept], shown, caption="press a heading to sort; no epsilon: not private")


def _two(value: float | None) -> html.Shown | None:
    return None if value is None else html.Shown(value, f"{value:.2f}")


def _all_bars(about: About, data: str, model: str, cells: Sequence[Cell]) -> list[str]:
    """The column with the most seeds in full view, the others folded: a page of bars is read by nobody."""
    seeds = {at: 0 for at in dict.fromkeys(cell.at for cell in cells if cell.at is not None)}
    for cell in cells:
        if cell.at is not None:
            seeds[cell.at] += len(cell.accuracies)
    titles = {at: f"{data}, {model}, {heading(at, about.keyed)}" for at in seeds}
    drawn = {at: draw_bars(titles[at], _bars(cells, at)) for at in seeds}
    first = max(seeds, key=lambda at: seeds[at], default=None)
    others = [html.details(titles[at], bars) for at, bars in drawn.items() if at != first]
    return [drawn[first], *others] if first is not None else []


def _columns(about: About, cells: Sequence[Cell]) -> dict[str, tuple[str, list[Bar]]]:
    """Of tables of a single column, which have no other chart of their figures: name of the file -> title and bars."""
    found = {}
    for data, model in dict.fromkeys((cell.data, cell.model) for cell in cells):
        here = [cell for cell in cells if (cell.data, cell.model) == (data, model)]
        at = {cell.at for cell in here if cell.at is not None}
        if len(at) == 1 and 2 < len(here) <= MOST_BARS:
            (only,) = at
            title = f"{data}, {model}, {heading(only, about.keyed)}"
            found[f"bars-{data}-{model}.png".replace("/", "-")] = (title, _bars(here, only))
    return found


def _bars(cells: Sequence[Cell], at: float) -> list[Bar]:
    """The methods of one column, best first, then what has no privacy."""
    chosen = [cell for cell in cells if cell.at == at]
    chosen.sort(key=lambda cell: -cell.mean)
    plain = [cell for cell in cells if cell.at is None]
    bars = []
    for cell in (*chosen, *plain):
        half = cell.spread or 0.0
        guarantee = "" if cell.spent is not None or cell.at is None else " (no guarantee)"
        text = f"{cell}{guarantee}"
        low, high = cell.mean - half, cell.mean + half
        bars.append(Bar(cell.variant, cell.mean, low, high, text, cell.spent is None, cell.published))
    return bars
