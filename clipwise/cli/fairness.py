"""`clipwise fairness`: what privacy costs each group, by method and epsilon."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clipwise.cli import output
from clipwise.cli.study import AsItIs, found_there, run_and_tell, some_failed
from clipwise.types import BadArgument

if TYPE_CHECKING:
    from clipwise.lab.fairness.study import Pair
    from clipwise.lab.study import Study

METHODS = "fixed,dpsgd-f,global,global-adapt,global-adapt-v2"


def fairness(
    file: Annotated[
        Path | None, typer.Argument(help="A study file with the methods and their options, instead of the options.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="A name from `clipwise data`; unbalanced-mnist by default.")] = None,
    methods: Annotated[str | None, typer.Option(help=f"Names from `clipwise methods`; {METHODS} by default.")] = None,
    epsilon: Annotated[str | None, typer.Option(help="Budgets, such as 1,3,5,8,10 (the default).")] = None,
    groups: Annotated[
        list[str] | None, typer.Option(help="Two groups to compare, such as 2,8; may be given several times.")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="class (the default), or a grouping of the data set, such as sex.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each, with seeds 0, 1, ...; 3 by default.")] = None,
    model: Annotated[str | None, typer.Option(help="A name from `clipwise models`.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Expected passes over the data.")] = None,
    batch: Annotated[int | None, typer.Option(help="Expected batch size.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    delta: Annotated[float | None, typer.Option(help="Below 1 / number of records.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The file's short version.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; by default, one a core.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go; an earlier study there goes on.")] = None,
    publish: Annotated[
        Path | None, typer.Option(help="Also write the table, JSON, pictures and lines to this folder.")
    ] = None,
    as_it_is: AsItIs = False,
    as_json: output.JsonOption = False,
) -> None:
    """Compare methods by what privacy costs each group: a table, JSON and pictures, with intervals."""
    from clipwise.lab.fairness import show
    from clipwise.lab.fairness.study import compare
    from clipwise.lab.report import grouped_bars, plots
    from clipwise.lab.report.figures import Figure
    from clipwise.training.folder import finite

    options = {"data": data, "model": model, "epochs": epochs, "batch": batch, "lr": lr, "delta": delta}
    options = {name: value for name, value in options.items() if value is not None}
    if file is not None:
        _refuse({**options, "methods": methods, "epsilon": epsilon, "seeds": seeds, "group_by": group_by})
        made = _from_file(file, quick)
    elif quick:
        raise BadArgument("quick: only a study file has a short version; give fewer seeds or epochs")
    else:
        made = _from_options(
            options, methods or METHODS, epsilon or "1,3,5,8,10", 3 if seeds is None else seeds, group_by
        )
    grouping, pairs = _check_groups(made, groups or [])
    folder = out or Path("runs") / f"{made.name}{'-quick' if quick else ''}"
    lines, failures = (found_there(made, folder), []) if as_it_is else run_and_tell(made, folder, jobs)
    if not lines:
        raise some_failed(made, failures)
    rows = compare(made, lines, folder, group_by=grouping, pairs=pairs)
    command = _command(file, options, methods, epsilon, groups or [], group_by, seeds, quick)
    made.about(command).write(folder)  # `clipwise report` draws the folder as it does any study
    drawn: list[tuple[Any, Any]] = [
        *((chart, plots.png if isinstance(chart, Figure) else grouped_bars.png) for chart in show.to_charts(rows)),
        *((bars, grouped_bars.png) for bars in show.to_bars(rows)),
    ]
    pictures = {f"{chart.name}.png": png(chart) for chart, png in drawn}
    alts = {f"{chart.name}.png": chart.alt() for chart, _ in drawn}
    found = finite(
        {
            "study": made.name,
            "command": command,
            "group_by": grouping,
            "out": str(folder),
            "finished": len(lines),
            "failed": len(failures),
            "pictures": alts,
            "rows": [row.to_dict() for row in rows],
        }
    )

    def page(prefix: str) -> bytes:
        named = {f"{prefix}{file}": alt for file, alt in alts.items()}
        return show.to_markdown(made, rows, command, grouping, named).encode()

    files = {"fairness.md": page(""), "fairness.json": (json.dumps(found, indent=1) + "\n").encode(), **pictures}
    _write(folder, files)
    if publish is not None:
        _publish(folder, [*files, "results.jsonl"], publish, made.name, page(f"{made.name}-"))
    if as_json:
        output.print_json(found)
        raise typer.Exit(1 if failures else 0)
    output.print_table(made.title, *show.short_table(rows))
    output.messages().print(show.EXPLANATION, markup=False, highlight=False)
    typer.echo("\n".join(f"written  {folder / name}" for name in files))
    if failures:
        raise some_failed(made, failures)


def _refuse(given: dict[str, Any]) -> None:
    for name, value in given.items():
        if value is not None:
            raise BadArgument(f"{name}={value!r}: the study file decides that; leave it out, or leave out the file")


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _publish(folder: Path, names: list[str], to: Path, prefix: str, page: bytes) -> None:
    to.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(folder / name, to / f"{prefix}-{name}")
    (to / f"{prefix}-fairness.md").write_bytes(page)  # whose pictures have the prefix too


def _from_file(file: Path, quick: bool) -> Study:
    from clipwise.lab.study import read_study

    made = read_study(file, quick=quick)
    if made.keyed == "noise":
        raise BadArgument(
            f"study={str(file)!r} states noise_multiplier, and gaps are compared at equal epsilons; state epsilon"
        )
    if not any(trial.config.epsilon == float("inf") for trial in made.trials):
        raise BadArgument(
            f"study={str(file)!r} has no variant without privacy to compare with; add one with epsilon = inf"
        )
    return made


def _from_options(options: Mapping[str, Any], methods: str, epsilon: str, seeds: int, group_by: str | None) -> Study:
    from clipwise import validate
    from clipwise.lab.fairness.study import WITHOUT
    from clipwise.lab.study import make_study

    common = {"data": "unbalanced-mnist", **options, **({} if group_by is None else {"group_by": group_by})}
    name = f"fairness-{Path(common['data']).stem}"
    chosen = list(dict.fromkeys(word.strip() for word in methods.split(",") if word.strip()))
    if not chosen:
        raise BadArgument(
            f"methods={methods!r} names none; give some from `clipwise methods`, with commas between them"
        )
    try:
        budgets = [float(word) for word in epsilon.split(",")]
    except ValueError as error:
        raise BadArgument(f"epsilon={epsilon!r} is no list of numbers; write it as 1,3,8") from error
    values = {
        "title": f"What privacy costs each group of {common['data']}",
        "tuning": "none: every option that is not in the command is a default",
        "common": common,
        "grid": {"epsilon": budgets, "seed": list(range(validate.count("seeds", seeds)))},
        "variant": [{"name": WITHOUT, "epsilon": float("inf")}, *({"name": m, "method": m} for m in chosen)],
    }
    return make_study(values, Path(name))


def _check_groups(study: Study, texts: list[str]) -> tuple[str, list[Pair]]:
    """The grouping of the study and the pairs to compare, before anything runs."""
    from clipwise.data import DATASETS, is_file, load
    from clipwise.data.grouping import BY_CLASS, find_grouping, group_index

    asked = {trial.config.group_by for trial in study.trials}
    if len(asked) > 1:
        raise BadArgument(f"group_by: the study has {', '.join(sorted(asked))}; one comparison has one grouping")
    grouping = asked.pop()
    pairs: list[Pair] = []
    for text in texts:
        a, comma, b = (part.strip() for part in text.partition(","))
        if not comma or not a or not b or a == b:
            raise BadArgument(f"groups={text!r} is not a pair; write two different groups, such as 2,8")
        pairs.append((a, b))
    for name, config in {trial.config.data: trial.config for trial in study.trials}.items():
        if is_file(name):
            loaded = load(name, **config.own)
            names = find_grouping(loaded, grouping).names
        elif grouping == BY_CLASS:
            names = DATASETS[name].class_names
        elif grouping in DATASETS[name].groups:
            names = DATASETS[name].groups[grouping]
        else:
            known = ", ".join((BY_CLASS, *DATASETS[name].groups))
            raise BadArgument(f"group_by={grouping!r} is no grouping of {name}; choose one of {known}")
        for pair in pairs:
            for group in pair:
                group_index(names, group, name)
        if not texts and len(names) == 2:
            pairs = [(names[0], names[1])]
    return grouping, pairs


def _command(
    file: Path | None,
    options: Mapping[str, Any],
    methods: str | None,
    epsilon: str | None,
    groups: list[str],
    group_by: str | None,
    seeds: int | None,
    quick: bool,
) -> str:
    words = ["clipwise", "fairness", *([] if file is None else [str(file)])]
    named = {**options, "methods": methods, "epsilon": epsilon, "group-by": group_by, "seeds": seeds}
    for name, value in named.items():
        words += [] if value is None else [f"--{name}", str(value)]
    for pair in groups:
        words += ["--groups", pair]
    return shlex.join([*words, *(["--quick"] if quick else [])])
