"""The rows of a comparison as two tables, time and memory: a line a model, a column a method."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any, NamedTuple

from clipwise.lab.bench.compare import OURS, Comparison

_HOW = """\
Each figure is a ratio to the plain step (zero_grad, forward, loss, backward, SGD step) of the same model, weights and
batch.

- **Time**: all methods run in one process, each once a round, in turning order; the figure is the median over the
  rounds of the ratio to the plain step *of the same round*. The batch is fixed at its nominal size and in memory: no
  data loading, ours (Poisson draw) or theirs, is timed. The first rounds are not counted; the column "first step" is what
  our very first one took, in plain steps: it looks at the model. glibc keeps freed
  buffers for re-use (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_), for every method alike. A model during which other
  processes, or other guests of the same host, took over 10 % of the processors is timed again, up to three times; the
  quietest counts, whatever its times.
- **Clipwise** runs through `clipwise.attach`: fixed threshold 1, noise multiplier 1, AES noise, ledger written to
  disk.
- **Split batches**: the figure is a ratio to our own step on the whole batch, unsplit, in the same round; targets too. The loading
  of the parts is not timed. Opacus' parts are those of its BatchMemoryManager.
- **Opacus** clips at the same threshold and draws its noise from torch's ordinary generator (its secure mode is off,
  which is faster). nn.LSTM and nn.MultiheadAttention, which it cannot handle, are replaced by its DPLSTM and
  DPMultiheadAttention.
- **Release**: with `--release`, an earlier version's step, timed by itself in a process of its own, in the same rounds; its memory is not measured.
- **Memory**: a fresh process for each figure: peak resident memory (VmHWM) of making the model and two steps, over the
  resident memory once the method's own library is imported (which favours one that imports much). Weights, gradients, activations and what libraries load on first use
  count. The second table is stricter: how much the second step alone grew beyond the state before it, so that what every method needs alike does not dilute the ratio. The target is for the first.
"""


SLOWER = 1.05  # over an earlier release: within it, two runs of the same code may differ on a machine of others


class Section(NamedTuple):
    title: str
    columns: list[str]
    cells: list[list[str]]


def sections(comparison: Comparison) -> list[Section]:
    methods = list(dict.fromkeys(row["method"] for row in comparison.rows))
    peers = [m for m in methods if m not in ("plain", "unsplit", OURS)]
    models: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in comparison.rows:
        models.setdefault(row["model"], {})[row["method"]] = row
    whole = {name: of for name, of in models.items() if "plain" in of}
    split = {name: of for name, of in models.items() if "unsplit" in of}
    titles = ("step time / plain step", "peak memory / plain training's", "growth of a single step / plain step's")
    tables = _tables(whole, "plain", peers, titles) if whole else []
    of_splits = ("time of a split step / unsplit", "peak memory of a split step / unsplit")
    return tables + (_tables(split, "unsplit", peers, of_splits) if split else [])


def _tables(
    models: Mapping[str, Mapping[str, Mapping[str, Any]]], base: str, peers: list[str], titles: tuple[str, ...]
) -> list[Section]:
    names = [peer.replace("-", " ") for peer in peers]
    time_columns = ["model", f"{base} ms", OURS, "target", *names, "first step"]
    memory_columns = ["model", f"{base} MB", OURS, "target", *names]
    growth_columns = ["model", f"{base} MB", OURS, *names]
    time_cells, memory_cells, growth_cells = [], [], []
    for model, of in models.items():
        plain, ours = of[base], of[OURS]
        first = _ratio(ours.get("first_step_ms"), plain.get("time_ms"))
        time_cells.append(
            [
                model,
                _number(plain.get("time_ms"), 1),
                _figure(ours, "time_ratio"),
                _target(ours["time_target"], ours["time_met"]),
                *(_figure(of[p], "time_ratio") for p in peers),
                _number(first, 1),
            ]
        )
        memory_cells.append(
            [
                model,
                _figure(plain, "memory_mb", places=0),
                _figure(ours, "memory_ratio"),
                _target(ours["memory_target"], ours["memory_met"]),
                *(_figure(of[p], "memory_ratio") for p in peers),
            ]
        )
        growth_cells.append(
            [
                model,
                _number(plain.get("growth_mb"), 0),
                *(_number(of[m].get("growth_ratio"), 2) for m in (OURS, *peers)),
            ]
        )
    columns, cells = (time_columns, memory_columns, growth_columns), (time_cells, memory_cells, growth_cells)
    return [Section(*of) for of in zip(titles, columns, cells, strict=False)]


def clipping_sections(comparison: Comparison) -> list[Section]:
    """One table: a line a clipping method, two columns a model."""
    models = list(dict.fromkeys(row["model"] for row in comparison.rows))
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in comparison.rows:
        rows.setdefault(row["clipping"], {})[row["model"]] = row
    cells = []
    for name, of in rows.items():
        figures = [(_figure(of[m], "time_ratio"), _target(of[m]["target"], of[m]["met"])) for m in models]
        cells.append([name, *(cell for pair in figures for cell in pair)])
    columns = ["method", *(head for model in models for head in (model, "target"))]
    return [Section("step time / step time of `fixed`", columns, cells)]


def clipping_markdown(comparison: Comparison, command: str) -> str:
    how = (
        "Each figure is the median over the rounds of the method's step over the step of `fixed` *in the same "
        "round*; all run through `clipwise.attach`, on the same model, batch and kernels, with AES noise and the "
        "ledger on disk.\n"
    )
    title = "What each clipping method adds to a private step"
    return document(title, comparison, command, how, clipping_sections(comparison))


def notes(comparison: Comparison) -> list[str]:
    """What a method had to say of a model, each once."""
    ours = [row for row in comparison.rows if row["method"] == OURS]
    against = [row["faster_than_peers"] for row in ours if row["faster_than_peers"] is not None]
    ranks = (
        [f"Clipwise was faster than every other private method on {sum(against)} of {len(against)} models."]
        if against
        else []
    )
    earlier = {row["model"]: row["ours_over_it"] for row in comparison.rows if "ours_over_it" in row}
    if earlier:
        slower = [f"{model} ({ratio:.2f})" for model, ratio in earlier.items() if ratio > SLOWER]
        ranks.append(
            f"A step over that of the release, in the same rounds: {', '.join(f'{m} {r:.2f}' for m, r in earlier.items())}. Slower by more "
            f"than {SLOWER - 1:.0%}: {', '.join(slower) or 'none'}."
        )
    rounds = [f"{row['model']} {row['rounds']}" for row in ours if row.get("rounds")]
    ranks += [f"Rounds that were counted: {', '.join(rounds)}."] if rounds else []
    taken = [row["others"] for row in ours if row.get("others")]
    if "clock" in comparison.machine and taken:
        ranks.append(f"Other processes took {min(taken):.0%} to {max(taken):.0%} of the processors meanwhile.")
    said = [f"{row['model']}, {row['method']}: {row['note']}" for row in comparison.rows if row.get("note")]
    return [*comparison.notices, *ranks, *dict.fromkeys(said)]


def markdown(comparison: Comparison, command: str) -> str:
    page = document("What a private step costs", comparison, command, _HOW, sections(comparison))
    said = notes(comparison)
    return page + ("\n## Notes\n\n" + "\n".join(f"- {note}" for note in said) + "\n" if said else "")


def document(title: str, comparison: Comparison, command: str, how: str, tables: list[Section]) -> str:
    """A page of tables, with how they were made."""
    return "\n".join([f"# {title}\n", _made_by(comparison, command), how, *(_table(table) for table in tables)])


def _made_by(comparison: Comparison, command: str) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    machine = comparison.machine
    where = f"{machine['cpu']}, {machine['cores']} cores, {machine['threads']} threads, {machine['system']}"
    if machine.get("device", "cpu") != "cpu":
        where += f"; on {machine['device']}"
    load = f"; load {machine['load']:.1f} at the start" if "load" in machine else ""
    clock = f"; times are {machine['clock']}" if "clock" in machine else ""
    return f"Made by `{command}` on {date.today().isoformat()}. {versions}; {where}{load}{clock}.\n"


def _table(section: Section) -> str:
    lines = [section.columns, ["---"] * len(section.columns), *section.cells]
    rows = ["| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines]
    return f"## {section.title[0].upper()}{section.title[1:]}\n\n" + "\n".join(rows) + "\n"


def _figure(row: Mapping[str, Any], key: str, places: int = 2) -> str:
    missing = row.get("failed") or (row.get("memory_failed") if key.startswith("memory") else None)
    return f"failed: {missing}" if missing else _number(row.get(key), places)


def _number(value: float | None, places: int) -> str:
    return "-" if value is None else f"{value:.{places}f}"


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def _target(target: float | None, met: bool | None) -> str:
    return "-" if target is None else f"{target:.2f} {'?' if met is None else 'ok' if met else 'NO'}"
