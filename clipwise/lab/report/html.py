"""The building blocks of a page: one self-contained file, without network, light and dark, printable.

Every text is escaped here. The policy in the head allows the page's own style and script by their hashes and nothing
else, so that text from a run folder cannot run or fetch anything even if it slipped through.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple

from markdown_it import MarkdownIt

from clipwise.lab.report import svg
from clipwise.lab.report.figures import Figure


def page(title: str, body: Sequence[str], *, live: str = "") -> str:
    """The page. `live` is a script of a page that is served: it may ask its own server for more, and nobody else."""
    style = svg.CSS + _asset("page.css")
    script = _asset("page.js") + live
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'"
    policy += "; connect-src 'self'" if live else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><title>{escape(title)}</title><style>{style}</style></head>\n<body>\n'
        + "\n".join(body)
        + f"\n<script>{script}</script></body></html>\n"
    )


def section(title: str, *blocks: str) -> str:
    return f"<section><h2>{escape(title)}</h2>\n" + "\n".join(blocks) + "</section>"


def side_by_side(*blocks: str) -> str:
    return '<div class="pair">' + "".join(blocks) + "</div>"


def text(sentence: str) -> str:
    return f"<p>{escape(sentence)}</p>"


def warning(sentence: str) -> str:
    return f'<p class="warning" role="alert">{escape(sentence)}</p>'


def details(summary: str, *blocks: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>\n" + "\n".join(blocks) + "</details>"


def tiles(entries: Sequence[tuple[str, str, str]]) -> str:
    """Figures in large type: (what, value, a word more)."""
    return (
        '<dl class="tiles">'
        + "".join(
            f"<div><dt>{escape(what)}</dt><dd>{escape(value)}<small>{escape(more)}</small></dd></div>"
            for what, value, more in entries
        )
        + "</dl>"
    )


class Shown(NamedTuple):
    """A number for a table of people: rounded, all of a column alike."""

    number: float
    text: str


class Link(NamedTuple):
    """A text in a table that leads to a file beside the page."""

    text: str
    address: str


def charts(figures: Sequence[Figure], *, wide: bool = False) -> str:
    """Charts side by side as they fit, or (`wide`) one below the other, for those with many lines."""
    kind, size = ("charts wide", (860, 400)) if wide else ("charts", (560, 280))
    return f'<div class="{kind}">' + "".join(chart(figure, *size) for figure in figures) + "</div>"


def chart(figure: Figure, width: int = 560, height: int = 280) -> str:
    """A figure with a cursor that follows the pointer and the arrow keys."""
    note = f" <small>{escape(figure.note)}</small>" if figure.note else ""
    return (
        f"<figure><figcaption>{escape(figure.title)}{note}</figcaption>"
        f'<div class="chart" tabindex="0" role="group" aria-label="{escape(figure.title)}; arrow keys read the values" '
        f'data-points="{escape(svg.cursor_points(figure, width=width, height=height))}">'
        f"{svg.draw(figure, width=width, height=height)}<output hidden></output></div></figure>"
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[Any]], *, caption: str) -> str:
    """A table that sorts by the heading that is pressed. Numbers stand as in JSON, in full; None is an empty cell."""
    numeric = [all(row[place] is None or _is_number(row[place]) for row in rows) for place in range(len(columns))]
    head = "".join(
        f'<th scope="col"{_number_class(right)}><button type="button">{escape(column)}</button></th>'
        for column, right in zip(columns, numeric, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row, numeric)) + "</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table class="sortable">'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cell(value: Any, numeric: bool) -> str:
    """In a column of numbers, digits stand under digits."""
    if isinstance(value, Link):
        return f'<td><a href="{escape(value.address)}">{escape(value.text)}</a></td>'
    if isinstance(value, Shown):
        value = value.text
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
    return f"<td{_number_class(numeric)}>{escape(text)}</td>"


def _number_class(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Shown) and not isinstance(value, bool)


def links(entries: Sequence[tuple[str, str]]) -> str:
    """(text, address) of files beside the page."""
    return (
        '<ul class="links">'
        + "".join(f'<li><a href="{escape(address)}">{escape(what)}</a></li>' for what, address in entries)
        + "</ul>"
    )


def markdown(source: str) -> str:
    """Markdown without HTML or images; its headings go one level down, since the page has its own."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable("image")
    tokens = parser.parse(source)
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    return str(parser.renderer.render(tokens, parser.options, {}))


def _asset(name: str) -> str:
    return resources.files("clipwise.lab.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
