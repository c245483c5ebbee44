"""The search behind a tuned run, on its page: every run with its options and score, the choice, and what all of it cost.

Of a strategy whose losers are secret, only the list of candidates, which was fixed in advance, and the choice are shown:
the folder secret/ is never opened here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clipwise.lab.report import html
from clipwise.lab.report.figures import short
from clipwise.statement import shown_epsilon
from clipwise.validate import finite_or_none

_STATES = {
    "ended": "ended",
    "started": "under way, or killed",
    "failed, and charged": "failed, and charged",
    "killed before anything was seen; runs again": "killed, to run again",
}


@dataclass(frozen=True)
class SearchRecord:
    """`plan.json`, the lines of `search.jsonl` where they may be seen, and the options of the chosen run once there is one."""

    plan: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]
    chosen: Mapping[str, Any] | None

    @property
    def charged(self) -> bool:
        return bool(self.plan.get("charged", True))

    @property
    def secret(self) -> bool:
        return bool(self.plan.get("runs_are_secret"))

    def warning(self) -> str | None:
        if self.charged:
            return None
        together = finite_or_none(self.plan.get("epsilon_if_all_were_shown"))
        return (
            "THE SEARCH WAS NOT CHARGED: the options of this run were chosen among runs on the same data, and epsilon counts one of "
            f"them. All of them together cost {'infinity' if together is None else shown_epsilon(together)}."
        )


def search_section(search: SearchRecord) -> str:
    blocks = [html.text(_sentence(search)), _cost(search)]
    blocks.append(_candidates(search) if search.secret else _runs(search))
    return html.section("The search", *blocks)


def _sentence(search: SearchRecord) -> str:
    plan = search.plan
    said = f"Strategy {plan.get('strategy')} over {plan.get('candidates')} candidates. "
    if search.chosen is not None:
        said += f"Chosen: {', '.join(f'{name} = {value}' for name, value in search.chosen.items())}. "
    if search.secret:
        most = plan.get("runs_at_most")
        return said + (
            f"Runs: {plan.get('runs')} on average, {'without a limit' if most is None else f'at most {most}'}. How many there were, and "
            "how the others did, stays secret: epsilon covers the chosen one alone."
        )
    if plan.get("score") == "public":
        return said + "The score is accuracy on the test part, which is treated as public."
    if plan.get("score_noise") is None:
        return (
            said
            + "The choice is the exponential mechanism's, on a part of the records kept back; the counts stay private."
        )
    return said + (
        f"The score is minus the number of errors on records kept back, with noise of standard deviation "
        f"{short(float(plan['score_noise']))}; epsilon covers it."
    )


def _cost(search: SearchRecord) -> str:
    """Epsilon with and without tuning, side by side."""
    plan = search.plan
    total, alone = finite_or_none(plan.get("epsilon_total")), finite_or_none(plan.get("epsilon_per_run"))
    together = finite_or_none(plan.get("epsilon_if_all_were_shown"))
    with_search = together if not search.charged else total
    rows = [
        ["epsilon of this run", _epsilon(alone), _epsilon(with_search)],
        [
            f"noise multiplier with which epsilon is {plan.get('target_epsilon'):g}",
            _figure(plan.get("noise_multiplier_without_search")),
            _figure(plan.get("noise_multiplier")) if search.charged else "not made for that",
        ],
        ["runs on the protected data", "1", f"{plan.get('runs')}{' on average' if search.secret else ''}"],
    ]
    note = f"what the search costs, at delta {plan.get('delta'):g}"
    if not search.charged:
        note += "; NOT CHARGED: the statement counts the first column alone"
    return html.table(["", "without the search", "with it"], rows, caption=note)


def _epsilon(value: float | None) -> str:
    return "infinity" if value is None else shown_epsilon(value)


def _figure(value: Any) -> str:
    return "" if finite_or_none(value) is None else short(float(value))


def _candidates(search: SearchRecord) -> str:
    listed = search.plan.get("searched", [])
    names = list(dict.fromkeys(name for each in listed for name in each))
    rows = [
        [*(_value(each.get(name)) for name in names), "chosen" if each == search.chosen else None] for each in listed
    ]
    return html.table([*names, "choice"], rows, caption="the candidates, as they were listed before anything was spent")


def _runs(search: SearchRecord) -> str:
    last: dict[str, Mapping[str, Any]] = {}
    options: dict[str, Mapping[str, Any]] = {}
    choice = None
    for line in search.lines:
        name = line["id"]
        if name == "chosen":
            choice = str(line.get("run"))
        elif "event" in line:
            last[name] = line
            options[name] = line.get("options", options.get(name, {}))
    names = list(dict.fromkeys(name for each in options.values() for name in each))
    rows = []
    for run, line in last.items():
        score = line.get("score")
        rows.append(
            [
                run,
                *(_value(options[run].get(name)) for name in names),
                score,
                _STATES.get(str(line["event"]), str(line["event"])),
                line.get("seconds"),
                "chosen" if run == choice else None,
            ]
        )
    return html.table(
        ["run", *names, "score", "how it ended", "seconds", "choice"],
        rows,
        caption="search.jsonl, a line a run; press a heading to sort",
    )


def _value(value: Any) -> Any:
    return (
        value if value is None or (isinstance(value, str | int | float) and not isinstance(value, bool)) else str(value)
    )
