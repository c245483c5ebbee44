"""The page of one run: its statement on top, then what it spent and learned over its steps, its options and files."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from clipwise.lab.report import bars, grouped_bars, html
from clipwise.lab.report.attack import attack_figure, attack_section, limits
from clipwise.lab.report.figures import Figure, short
from clipwise.lab.report.grouped_bars import Bar, BarSeries, GroupedBars
from clipwise.lab.report.run_record import RunRecord
from clipwise.lab.report.search import search_section
from clipwise.proportion import wilson
from clipwise.statement import shown_epsilon
from clipwise.validate import finite_or_none

MOST_BARS = 40  # groups that a picture still shows
MOST_ROWS = 2000  # of the table; a longer run shows every n-th line, and says so


def run_page(record: RunRecord, figures: list[Figure], *, beside: Path) -> str:
    """The page, to stand in the folder `beside`; links to the run's files are relative to it."""
    summary = record.summary()
    title = f"{summary['method'] or 'unknown method'} on {_base(summary['data'])}"
    body = [
        f"<header><h1>Run report: {html.escape(title)}</h1>",
        f'<p class="under">{html.escape(_under(record, summary))}</p></header>',
        *map(html.warning, record.problems),
        f'<div class="statement">{_statement(record, summary)}</div>',
        html.tiles(_tiles(record, summary)),
    ]
    if record.search is not None:
        body.append(search_section(record.search))
    if record.charged is not None and record.charged.attack is not None:
        body.append(attack_section(record.charged.attack))
    if figures:
        hint = "" if "epsilon" in {f.name for f in figures} else "Epsilon is infinite throughout, and so has no chart. "
        if record.search is not None:
            hint += "These are the chosen run's own, without the search: epsilon here is that of one run. "
        hint += "Values appear under the pointer; with the keyboard, focus a chart and use the arrow keys."
        moving = [figure for figure in figures if not figure.constant]
        body.append(html.section("Over the run", html.text(hint), html.charts(moving), html.tiles(unchanged(figures))))
    body += _by_group(record)
    if record.lines:
        body.append(html.section("Every number", html.details("The lines of metrics.jsonl", *_metrics(record))))
    ends = [html.section("Files", html.links(_links(record, figures, beside)))]
    if record.config:
        options = html.table(["option", "value"], _options(record.config), caption="config.toml: what ran")
        ends.insert(0, html.section("Options", options))
    body.append(html.side_by_side(*ends))
    return html.page(f"Clipwise: {title}", body)


def _under(record: RunRecord, summary: Mapping[str, Any]) -> str:
    parts = [f"model {summary['model']}" if summary["model"] else "", f"folder {record.path}"]
    return " · ".join(part for part in parts if part)


def _tiles(record: RunRecord, summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    tiles = [("epsilon", *_epsilon(record, summary))]
    if summary["accuracy"] is not None:
        interval, size = summary["accuracy_interval"], summary["test_size"]
        more = (
            f"95 % interval {interval[0]:.2%} to {interval[1]:.2%}, {size} test records" if interval else "on test data"
        )
        tiles.append(("accuracy", f"{summary['accuracy']:.2%}", more))
    if summary["steps"] is not None:
        tiles.append(("steps", f"{summary['steps']}", "" if record.finished else "charged so far"))
    first, last = summary["noise_multiplier"], finite_or_none(summary["last"].get("noise_multiplier"))
    if first is not None:
        moved = (
            f"at the start; {short(last)} at the end" if last is not None and last != first else "noise std / l2 bound"
        )
        tiles.append(("noise multiplier", short(first), moved))
    threshold = finite_or_none(summary["last"].get("threshold"))
    if threshold is not None:
        tiles.append(("threshold", short(threshold), "at the end"))
    return tiles


def unchanged(figures: list[Figure]) -> list[tuple[str, str, str]]:
    """What a chart would show as a flat line, as numbers."""
    return [
        (
            f.title,
            " · ".join(dict.fromkeys(f.shown(s.points[0].y) for s in f.series)),
            "throughout" if any(len(s.points) > 1 for s in f.series) else "",
        )
        for f in figures
        if f.constant
    ]


def _epsilon(record: RunRecord, summary: Mapping[str, Any]) -> tuple[str, str]:
    if summary["epsilon"] is None:
        claimed = finite_or_none(record.result.get("claimed_epsilon"))
        if claimed is not None:
            return "infinite", f"no valid guarantee; the paper's way of counting claims {short(claimed)}"
        known = record.finished or (record.charged and record.charged.epsilon is not None)
        return ("infinite", "no guarantee") if known else ("not known", "no result and no good ledger")
    delta = "" if summary["delta"] is None else f"at delta {summary['delta']:g}"
    more = delta if record.finished else f"{delta}, from the ledger"
    if record.search is not None and record.finished:
        more += ", search included" if record.search.charged else ", SEARCH NOT CHARGED"
    return shown_epsilon(summary["epsilon"]), more


def _statement(record: RunRecord, summary: Mapping[str, Any]) -> str:
    if record.statement is not None:
        rendered = html.markdown(record.statement)
        # The particulars fold away; no other table can stand there, since the parser lets no HTML through.
        opened = '<details><summary>All particulars</summary><div class="scroll"><table>'
        return rendered.replace("<table>", opened).replace("</table>", "</table></div></details>")
    sentence = "The run wrote no privacy statement, because it did not end well."
    if summary["epsilon"] is not None:
        sentence += (
            f" Its ledger charges {summary['steps']} steps: what it released up to then is "
            f"({_epsilon(record, summary)[0]}, {summary['delta']:g})-differentially private."
        )
    return "<h2>Privacy statement</h2>" + html.text(sentence)


def _by_group(record: RunRecord) -> list[str]:
    """Figures of each group, where the result holds them, and on which records they were computed."""
    result, sections = record.result, []
    for name, figures in _mappings(result.get("by_group")).items():
        where = "On the test part, which is treated as public."
        sections.append(_group_section(f"Accuracy by group: {name}", where, figures, _accuracy_bars(name, figures)))
    released = result.get("group_counts")
    if isinstance(released, Mapping):
        where = f"On the training records, released with noise (standard deviation {released.get('noise_multiplier')})."
        title = f"Accuracy by group, released: {released.get('group_by')}"
        sections.append(_group_section(title, where + " The cost is part of epsilon.", released))
    sections += _gradients(result)
    for name, figures in _mappings(result.get("unsafe_by_group")).items():
        where = "Exact figures on the training records (--unsafe-diagnostics): they are NOT private."
        sections.append(_group_section(f"Accuracy by group, not private: {name}", where, figures))
    return sections


def _gradients(result: Mapping[str, Any]) -> list[str]:
    """Why: what clipping does to each group, and on which records that was seen."""
    sections = []
    for key, title, where in (
        ("gradients", "Clipping by group", "On the test part, which is treated as public, by the finished model."),
        (
            "clipped_counts",
            "Clipping by group, released",
            "On the training records, released with noise. The cost is part of epsilon.",
        ),
        (
            "unsafe_gradients",
            "Clipping by group, not private",
            "Exact figures on the training records (--unsafe-diagnostics): they are NOT private.",
        ),
    ):
        found = result.get(key)
        if isinstance(found, Mapping):
            titled = f"{title}: {found.get('group_by')}"
            sections.append(_group_section(titled, where, found, grouped_bars.figures(_gradient_charts(found))))
    return sections


def _gradient_charts(found: Mapping[str, Any]) -> list[GroupedBars]:
    charts = []
    lines = [line for line in found.get("groups") or [] if isinstance(line, Mapping)]
    for key, title, percent in (
        ("clipped_share", "Share of gradients that are clipped", True),
        ("direction_error", "How far clipping turns the group's mean gradient, in degrees", False),
    ):
        clipped = [
            None if (value := finite_or_none(line.get(key))) is None else Bar(value, *(line.get("interval") or ()))
            for line in lines
        ]
        if any(clipped):
            names = tuple(str(line.get("group")) for line in lines)
            series = (BarSeries("", tuple(clipped)),)
            charts.append(
                GroupedBars(name=key, title=title, y_label="", categories=names, series=series, percent=percent)
            )
    return charts


def _mappings(value: Any) -> dict[str, Mapping[str, Any]]:
    found = value if isinstance(value, Mapping) else {}
    return {str(name): item for name, item in found.items() if isinstance(item, Mapping)}


def _accuracy_bars(name: str, figures: Mapping[str, Any]) -> str:
    """Accuracy of each group of public test records with its interval; nothing where the figures are not of that form."""
    drawn = []
    for line in figures["groups"] if isinstance(figures.get("groups"), list) else []:
        known = line if isinstance(line, Mapping) else {}
        share, records = finite_or_none(known.get("accuracy")), finite_or_none(known.get("records"))
        if share is None or not 0 <= share <= 1 or records is None or records < 1:
            continue
        low, high = wilson(share, int(records))
        ends = (100 * (share if low is None else low), 100 * (share if high is None else high))
        drawn.append(bars.Bar(str(known.get("group")), 100 * share, *ends, f"{share:.2%}"))
    title = f"Accuracy by {name}, with 95 % intervals (Wilson)"
    return bars.draw_bars(title, drawn) if 1 < len(drawn) <= MOST_BARS else ""


def _group_section(title: str, where: str, figures: Mapping[str, Any], drawn: str = "") -> str:
    lines = figures.get("groups")
    lines = [line for line in lines if isinstance(line, Mapping)] if isinstance(lines, list) else []
    columns = list(dict.fromkeys(key for line in lines for key in line))
    others = [
        f"{key.replace('_', ' ')}: {_measure(value)}"
        for key, value in figures.items()
        if isinstance(value, Mapping) and "value" in value
    ]
    blocks = [html.text(where), *map(html.text, others), drawn]
    if columns:
        rows = [[_rounded(line.get(column)) for column in columns] for line in lines]
        blocks.append(html.table(columns, rows, caption="a line a group; press a heading to sort"))
    return html.section(title, *blocks)


def _measure(measure: Mapping[str, Any]) -> str:
    value, note = finite_or_none(measure.get("value")), measure.get("note")
    figure = "none" if value is None else short(value)
    interval = measure.get("interval")
    if isinstance(interval, list) and len(interval) == 2 and None not in map(finite_or_none, interval):
        figure += f", 95 % interval {short(interval[0])} to {short(interval[1])}"
    return f"{figure} ({note})" if note else figure


def _rounded(value: Any) -> Any:
    """Four decimals, for people; result.json holds the whole number."""
    exact = finite_or_none(value) if isinstance(value, float) else None
    if exact is not None:
        return html.Shown(exact, f"{exact:.4f}")
    return None if value is None else _shown(value)


def _metrics(record: RunRecord) -> list[str]:
    columns = list(dict.fromkeys(key for line in record.lines for key in line))
    every = math.ceil(len(record.lines) / MOST_ROWS)
    rows = [[line.get(column) for column in columns] for line in record.lines[::every]]
    note = "numbers as in the file; press a heading to sort"
    if every > 1:
        note += f"; every {every}th of {len(record.lines)} lines"
    return [html.table(columns, rows, caption=note)]


def _options(config: Mapping[str, Any]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for name, value in config.items():
        if isinstance(value, Mapping):
            rows += [[f"{name}.{key}", _shown(item)] for key, item in value.items()]
        else:
            rows.append([name, _shown(value)])
    return rows


def _shown(value: Any) -> Any:
    plain = isinstance(value, str | int | float | list) and not (isinstance(value, float) and not math.isfinite(value))
    return value if plain else str(value)


def _links(record: RunRecord, figures: list[Figure], beside: Path) -> list[tuple[str, str]]:
    way = os.path.relpath(record.path.resolve(), beside.resolve())
    links = [(name, quote(Path(way, name).as_posix())) for name in record.files]
    drawn = [f"report/{figure.name}.png" for figure in pictured(record, figures)]
    return links + [(name, quote(name)) for name in drawn]


def pictured(record: RunRecord, figures: list[Figure]) -> list[Figure]:
    """The charts of the page, each of which is a file too: what an attacker gains, and what moves over the run."""
    found = record.charged.attack if record.charged else None
    first = [attack_figure(found)] if found is not None and limits(found) else []
    return [*first, *(figure for figure in figures if not figure.constant)]


def _base(data: Any) -> str:
    """A data set of one's own is named by its file, not by the whole path."""
    return Path(str(data)).name if data else "unknown data"
