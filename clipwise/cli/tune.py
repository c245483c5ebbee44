"""`clipwise tune`: a search over options whose privacy is part of the budget."""

from __future__ import annotations

import math
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel

from clipwise.cli import output
from clipwise.cli.options import takes_run_options
from clipwise.types import BadArgument, ClipwiseError

if TYPE_CHECKING:
    from clipwise.lab.tuning.outcome import Tuned
    from clipwise.lab.tuning.planning import SearchPlan


@takes_run_options(
    (
        "data",
        "model",
        "method",
        "epsilon",
        "delta",
        "schedule",
        "epochs",
        "expected_batch_size",
        "lr",
        "optimizer",
        "seed",
    ),
    help={
        "epsilon": "The budget of the whole search, 3 by default.",
        "schedule": "Of the noise; see `clipwise train --help`.",
        "epochs": "Of each run.",
    },
)
def tune(
    *,
    search: Annotated[
        list[str] | None,
        typer.Option(help="What to try, NAME=V1,V2,...; an option of the run or of the method; again for each name."),
    ] = None,
    strategy: Annotated[
        str, typer.Option(help="grid-rdp, liu-talwar, repeat-select, exponential, public or none.")
    ] = "grid-rdp",
    method_option: Annotated[list[str] | None, typer.Option(help="An option of the method, NAME=VALUE.")] = None,
    config: Annotated[Path | None, typer.Option(help="A file of further options of `clipwise train`.")] = None,
    score: Annotated[
        str | None, typer.Option(help="What chooses: public (the test part) or held-out (protected, and charged).")
    ] = None,
    held_out: Annotated[float | None, typer.Option(help="Share of the records that score, 0.1 by default.")] = None,
    public_data: Annotated[str | None, typer.Option(help="Where strategy public searches.")] = None,
    draw: Annotated[str, typer.Option(help="grid, random or quasi-random (the latter two by Optuna).")] = "grid",
    candidates: Annotated[int | None, typer.Option(help="How many to draw, if not a grid.")] = None,
    repetitions: Annotated[
        str | None, typer.Option(help="Of repeat-select: poisson, geometric (default), logarithmic, or a shape.")
    ] = None,
    mean_runs: Annotated[float | None, typer.Option(help="Of repeat-select; one a candidate by default.")] = None,
    uncharged: Annotated[
        bool, typer.Option("--uncharged", help="Allow strategy none: no guarantee covers it.")
    ] = False,
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Show what it would cost, and stop.")] = False,
    samples: Annotated[
        int | None, typer.Option(help="Records, for a plan without data (with --batch, --steps).")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Of each run, for a plan without data.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Runs at once; by default, one a core.")] = None,
    executor: Annotated[str, typer.Option(help="Where they run: local (this machine) or ray (a cluster).")] = "local",
    yes: Annotated[bool, typer.Option("--yes", help="Spend the budget without asking.")] = False,
    out: Annotated[
        str | None, typer.Option(help="The folder of the search, a new one; or one that was cut, which goes on.")
    ] = None,
    as_json: output.JsonOption = False,
    **given: Any,
) -> None:
    """Find good options within a total budget that pays for the search as well; killed, it goes on where it stopped."""
    from clipwise.cli.train import merged, parse_option
    from clipwise.lab.tuning.candidates import parse_axis
    from clipwise.lab.tuning.executors import get_executor
    from clipwise.lab.tuning.record import is_cut
    from clipwise.lab.tuning.runner import run
    from clipwise.lab.tuning.search import prepare
    from clipwise.training.config import read_config

    get_executor(executor)  # refused now, before data is read
    epsilon, delta = given.pop("epsilon"), given.pop("delta")
    given["method_options"] = dict(map(parse_option, method_option or [])) or None
    given = {name: value for name, value in given.items() if value is not None}
    file = {} if config is None else read_config(config)
    axes = list(map(parse_axis, search or []))
    if len(dict(axes)) < len(axes):
        raise BadArgument(
            f"--search names {[name for name, _ in axes]}: one of them twice; list its values in one place"
        )
    options = {
        name: value for name, value in merged(file, given).items() if name not in ("epsilon", "noise_multiplier")
    }
    prepared = prepare(
        options,
        dict(axes),
        epsilon=_first(epsilon, file.get("epsilon"), 3.0),
        delta=_first(delta, file.get("delta"), None),
        strategy=strategy,
        score=score,
        held_out=held_out,
        public_data=public_data,
        draw=draw,
        candidates=candidates,
        repetitions=repetitions,
        mean_runs=mean_runs,
        uncharged=uncharged,
        samples=samples,
        steps=steps,
    )
    plan, console = prepared.plan, output.messages()
    if plan_only:
        output.print_json(plan.to_dict()) if as_json else _show(plan, Console())
        return
    if not as_json:
        _show(plan, console)
    if not yes:
        _ask(somebody=not as_json and sys.stdin.isatty())

    def on_end(done: int, total: int) -> None:
        console.print(f"[{done}/{total}] runs have ended", highlight=False, markup=False)

    if out is not None and is_cut(Path(out)):
        console.print(f"{out} holds a search that was cut; it goes on, and nothing is charged twice", highlight=False)
    if not plan.strategy.losers_are_public:
        console.print("running; how many runs there are stays secret", highlight=False)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the runs under way, as Ctrl-C does
    tuned = run(prepared, out=out, jobs=jobs, executor=executor, on_end=on_end)
    output.print_json(tuned.result) if as_json else _tell(tuned, plan)


def _ask(*, somebody: bool) -> None:
    if not somebody:
        raise BadArgument("yes=False: nobody is there to ask; look at --plan-only, then say --yes")
    if not typer.confirm("Spend it?", err=True):
        raise ClipwiseError("nothing was spent")


def _tell(tuned: Tuned, plan: SearchPlan) -> None:
    accuracy = tuned.result["accuracy"]
    rows = [
        f"chosen     {', '.join(f'{name}={value}' for name, value in tuned.chosen.items())}",
        f"accuracy   {'no test data' if accuracy is None else f'{accuracy:.2%} on test data'}",
        f"privacy    epsilon = {output.rounded_up(plan.epsilon_total)} at delta = {plan.delta:g}, "
        + ("search included" if plan.strategy.charged else "SEARCH NOT CHARGED"),
        f"one run    epsilon = {output.rounded_up(plan.epsilon_per_run)} without the search",
        f"folder     {tuned.path}",
        f"statement  {tuned.path / 'statement.md'}",
    ]
    Console().print(Panel("\n".join(rows), title="clipwise tune", title_align="left", expand=False), markup=False)


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _show(plan: SearchPlan, console: Console) -> None:
    runs = f"{plan.runs:g}"
    if plan.runs_at_most != plan.runs:
        most = "no limit" if plan.runs_at_most is None else f"at most {plan.runs_at_most}"
        runs += f" on average, {most}; the number stays secret"
    rows = [
        f"strategy   {plan.strategy.name}: {plan.strategy.summary}",
        f"runs       {runs}, over {len(plan.candidates)} candidates",
        f"noise      {output.rounded_up(plan.noise_multiplier)} in each run "
        f"({output.rounded_up(plan.noise_multiplier_untuned)} would do without a search)",
        f"one run    epsilon = {output.rounded_up(plan.epsilon_per_run)}",
        f"in all     epsilon = {output.rounded_up(plan.epsilon_total)} of {plan.target_epsilon:g} at delta = {plan.delta:g}"
        + ("" if plan.strategy.charged else "; THE SEARCH IS NOT CHARGED"),
        "chosen by  "
        + (
            "accuracy on the test part, which is taken as public"
            if plan.score == "public"
            else "records kept back, charged"
        ),
    ]
    if plan.score_noise is not None and math.isfinite(plan.score_noise):
        rows.append(f"           with noise of deviation {plan.score_noise:.4g} on each count of errors")
    console.print(Panel("\n".join(rows), title="plan of the search", title_align="left", expand=False), markup=False)
