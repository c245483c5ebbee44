"""What an attacker gains, as a picture: the highest true-positive rate of any attack over its false-positive rate."""

from __future__ import annotations

from clipwise.accounting import TradeOff
from clipwise.lab.report import html
from clipwise.lab.report.figures import Figure, Point, Series
from clipwise.statement import ATTACK_SOURCES

# From one in ten thousand to all, nine to a factor of ten: the curve is smooth there. Those of the statement are among them.
RATES = (*(round(10.0 ** (place / 9 - 4), 6) for place in range(36)), 1.0, 0.001, 0.01, 0.05)


def attack_figure(found: TradeOff) -> Figure:
    pairs = sorted(zip(found.false_positive_rates, found.true_positive_rates, strict=True))
    return Figure(
        name="attack",
        title="What an attacker gains",
        x_label="false-positive rate, in %",
        y_label="true-positive rate",
        series=(
            Series("any attack, at most", tuple(Point(100 * false, true) for false, true in pairs), marked=False),
            Series("guessing", tuple(Point(100 * false, false) for false, _ in pairs), dashed=True, marked=False),
        ),
        percent=True,
        x_log=True,
        y_log=True,
    )


def attack_section(found: TradeOff) -> str:
    """The picture, with what it says in a sentence."""
    if not limits(found):
        return html.section(
            "What an attacker gains", html.text("Nothing that is proven here limits what an attacker can find out.")
        )
    sentence = (
        "Somebody who sees all that was released, and knows every other record, says whether one record was used. False "
        "positives are records called used that were not; true positives are those that were. The line is the most that any "
        f"attack can reach, {ATTACK_SOURCES[found.source]}. The nearer it lies to the dashed one, the less is told about anybody."
    )
    return html.section("What an attacker gains", html.text(sentence), html.charts([attack_figure(found)], wide=True))


def limits(found: TradeOff) -> bool:
    """Whether there is a curve to draw."""
    return min(found.true_positive_rates) < 1
