"""For studies whose epsilon pays for a search: how each variant's budget was shared, and how long its whole search takes.

Trained was one candidate of each search, at the noise that every candidate gets. The time is that run's, times the number
of runs that the search makes on average (as in DC-SGD, Table I).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

PAID = (
    "The epsilon of a column is that of the whole search: with it, every candidate of a row trains, and the best one is shown. "
    "What was run is one candidate of each row, named before any run, at the noise that each candidate gets; the figure is its "
    "accuracy, not that of the best candidate."
)
_Line = Mapping[str, Any]


def tuning_section(lines: Sequence[_Line]) -> list[str]:
    """Markdown, by lines; empty for a study without a search."""
    if not any("tuning" in line for line in lines):
        return []
    return ["## The budget of one run", "", *_noise(lines), "", "## Time to a tuned model", "", *_time(lines), ""]


def _noise(lines: Sequence[_Line]) -> list[str]:
    private = [line for line in lines if line["target_epsilon"] is not None]
    epsilons = sorted({line["target_epsilon"] for line in private})
    rows = [
        "Noise multiplier of each run, and in brackets its own epsilon, as if there had been no search.",
        "",
        f"| method | strategy | candidates | the one that was run | {' | '.join(f'epsilon {epsilon:g}' for epsilon in epsilons)} |",
        f"| --- | --- | ---: | --- |{' ---: |' * len(epsilons)}",
    ]
    for variant, own in _by_variant(private).items():
        of = {line["target_epsilon"]: line for line in own}
        plan = own[0].get("tuning", {})
        cells = [_budget(of[epsilon]) if epsilon in of else "" for epsilon in epsilons]
        shared = f"{plan.get('strategy', 'no search')} | {plan.get('candidates', 1)}"
        rows.append(f"| {variant} | {shared} | {_options(own[0])} | {' | '.join(cells)} |")
    return rows


def _options(line: _Line) -> str:
    """What the study file gave the run: its method's options and its learning rate."""
    given = {**(line.get("asked_method_options") or {}), "lr": line.get("asked_lr")}
    return ", ".join(f"{name} {value:.3g}" for name, value in given.items() if isinstance(value, int | float))


def _budget(line: _Line) -> str:
    alone = line.get("epsilon_of_run", line["epsilon"])
    return f"{line['noise_multiplier']:.3f} ({'no guarantee' if alone is None else f'{alone:.2f}'})"


def _time(lines: Sequence[_Line]) -> list[str]:
    variants = _by_variant([line for line in lines if line["target_epsilon"] is not None])
    first = next(iter(variants))
    whole = {variant: _runs(own) * _seconds(own) for variant, own in variants.items()}
    rows = [
        "Seconds of one run (its process from start to end on this machine, the median of those in results.jsonl) times the runs of the "
        f"search, on average; the ratio is to *{first}*. Runs are not timed side by side: a machine that others use skews it.",
        "",
        "| method | seconds a run | runs | seconds in all | ratio |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for variant, own in variants.items():
        ratio = f"{whole[variant] / whole[first]:.3f}" if whole[first] else ""
        rows.append(f"| {variant} | {_seconds(own):.1f} | {_runs(own):g} | {whole[variant]:.0f} | {ratio} |")
    return rows


def _by_variant(lines: Sequence[_Line]) -> dict[str, list[_Line]]:
    groups: dict[str, list[_Line]] = {}
    for line in lines:
        groups.setdefault(line["variant"], []).append(line)
    return groups


def _runs(lines: Sequence[_Line]) -> float:
    return float(lines[0].get("tuning", {}).get("runs", 1))


def _seconds(lines: Sequence[_Line]) -> float:
    return statistics.median(line["seconds"] for line in lines)
