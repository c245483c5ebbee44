"""The claims against figures worked out apart from this code.

Figures were worked out by hand from the papers' formulas, or by accountants that are not ours (tests/vectors/).
"""

import math

import pytest

from clipwise.lab.claims import PAPERS, closed_forms, oso_dpsgd, rows
from clipwise.lab.claims.claim import Setting, differs_from_print
from clipwise.schedules import Schedule
from clipwise.types import BadArgument

MNIST = Setting("MNIST", 60_000, 64, 100, 1e-5)
Q = MNIST.rate


def claim(paper, function, *arguments):
    """The one row that this function of the paper's file makes of these arguments (among others)."""
    (found,) = [
        row
        for row in rows(paper)
        if getattr(row, "func", row).__name__ == function and set(arguments) <= set(getattr(row, "args", ()))
    ]
    return found()


def claimed(schedule, noise, **options):
    total = closed_forms.claimed_sum(schedule, 100, **options)
    return closed_forms.claimed_epsilon(closed_forms.claimed_rho(total, noise, Q), 1e-5)


# --- the closed forms ---------------------------------------------------------------------------------------------


def test_the_closed_forms_give_what_was_worked_out_by_hand():
    assert claimed(Schedule("linear"), 1.0) == pytest.approx(0.24292525813, abs=1e-10)
    assert claimed(Schedule("time", decay=0.01), 1.0) == pytest.approx(0.22675225966, abs=1e-10)
    assert claimed(Schedule("step"), 1.0) == pytest.approx(0.18741433015, abs=1e-10)
    assert claimed(Schedule("step"), 1.0, stage_length_divides=False) == pytest.approx(1.94223418155, abs=1e-10)
    assert claimed(Schedule("exponential"), 1.0) == pytest.approx(9.99427072991, abs=1e-10)
    assert claimed(Schedule(), 1.0) == pytest.approx(0.1852870886, abs=1e-10)


@pytest.mark.parametrize(
    "schedule", [Schedule(), Schedule("linear"), Schedule("time"), Schedule("step"), Schedule("exponential")], ids=str
)
def test_the_sums_are_those_of_the_schedule_epoch_by_epoch(schedule):
    levels = [schedule.factor(epoch, sample_rate=1.0, steps=100) for epoch in range(100)]
    honest = sum(level**-2 for level in levels)
    assert closed_forms.claimed_sum(schedule, 100, stage_length_divides=False) == pytest.approx(honest)
    # The error of the step decay: D^2 = 100 on rho, and no other schedule is touched.
    error = 100 if schedule.kind == "step" else 1
    assert closed_forms.claimed_sum(schedule, 100) == pytest.approx(honest / error)


def test_rho_and_epsilon_invert_one_another():
    assert closed_forms.claimed_rho_of(1.0, 1e-5) == pytest.approx(0.02081994, abs=1e-8)
    assert closed_forms.claimed_epsilon(closed_forms.claimed_rho_of(7.5, 1e-3), 1e-3) == pytest.approx(7.5)
    noise = closed_forms.claimed_noise(40.0, 0.3, 0.01)
    assert closed_forms.claimed_rho(40.0, noise, 0.01) == pytest.approx(0.3)


def test_omega_is_that_of_the_least_noisy_step():
    """By hand: 1.27, 1.72, 0.0067 and 1.7e-4 for L, T, S and E of 000's Appendix D."""
    found = [
        closed_forms.omega(schedule, 1.0, Q, 100)
        for schedule in (Schedule("linear"), Schedule("time"), Schedule("step"), Schedule("exponential"))
    ]
    assert found == pytest.approx([1.27, 1.72, 0.0067, 1.7e-4], rel=0.02)


# --- 000 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("noise", "published", "rdp", "pld"),
    [(1.4929, 1, 1.0, 0.9153), (0.9584, 2, 2.0001, 1.8354), (0.6630, 5, 5.0005, 4.4775), (0.5517, 10, 9.9225, 8.8358)],
)
def test_constant_noise_of_table_2(noise, published, rdp, pld):
    found = claim("000", "_dp", "Table 2", noise)
    assert (found.paper, found.table, found.published) == ("000", "Table 2", published)
    assert found.recomputed == found.honest_rdp == pytest.approx(rdp, rel=1e-3)
    assert found.honest_pld == pytest.approx(pld, rel=2e-3)
    assert found.inputs["steps"] == 93750


def test_the_adp_column_counts_the_threshold_twice():
    """Vectors: 9.52, 16.06, 25.44, 32.32 by the formula, where the second is printed as 16.86."""
    figures = {1.4929: 9.52, 0.9584: 16.06, 0.6630: 25.44, 0.5517: 32.32}
    for noise, figure in figures.items():
        rho = closed_forms.claimed_rho(closed_forms.claimed_sum(Schedule("linear"), 100), noise, Q, 50)
        assert closed_forms.claimed_epsilon(rho, 1e-5) == pytest.approx(figure, abs=5e-3)
    second = claim("000", "_adp", "Table 2", 0.9584)
    assert second.published == 16.86
    assert second.recomputed == pytest.approx(16.06, abs=5e-3)
    assert "does not give the printed figure" in second.why
    first = claim("000", "_adp", "Table 2", 1.4929)
    assert first.honest_rdp == pytest.approx(1.5595, rel=1e-3)
    assert first.honest_pld == pytest.approx(1.4003, rel=2e-3)
    assert "does not give" not in first.why


@pytest.mark.parametrize(
    ("table", "noise", "published"),
    [("Table 3", 0.5649, 5.71), ("Table 4", 0.5649, 12.56), ("Table 5", 1.3768, 3.78), ("Table 5", 0.5468, 10.53)],
)
def test_the_other_adp_columns(table, noise, published):
    found = claim("000", "_adp", table, noise)
    assert found.published == published
    assert not differs_from_print(found.recomputed, published, 2)
    assert "does not give" not in found.why
    if table == "Table 5":  # calibrated for 40 epochs, computed with 100
        assert (found.inputs["epochs"], found.inputs["epochs_in_formula"], found.inputs["steps"]) == (40, 100, 18750)
        assert found.inputs["epsilon_at_40_epochs"] < 0.6 * published
        assert "100 epochs" in found.why


def test_auto_dp_has_no_guarantee():
    found = claim("000", "_auto", "Table 14", 1.4929, "S")
    assert found.published == 0.50
    assert found.recomputed is None
    assert found.honest_rdp == found.honest_pld == math.inf
    assert "unbounded" in found.why
    assert found.inputs["implied_C"] == pytest.approx(3.9565, abs=1e-3)
    assert found.inputs["pld_if_clipped"] == pytest.approx(3788.2, rel=2e-3)
    rho = closed_forms.claimed_rho(
        closed_forms.claimed_sum(Schedule("step"), 100), 1.4929, Q, found.inputs["implied_C"]
    )
    assert closed_forms.claimed_epsilon(rho, 1e-5) == pytest.approx(0.50)


def test_auto_dp_of_ag_news():
    found = claim("000", "_auto", "Table 17", 0.5468, "S")
    assert found.inputs["pld_if_clipped"] == pytest.approx(239.6153, rel=2e-3)
    assert found.inputs["implied_C"] == pytest.approx(6.555, abs=1e-3)
    assert found.honest_pld == math.inf


def test_dynamic_dp_is_an_approximation():
    found = claim("000", "_dynamic", "Table 2", 0.6630)
    assert found.recomputed == pytest.approx(4.1997, abs=1e-3)
    assert found.recomputed < found.honest_pld < found.honest_rdp
    assert "not printed" in found.why


def test_appendix_d():
    found = claim("000", "_appendix_d", "S")
    assert found.published == 0.19
    assert found.recomputed == pytest.approx(0.18741433015, abs=1e-10)
    assert found.inputs["epsilon_if_D_multiplies"] == pytest.approx(1.94223418155, abs=1e-10)
    assert 1000 < found.honest_pld < found.honest_rdp < math.inf


def test_the_derivation_of_000():
    text = " ".join(PAPERS["000"].introduction().split())
    # By hand: delta >= 1.0000, B / sigma = 43, 245 nats a step; 937.5, 781.25, 468.75 and 2.67
    for figure in ("probability 1.0000", "B / sigma = 43", "245 nats", "937.5", "781.25", "468.75", "epsilon 2.67"):
        assert figure in text


# --- 001 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "row", "printed"),
    [
        ("Table 16", "step size K = 5", 8.6769),
        ("Table 16", "step size K = 10", 0.1916),
        ("Table 16", "step size K = 50", 0.0046),
        ("Table 17", "drop rate R = 0.1", 199.7241),
        ("Table 17", "drop rate R = 0.75", 0.0425),
    ],
)
def test_tables_16_and_17_of_001(table, row, printed):
    found = claim("001", "_table", table, row)
    assert found.published == printed
    assert round(found.recomputed, 4) == printed
    assert 1e4 < found.honest_pld < found.honest_rdp < math.inf
    assert found.inputs["omega"] < 1


def test_the_runs_of_001_at_epsilon_1():
    """By PLD, stored: 263352 and 1059.1; by hand: 11.80 by the paper's own Table 2, omega 0.123, 0.078, 0.092, 2.5e-4."""
    step = claim("001", "_run", "Table 13", "step", 1.0)
    assert (step.published, step.inputs["sigma_0"]) == (1, 0.1916)
    assert step.recomputed == pytest.approx(11.80, abs=5e-3)
    assert step.honest_pld == pytest.approx(263352, rel=2e-3)
    plain = claim("001", "_run", "Table 13", "no decay", 1.0)
    assert plain.inputs["sigma_0"] == pytest.approx(0.1894749459, abs=1e-10)
    assert plain.honest_pld == pytest.approx(1059.1, rel=2e-3)
    found = [
        closed_forms.omega(
            schedule, closed_forms.claimed_noise(closed_forms.claimed_sum(schedule, 100), 0.0206, Q), Q, 100
        )
        for schedule in (Schedule(), Schedule("linear"), Schedule("time"), Schedule("step"))
    ]
    assert found == pytest.approx([0.123, 0.078, 0.092, 2.5e-4], rel=0.02)


def test_had_k_multiplied():
    repaired = closed_forms.claimed_noise(
        closed_forms.claimed_sum(Schedule("step"), 100, stage_length_divides=False), 0.0206, Q
    )
    assert repaired == pytest.approx(1.9164152079, abs=1e-9)
    assert MNIST.honest(repaired, Schedule("step")).pld == pytest.approx(2138.3, rel=2e-3)


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 5.0, 8.0, 10.0])
def test_thinwall(epsilon):
    found = claim("001", "_run", "Table 11", epsilon)
    assert (found.inputs["samples"], found.inputs["batch"], found.inputs["delta"]) == (1173, 32, 1e-3)
    assert found.published == epsilon
    assert found.honest_pld > 100 * epsilon
    assert "exceeds 1/n" in found.why
    # The claim follows from its sigma_0 by the form where K divides.
    total = closed_forms.claimed_sum(Schedule("step"), 30)
    rho = closed_forms.claimed_rho(total, found.inputs["sigma_0"], 32 / 1173)
    assert closed_forms.claimed_epsilon(rho, 1e-3) == pytest.approx(epsilon)


def test_the_derivation_of_001():
    text = " ".join(PAPERS["001"].introduction().split())
    for figure in ("epsilon 11.80", "would have been 1.9164", "sigma = 0.1895", "RDP asks for 1.49", "1/n = 0.00085"):
        assert figure in text


# --- 002 and 003 --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epsilon", "sigma", "gradient"), [(2.0, 0.9659, 0.984444), (4.0, 0.7389, 0.7471), (8.0, 0.5959, 0.6002)]
)
def test_noise_levels_of_002(epsilon, sigma, gradient):
    found = claim("002", "_run", "Tables IV and V", "CIFAR10", epsilon)
    assert found.inputs["sigma"] == pytest.approx(sigma, abs=1e-4)
    assert found.inputs["sigma_T"] == pytest.approx(gradient, abs=1e-4)
    assert found.recomputed == pytest.approx(epsilon, rel=1e-3)
    assert found.recomputed < found.honest_rdp < 1.001 * epsilon  # T + 1 releases
    assert found.honest_pld < found.honest_rdp


def test_the_histograms_noise_follows_the_total():
    found = claim("002", "_run", "Table III, DC-SGD-P", "CIFAR10", 2.0)
    assert 2 < found.inputs["sigma"] < 3
    assert found.inputs["sigma_H"] == 8
    small = claim("002", "_small")
    assert small.recomputed < small.published == 1.2


def test_the_ratio_of_003():
    assert oso_dpsgd.ratio(1.01) == pytest.approx(7.123990720171832, abs=1e-12)
    found = claim("003", "_seven")
    assert (found.published, round(found.recomputed, 3)) == (7.124, 7.124)
    assert found.inputs["joint_nu"] == pytest.approx(found.inputs["nu"], rel=1e-6)
    assert found.honest_rdp == pytest.approx(3, abs=1e-3)


def test_line_13_of_003():
    """By hand: nu = 0.837 at epsilon 3; 0.714 nu together, and 8.16."""
    found = claim("003", "_line_13", "Algorithm 1, line 13")
    assert found.inputs["nu"] == pytest.approx(0.837, abs=5e-4)
    assert found.inputs["joint_nu"] / found.inputs["nu"] == pytest.approx(0.714, abs=5e-4)
    assert found.recomputed == pytest.approx(3, abs=1e-3)
    assert found.honest_rdp == pytest.approx(8.16, abs=5e-3)


@pytest.mark.parametrize(
    ("method", "epsilon", "least", "most"),
    [("Online", 3.0, 7.44, 7.46), ("FixedThreshold", 3.0, 7.55, 7.57), ("Online", 9.0, 22.9, 25.1)],
)
def test_seeds_of_003(method, epsilon, least, most):
    assert least < claim("003", "_seeds", method, epsilon).honest_rdp < most


# --- all ----------------------------------------------------------------------------------------------------------


def test_every_table_that_was_asked_for_is_there():
    counts = {}
    for paper in PAPERS:
        for row in rows(paper):
            table = next((each for each in getattr(row, "args", ()) if str(each).startswith("Table ")), "other")
            counts[paper, table] = counts.get((paper, table), 0) + 1
    assert {table: counts["000", f"Table {table}"] for table in (2, 3, 4, 5, 14, 15, 16, 17)} == {
        **dict.fromkeys((2, 3, 4), 16), 5: 12, **dict.fromkeys((14, 15, 16, 17), 16),
    }  # fmt: skip
    assert counts["000", "other"] == 4
    assert (counts["001", "Table 16"], counts["001", "Table 17"]) == (5, 5)
    assert (counts["001", "Table 13"], counts["001", "Table 11"]) == (20, 5)


def test_a_paper_that_is_not_there():
    with pytest.raises(BadArgument, match=r"paper='004'.*000"):
        rows("004")
