"""The page and the part of it that changes, drawn from metrics.jsonl and path.jsonl as they are now."""

from __future__ import annotations

import hashlib
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from clipwise.lab.report import html
from clipwise.lab.report.figures import Figure, run_figures, short
from clipwise.lab.report.page import unchanged
from clipwise.lab.report.run_record import RunRecord, read_so_far
from clipwise.statement import shown_epsilon
from clipwise.types import BadArgument
from clipwise.validate import finite_or_none

_ON_TOP = (
    "epsilon",
    "accuracy",
    "test-loss",
    "threshold",
    "noise-multiplier",
    "lr",
)  # figures that have a tile already


class Part(NamedTuple):
    content: str
    version: str  # changes when the content does


def part(run: Path) -> Part:
    """What changes: where the run is, its figures, its charts. A file that cannot be read is said, and tried again."""
    try:
        record = read_so_far(run)
    except BadArgument as error:
        blocks = [html.warning(str(error))]
    else:
        blocks = _blocks(record)
    content = "\n".join(blocks)
    return Part(content, hashlib.sha256(content.encode()).hexdigest()[:16])


def whole(run: Path) -> str:
    now = part(run)
    body = [
        f"<header><h1>Watching {html.escape(run.name)}</h1>",
        f'<p class="under">{html.escape(str(run))}</p></header>',
        f'<div id="live" data-version="{now.version}">{now.content}</div>',
        '<p class="under" id="said" role="status">Looks again every 2 seconds.</p>',
        html.text(
            "Everything here is public, released with noise, or measured on test data. The page is served to this machine alone, and can "
            "change nothing."
        ),
    ]
    script = resources.files("clipwise.lab.watch").joinpath("watch.js").read_text(encoding="utf-8")
    return html.page(f"Clipwise: {run.name}", body, live=script)


def _blocks(record: RunRecord) -> list[str]:
    figures = run_figures(record.lines, record.steps, target_epsilon=record.target_epsilon, test_size=record.test_size)
    blocks = [*map(html.warning, record.problems), html.tiles(_tiles(record))]
    if not record.lines:
        blocks.append(html.text("No epoch has ended yet; the first line comes with it."))
    moving: list[Figure] = [figure for figure in figures if not figure.constant]
    others = unchanged([figure for figure in figures if figure.name not in _ON_TOP])
    return [*blocks, html.section("Over the run", html.charts(moving), html.tiles(others))] if figures else blocks


def _tiles(record: RunRecord) -> list[tuple[str, str, str]]:
    last: dict[str, Any] = dict(record.lines[-1]) if record.lines else {}
    state = "ended" if record.finished else "failed" if record.result else "training"
    epochs = record.config.get("epochs")
    done = last.get("epoch", 0)
    tiles = [("the run", state, f"epoch {done}" + (f" of {epochs}" if epochs else ""))]
    spent, target = finite_or_none(last.get("epsilon")), record.target_epsilon
    if spent is not None:
        delta = record.config.get("delta")
        of = [f"of {short(target)}" if target else "", f"at delta {delta:g}" if isinstance(delta, float) else ""]
        tiles.append(("epsilon", shown_epsilon(spent), " ".join(filter(None, of))))
    for key, name in (("accuracy", "accuracy"), ("test_loss", "loss on test data")):
        value = finite_or_none(last.get(key))
        if value is not None:
            tiles.append((name, f"{value:.2%}" if key == "accuracy" else short(value), "on test data"))
    for key, name in (("threshold", "threshold"), ("noise_multiplier", "noise multiplier"), ("lr", "learning rate")):
        value = finite_or_none(last.get(key))
        if value is not None:
            tiles.append((name, short(value), "now"))
    return tiles
