"""Writes the worked examples of docs/fairness.md from the studies' results. Run, in this order:

    clipwise fairness studies/fairness_unbalanced_mnist.toml --groups 2,8 --publish docs/results
    clipwise fairness studies/fairness_unbalanced_mnist_longer.toml --groups 2,8 --publish docs/results
    clipwise fairness studies/fairness_adult.toml --publish docs/results
    .venv/bin/python docs/make_fairness.py

Every figure and every sentence between the markers comes from docs/results/*-fairness.json; a study that has not been run
says so there.
"""

import json
from pathlib import Path

DOCS = Path(__file__).parent
PAGE = DOCS / "fairness.md"
BEGIN, END = "<!-- made by docs/make_fairness.py -->\n", "<!-- end -->"
STUDIES = {
    "Unbalanced MNIST": (
        "fairness_unbalanced_mnist",
        "clipwise fairness studies/fairness_unbalanced_mnist.toml --groups 2,8",
    ),
    "Unbalanced MNIST, trained for longer": (
        "fairness_unbalanced_mnist_longer",
        "clipwise fairness studies/fairness_unbalanced_mnist_longer.toml --groups 2,8",
    ),
    "Adult": ("fairness_adult", "clipwise fairness studies/fairness_adult.toml"),
}
BASELINE = "fixed"  # the variant that others are held against
FAR = 0.05  # below the best accuracy: a method that does not work at this epsilon
PICTURES = ("gap-1.png", "lowest-group.png", "clipped-share.png", "direction-error.png", "kept.png")


def block() -> str:
    parts = []
    for title, (name, command) in STUDIES.items():
        file = DOCS / "results" / f"{name}-fairness.json"
        parts += [f"### {title}", ""]
        if file.exists():
            parts += section(json.loads(file.read_text(encoding="utf-8")), name)
        else:
            parts += [f"Not run yet: `{command} --publish docs/results`, then `docs/make_fairness.py`.", ""]
    return "\n".join(parts).rstrip() + "\n"


def section(found, name):
    """The study in words, a table and pictures."""
    plain = [row for row in found["rows"] if row["target_epsilon"] is None]
    private = [row for row in found["rows"] if row["target_epsilon"] is not None and row["gaps"]]
    if not plain or not private:
        return ["The study has no pair of groups to compare, or no runs with or without privacy.", ""]
    first, second = private[0]["gaps"][0]["groups"]
    lines = [
        f"Made by `{found['command']}`; all of it in [results/{name}-fairness.md](results/{name}-fairness.md).",
        "",
    ]
    lines += [_without(plain[0], first, second), ""]
    lines += ["Per cent; gap with its 95 % interval, then accuracy on all test records:", "", *_table(private), ""]
    lines += ["What narrows the gap, and what it costs:", "", *_narrowest(private), ""]
    lines += _ranking(private)
    lines += _why(private, first, second)
    for picture in (
        PICTURES if len(_epsilons(private)) > 1 else PICTURES[-1:]
    ):  # a line against one epsilon shows nothing
        if picture in found["pictures"]:
            alt = found["pictures"][picture].replace("[", "(").replace("]", ")")
            lines += [f"![{alt}](results/{name}-{picture})", ""]
    return lines


def _without(plain, first, second):
    of = plain["accuracy_by_group"]
    return (
        f"Without privacy the model is right on {_cent(plain['accuracy'])} % of all test records, on "
        f"{_cent(of[first]['value'])} % of group {first} and on {_cent(of[second]['value'])} % of group {second} "
        f"(seeds: {plain['runs']})."
    )


def _table(rows):
    epsilons = _epsilons(rows)
    lines = [f"| method | {' | '.join(f'epsilon {e:g}' for e in epsilons)} |", f"|{' --- |' * (1 + len(epsilons))}"]
    for variant in dict.fromkeys(row["variant"] for row in rows):
        own = {row["target_epsilon"]: row for row in rows if row["variant"] == variant}
        cells = [f"{_gap(own[e])}, {_cent(own[e]['accuracy'])}" if e in own else "" for e in epsilons]
        lines.append(f"| {variant} | {' | '.join(cells)} |")
    return lines


def _narrowest(rows):
    """For each epsilon: the smallest gap of the methods that work, what is not told apart from it, and the accuracy beside
    the baseline's. A method that is bad for everyone has a small gap too: those far below the best accuracy are named apart."""
    lines = []
    for epsilon in _epsilons(rows):
        here = _ordered([row for row in rows if row["target_epsilon"] == epsilon])
        if not here:
            continue
        limit = max(row["accuracy"] for row in here) - FAR
        usable = [row for row in here if row["accuracy"] >= limit]
        best, base = usable[0], next((row for row in here if row["variant"] == BASELINE), None)
        said = f"- epsilon {epsilon:g}: {best['variant']}, {_gap(best)} at accuracy {_cent(best['accuracy'])}"
        if base is not None and base is not best:
            change = 100 * (best["accuracy"] - base["accuracy"])
            said += f"; {BASELINE} has {_gap(base)} at {_cent(base['accuracy'])}, {abs(change):.2f} points "
            said += "lower" if change > 0 else "higher"
        alike = [row["variant"] for row in usable[1:] if _low(row) <= _high(best)]
        said += (
            f". Its interval overlaps with that of {', '.join(alike)}." if alike else ". No other interval overlaps."
        )
        bad = [f"{row['variant']} ({_cent(row['accuracy'])})" for row in here if row["accuracy"] < limit]
        said += (
            f" More than {100 * FAR:g} points below the best accuracy, whatever the gap: {', '.join(bad)}."
            if bad
            else ""
        )
        lines.append(said)
    return lines


def _ranking(rows):
    if not any(row["gaps"][0]["published_per_cent"] is not None for row in rows):
        return []
    lines = ["The paper's order and ours, narrowest gap first, for the methods that it has:", ""]
    lines += ["| epsilon | published | here, every step counted |", "| --- | --- | --- |"]
    for epsilon in _epsilons(rows):
        here = [r for r in rows if r["target_epsilon"] == epsilon and r["gaps"][0]["published_per_cent"] is not None]
        published = sorted(here, key=lambda row: row["gaps"][0]["published_per_cent"])
        theirs = [f"{row['variant']} {row['gaps'][0]['published_per_cent']:.2f}" for row in published]
        ours = [f"{row['variant']} {_cent(row['gaps'][0]['gap']['value'])}" for row in _ordered(here)]
        lines.append(f"| {epsilon:g} | {' < '.join(theirs)} | {' < '.join(ours)} |")
    return [*lines, ""]


def _why(rows, first, second):
    epsilons = _epsilons(rows)
    middle = epsilons[len(epsilons) // 2]
    here = [row for row in rows if row["target_epsilon"] == middle and row["gradients_by_group"]]
    if not here:
        return []
    lines = [
        f"Why, at epsilon {middle:g} (see *Why a group pays* above for the words; kept is of the most that a group keeps):",
        "",
    ]
    heads = [f"{word} of {group}" for word in ("clipped", "turned", "kept", "cost") for group in (first, second)]
    lines += [f"| method | {' | '.join(heads)} |", f"|{' --- |' * (1 + len(heads))}"]
    for row in here:
        of = [row["gradients_by_group"][group] for group in (first, second)]
        cells = [_percent(g["clipped_share"]["value"]) for g in of]
        cells += [
            "none" if g["direction_error"]["value"] is None else f"{g['direction_error']['value']:.1f}°" for g in of
        ]
        cells += [_percent(g["kept"]["value"]) for g in of]
        cells += [_percent(row["cost_by_group"][group]["value"]) for group in (first, second)]
        lines.append(f"| {row['variant']} | {' | '.join(cells)} |")
    return [*lines, "", *_along(here)]


def _along(rows):
    """Does the cost go along with the figures of clipping, over the groups? Spearman's rank correlation."""
    lines = []
    for row in rows:
        groups = row["gradients_by_group"]
        if len(groups) < 5:
            return []
        costs = [row["cost_by_group"][group]["value"] for group in groups]
        said = []
        for word, key in (("clipped", "clipped_share"), ("turned", "direction_error"), ("kept", "kept")):
            values = [groups[group][key]["value"] for group in groups]
            if None in values or None in costs or len(set(values)) < 2 or len(set(costs)) < 2:
                said.append(f"{word} says nothing (all equal, or missing)")
            else:
                said.append(f"{word} {_spearman(values, costs):+.2f}")
        lines.append(f"- {row['variant']}: {', '.join(said)}")
    return [
        "Rank correlation, over the groups, of what clipping does to a group with what privacy costs it:",
        "",
        *lines,
        "",
    ]


def _spearman(a, b):
    from scipy.stats import spearmanr

    return float(spearmanr(a, b).statistic)


def _epsilons(rows):
    return sorted({row["target_epsilon"] for row in rows})


def _ordered(rows):
    known = [row for row in rows if row["gaps"][0]["gap"]["value"] is not None]
    return sorted(known, key=lambda row: row["gaps"][0]["gap"]["value"])


def _low(row):
    return (row["gaps"][0]["interval"] or [0.0, 0.0])[0]


def _high(row):
    return (row["gaps"][0]["interval"] or [0.0, 0.0])[1]


def _gap(row):
    gap = row["gaps"][0]
    if gap["gap"]["value"] is None:
        return f"none ({gap['gap']['note']})"
    return _cent(gap["gap"]["value"]) + (f" ({_cent(_low(row))} to {_cent(_high(row))})" if gap["interval"] else "")


def _cent(value):
    return f"{100 * value:.2f}"


def _percent(value):
    return "none" if value is None else f"{100 * value:.1f} %"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    PAGE.write_text(before + BEGIN + block() + END + rest.split(END)[1], encoding="utf-8")
