"""`clipwise methods`: the clipping methods side by side, and everything about one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from clipwise.cli import output

# Side queries and their shares depend a little on the run: those shown are asked in a run like this one.
BATCH, NOISE = 256.0, 1.0

_EXPLAINED = [
    (
        "before",
        "a noised mean and three noised histograms, of inputs and of gradient norms; then a race of five learning",
    ),
    ("", "rates, a quarter of the run each, on batches of a third at twice the noise, scored and thrown away"),
    ("then", "Adam at 0.6 of the rate that the race points to; late in the run it may rise; the average"),
    ("", "of the weights is released"),
    ("price", "inside the epsilon that was named: 2 to 4 % more noise on each step, and 42 % more computation"),
    ("", "look -> J      race -> rate                    train, and average"),
    ("", "[all records]  [r1][r2][r3][r4][r5] -> scores  [step][step][step] ... [step] -> weights"),
    ("", "'-- noise --'  '-- 2 x noise --'    '-noise-'   '----------- noise -----------'"),
    (
        "seen",
        "within a point of the best of a hand-tuned grid in 18 cells of 24, ahead of it in 12; bags of words lost 1 to 2",
    ),
    ("more", "docs/methods/auto.md: where the rate comes from, what was seen, where it loses"),
]


def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method's options and facts.")] = None,
    as_json: output.JsonOption = False,
) -> None:
    """The clipping methods side by side, or all about one."""
    from clipwise import validate
    from clipwise.clipping import METHODS

    if name is not None:
        validate.choice("method", name, METHODS)
        described = describe(name)
        if as_json:
            output.print_json(described)
        else:
            _print_one(described)
        return
    every = [describe(each) for each in METHODS]
    if as_json:
        output.print_json(every)
        return
    rows = [
        [
            m["name"],
            m["paper"],
            m["adapts"],
            _sides_in_short(m),
            tune_text(m),
            "sound" if m["sound"] else guarantee_text(m),
        ]
        for m in every
    ]
    columns = ["name", "paper", "adapts", "side queries", "left to tune", "guarantee"]
    output.print_table("clipping methods", columns, rows)
    typer.echo(
        "Side queries: name, l2 bound, noise multiplier, and share of the step's privacy budget, at batch "
        f"{BATCH:g} and noise multiplier {NOISE:g}.\nclipwise methods NAME: options and the reason of the guarantee."
    )


def _print_one(m: Mapping[str, Any]) -> None:
    facts = [
        ("reference", m["reference"]),
        ("adapts", m["adapts"]),
        ("side queries", f"{side_text(m)} (at batch {BATCH:g}, noise {NOISE:g})" if m["side_queries"] else "none"),
        ("left to tune", tune_text(m)),
        ("guarantee", guarantee_text(m)),
    ]
    if m["automatic"]:
        facts += _EXPLAINED
    if m["needs_groups"]:
        facts.append(("needs", "the group of each record; `clipwise train` takes the class"))
    typer.echo(f"{m['name']}: {m['summary']}\n")
    for what, value in facts:
        typer.echo(f"{what + ':' if what else '':14}{value}")
    if not m["sound"]:
        typer.echo("\nIt runs only when allowed by name, and its epsilon is reported as infinite.")
    typer.echo("")
    rows = [[o["name"], o["type"], o["default"], o["help"]] for o in m["options"]]
    output.print_table("options (--method-option NAME=VALUE)", ["name", "type", "default", "meaning"], rows)


def describe(name: str) -> dict[str, Any]:
    """A method's public facts. Its side queries are those it asks with default options, in a run of ordinary size."""
    from clipwise.accounting.joint import gradient_share
    from clipwise.clipping import METHODS, Context, make_method, method_options

    context = Context(
        expected_batch_size=BATCH, noise_multiplier=NOISE, parameters=10_000, steps=1000, sample_rate=0.01
    )
    kind = METHODS[name]
    sides = make_method(name).side_queries(context)
    return {
        "name": name,
        "summary": kind.summary,
        "paper": short_reference(kind.reference),
        "reference": kind.reference,
        "adapts": kind.adapts,
        "sound": kind.sound,
        "guarantee": kind.guarantee,
        "side_queries": [{**side._asdict(), "share": share(side.noise_multiplier)} for side in sides],
        "gradient_noise": gradient_share(NOISE, [side.noise_multiplier for side in sides]) / NOISE
        if kind.sound
        else None,
        "tune": [*kind.tune, *([] if kind.automatic else ["lr"])],  # a method that learns the rate starts at it
        "needs_groups": kind.needs_groups,
        "automatic": kind.automatic,
        "options": method_options(name),
    }


def share(noise_multiplier: float) -> float | None:
    """Of the step's budget, the sum over its queries of 1 / noise multiplier^2; None for a query without noise."""
    return NOISE**2 / noise_multiplier**2 if noise_multiplier else None


def short_reference(reference: str) -> str:
    """`Abadi et al., Deep Learning ..., CCS 2016` as `Abadi et al. 2016`."""
    year = re.search(r"\b((?:19|20)\d\d)$", reference)
    return re.split("[,:]", reference)[0] + (f" {year.group(1)}" if year else "")


def _sides_in_short(m: Mapping[str, Any]) -> str:
    return "; ".join(f"{q['name']} {', '.join(side_facts(q))}" for q in m["side_queries"]) or "none"


def side_text(m: Mapping[str, Any]) -> str:
    texts = []
    for q in m["side_queries"]:
        bound, noise, part = side_facts(q)
        texts.append(f"{q['name']}: l2 bound {bound}, noise multiplier {noise}, {part} of the budget")
    return "; ".join(texts) or "none"


def side_facts(query: Mapping[str, Any]) -> tuple[str, str, str]:
    """Bound, noise multiplier and share of the budget, for people."""
    part = "all" if query["share"] is None else f"{query['share']:.2%}"
    return f"{query['l2_bound']:g}".replace("inf", "infinite"), f"{query['noise_multiplier']:g}", part


def tune_text(m: Mapping[str, Any]) -> str:
    return ", ".join(m["tune"]) or "none"


def guarantee_text(m: Mapping[str, Any]) -> str:
    return ("sound: " if m["sound"] else "NO GUARANTEE: ") + m["guarantee"]
