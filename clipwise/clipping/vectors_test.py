"""Weights, updates and splits of every method against figures worked out apart from the code, from the papers' formulas."""

import math

import pytest
import torch

from clipwise.accounting import gradient_share, joint_noise_multiplier
from clipwise.clipping import METHODS, Context, make_method
from clipwise.clipping.dc_sgd_e import best_threshold
from clipwise.clipping.fixed import FixedState
from clipwise.clipping.global_scaling import GlobalState
from clipwise.clipping.histogram import HistogramState
from clipwise.clipping.oso import OsoState
from clipwise.schedules import Schedule
from clipwise.types import BadArgument, Released

NORMS = torch.tensor([0, 0.01, 0.5, 1, 3, 10], dtype=torch.float64)


def context(batch=256.0, noise=1.0, parameters=3, steps=100, rate=0.1):
    return Context(batch, noise, parameters, steps, rate)


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options", "weights"),
    [
        ("fixed", {}, (1, 1, 1, 1, 0.333333, 0.1)),
        ("auto", {}, (100, 50, 1.960784, 0.990099, 0.332226, 0.0999)),
        ("auto", {"threshold": 3.0}, (1, 1, 1, 1, 1, 0.3)),
        ("auto-s", {}, (100, 50, 1.960784, 0.990099, 0.332226, 0.0999)),
        ("nsgd", {}, (100, 50, 1.960784, 0.990099, 0.332226, 0.0999)),
        ("auto-v", {}, (0, 100, 2, 1, 1 / 3, 0.1)),
        ("psac", {}, (1, 1.088032, 1.5, 0.916667, 0.329787, 0.099901)),
        ("psac", {"r": 0.01}, (1, 1.960784, 1.924528, 0.990196, 0.332965, 0.09999)),
        ("global", {"upper": 3.0}, (1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 0)),
        ("global-adapt", {"upper": 3.0}, (1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 0.1)),
        ("global-adapt-v2", {}, (1 / 3, 1 / 3, 1 / 3, 1 / 3, 1 / 3, 0.099901)),
        ("global-adapt-v2", {"upper": 0.375}, (2.666667, 2.666667, 1.5, 0.916667, 0.329787, 0.099901)),
        ("dpsgd-f", {}, (1, 1, 1, 1, 1 / 3, 0.1)),
        ("quantile", {"threshold": 1.0}, (1, 1, 1, 1, 1 / 3, 0.1)),
        ("bounded-quantile", {"threshold": 0.5}, (1, 1, 1, 0.5, 1 / 6, 0.05)),
        ("dc-sgd-p", {}, (1, 1, 1, 1, 1 / 3, 0.1)),
        ("dc-sgd-e", {}, (1, 1, 1, 1, 1 / 3, 0.1)),
        ("oso", {"threshold": 1.0}, (1, 1, 1, 1, 1 / 3, 0.1)),
        ("auto-dp-sound", {"scale": 2.0}, (2, 2, 2, 2, 2 / 3, 0.2)),
        ("auto-dp", {"scale": 2.0}, (2, 2, 2, 2, 2, 2)),
        ("dynamic", {"threshold": 3.0}, (1, 1, 1, 1, 1, 0.3)),
    ],
)
def test_weights(name, options, weights):
    method = make_method(name, **options)
    got = method.decide(method.init(context()), NORMS, torch.zeros(6, dtype=torch.long)).weights
    torch.testing.assert_close(got, vector(*weights), rtol=1e-5, atol=1e-6)


def test_every_method_has_its_weights_checked():
    cases = next(mark for mark in test_weights.pytestmark if mark.name == "parametrize").args[1]
    assert {case[0] for case in cases} == set(METHODS)


def test_psac_peaks_where_the_formula_says():
    method = make_method("psac")
    peak = vector(math.sqrt(0.1) - 0.1)
    assert float(method.decide(method.init(context()), peak).weights) == pytest.approx(1.878091, abs=1e-6)
    around = method.decide(method.init(context()), peak + vector(-1e-3, 1e-3)).weights
    assert (around < 1.878091).all()


def test_psac_with_r_to_zero_is_auto_v():
    norms = vector(0.3, 1, 7)
    psac, auto = make_method("psac", r=1e-12), make_method("auto-v")
    torch.testing.assert_close(
        psac.decide(psac.init(context()), norms).weights, auto.decide(auto.init(context()), norms).weights
    )


def test_global_adapt_is_rescaled_abadi():
    adapt, abadi = make_method("global-adapt", upper=3.0), make_method("fixed", threshold=3.0)
    got = adapt.decide(adapt.init(context()), NORMS).weights
    torch.testing.assert_close(got, abadi.decide(abadi.init(context()), NORMS).weights / 3)


def released(**sides):
    return Released((torch.zeros(3),), {name: vector(*values) for name, values in sides.items()})


@pytest.mark.parametrize(("start", "share", "after"), [(1.0, 0.7, 0.960789), (0.1, 0.0, 0.110517)])
def test_quantile_update(start, share, after):
    method = make_method("quantile")
    count = (share - 0.5) * 256
    state = method.update(FixedState(start), released(below=[count]), context(), 0)
    assert state.threshold == pytest.approx(after, abs=1e-6)


def test_quantile_trajectory_by_hand():
    """B = 100, target .5, rate .2. Shares .9, .9, .1, 2 (clamped to 1), -1 (clamped to 0): exponents -.08, -.08, +.08, -.1, +.1 sum to -.08."""
    method, state = make_method("quantile", threshold=2.0), FixedState(2.0)
    for step, share in enumerate([0.9, 0.9, 0.1, 2.0, -1.0]):
        state = method.update(state, released(below=[(share - 0.5) * 100]), context(batch=100.0), step)
    assert state.threshold == pytest.approx(2.0 * math.exp(-0.08), rel=1e-12)


@pytest.mark.parametrize(("count", "after"), [(20, 48.918126), (0, 45.241871), (256, 122.980156)])
def test_global_adapt_update(count, after):
    method = make_method("global-adapt")
    state = method.update(GlobalState(50.0), released(exceeding=[count]), context(), 0)
    assert state.upper == pytest.approx(after, abs=1e-5)


def test_global_adapt_trajectory_by_hand():
    """B = 100, target share .1: counts 10, 20, 0, -20, 30 move ln Z by 0, .1, -.1, -.3, .2; then a floor at C = 1."""
    method, state, seen = make_method("global-adapt"), GlobalState(50.0), []
    for step, count in enumerate([10.0, 20.0, 0.0, -20.0, 30.0, -5000.0]):
        state = method.update(state, released(exceeding=[count]), context(batch=100.0), step)
        seen.append(state.upper)
    assert seen == pytest.approx([50.0, 55.258546, 50.0, 37.040911, 45.241871, 1.0], abs=1e-6)


def test_global_adapt_never_falls_below_the_threshold():
    method, state = make_method("global-adapt", upper=1.05), GlobalState(1.05)
    for step in range(5):
        state = method.update(state, released(exceeding=[0]), context(), step)
    assert state.upper == 1.0


HISTOGRAM = [0.0] * 20
for place, many in {3: 50, 4: 100, 5: 60, 6: 30, 19: 16}.items():
    HISTOGRAM[place] = float(many)


@pytest.mark.parametrize(("percentile", "after"), [(0.1, 0.35), (0.3, 0.45), (0.5, 0.45), (0.9, 0.65)])
def test_dc_sgd_p_update(percentile, after):
    method = make_method("dc-sgd-p", percentile=percentile)
    state = method.update(HistogramState(1.0, 2.0), released(histogram=HISTOGRAM), context(), 0)
    assert state[:2] == (pytest.approx(after), pytest.approx(2 * after))
    assert (state.norm_median, state.norm_90) == pytest.approx((0.45, 0.65))  # of 256: 150 up to bin 4, 240 up to bin 6


def test_dc_sgd_p_trajectory_by_hand():
    """All mass in bin 0 five times: C <- R/40, R <- 2C, so C shrinks twentyfold each step; then all in the last: C <- 39/40 R = 1.95 C."""
    method, state = make_method("dc-sgd-p"), HistogramState(1.0, 2.0)
    for step in range(4):
        state = method.update(state, released(histogram=[9.0] + [0.0] * 19), context(), step)
    assert state.threshold == pytest.approx(20.0**-4)
    state = method.update(state, released(histogram=[0.0] * 19 + [9.0]), context(), 4)
    assert state.threshold == pytest.approx(1.95 * 20.0**-4)


@pytest.mark.parametrize(("noise", "after"), [(0.5, 3.8), (5.0, 1.0), (170.0, 0.03), (0.0, 20.8)])
def test_dc_sgd_e_search(noise, after):
    counts = vector(*HISTOGRAM)
    middles = (torch.arange(20, dtype=torch.float64) + 0.5) * 1.0
    assert best_threshold(counts / counts.sum(), middles, noise, 1.0) == pytest.approx(after, rel=1e-12)


def test_dc_sgd_e_range():
    method = make_method("dc-sgd-e")
    state = HistogramState(1.0, 20.0)
    assert method.update(state, released(histogram=HISTOGRAM), context(), 0).range == 20.0
    top, bottom = [0.0] * 19 + [5.0], [5.0] + [0.0] * 19
    assert method.update(state, released(histogram=top), context(), 0).range == 40.0
    assert method.update(state, released(histogram=bottom), context(), 0).range == 10.0
    assert method.update(state, released(histogram=[-5.0] * 20), context(), 0) == state


def test_dc_sgd_e_trajectory_by_hand():
    """Four bins, a = sigma^2 d / B^2 = 4 / 16 = 1/4, all counts in one bin with middle m: the best c is m / (1 + a) = .8 m,
    looked for among {.1, ..., 2} C. From C = 1, R = 4 (middles .5, 1.5, 2.5, 3.5):
    bin 2: .8 * 2.5 = 2, the last candidate, so again from 2, where it is inside; the upper half is full: R stays 4.
    bin 3: .8 * 3.5 = 2.8 = 1.4 * 2; half or more in the last bin: R = 8 (middles 1, 3, 5, 7).
    bin 0: .8; candidates .28 k: .84 (E .2020) beats .56 (.2720); the upper half is empty: R = 4.
    bin 0: .4; candidates .084 k: .42 (E .0505) beats .336 (.0551); R = 2. Then nothing but negative counts: all stays."""
    method = make_method("dc-sgd-e", bins=4)
    public = context(batch=4.0, parameters=4)
    state, seen = method.init(public), []
    for step, place in enumerate([2, 3, 0, 0, None]):
        counts = [-1.0] * 4 if place is None else [10.0 * (j == place) for j in range(4)]
        answer = Released((torch.zeros(3),), {"histogram": vector(*counts)}, {}, noise_multiplier=1.0)
        state = method.update(state, answer, public, step)
        seen += [state.threshold, state.range]
    assert seen == pytest.approx([2.0, 4.0, 2.8, 8.0, 0.84, 4.0, 0.42, 2.0, 0.42, 2.0])


def test_dc_sgd_e_reads_the_range_off_raw_counts():
    """Four bins, a = sigma^2 d / B^2 = 1/4. The error term has negative counts at 0; the range rule does not.
    1. (30, 8, 6, -5): S = 44. The upper half has 6 - 5 = 1 <= 44/4 = 11: R halves, 4 -> 2. (With the -5 at 0 it is 6: also.)
    2. (40, 0, 12, -9): S = 52. 12 - 9 = 3 <= 13: R 2 -> 1. At 0 it is 12 <= 13, too; so
    3. (40, -6, 14, -9): S = 54. 14 - 9 = 5 <= 13.5: R 1 -> 1/2, where counts at 0 have 14 > 13.5 and would keep 1.
    4. (-9, -9, 3, 6): S = 9. The last bin has 6 >= 4.5: R doubles.
    C of step 3, with middles 1/8, 3/8, 5/8, 7/8, counts 40 and 14, from C = .1: E(c) = c^2/4 + (40 (1/8 - c)_+^2 + 14 (5/8 - c)_+^2) / 54 has
    its least, above 1/8, at c = (14/54)(5/8) / (1/4 + 14/54) = 35/110 = .31818; candidates .1 k / 10 end at .2, then .2 k / 10:
    .32."""
    method, public = make_method("dc-sgd-e", bins=4), context(batch=4.0, parameters=4)
    state, ranges, thresholds = HistogramState(0.1, 4.0), [], []
    for step, counts in enumerate([(30, 8, 6, -5), (40, 0, 12, -9), (40, -6, 14, -9), (-9, -9, 3, 6)]):
        answer = Released((torch.zeros(3),), {"histogram": vector(*counts)}, {}, noise_multiplier=1.0)
        state = method.update(HistogramState(0.1, state.range), answer, public, step)
        ranges.append(state.range)
        thresholds.append(state.threshold)
    assert ranges == [2.0, 1.0, 0.5, 1.0]
    assert thresholds[2] == pytest.approx(0.32)


def test_dc_sgd_first_ranges():
    """2 C and b C by default; the paper's experiments have R_0 = 1 for P and b for E, at C_0 = 1."""
    assert make_method("dc-sgd-p").init(context())[:2] == (1.0, 2.0)
    assert make_method("dc-sgd-p", first_range=1.0).init(context())[:2] == (1.0, 1.0)
    assert make_method("dc-sgd-e").init(context())[:2] == (1.0, 20.0)
    assert make_method("dc-sgd-e", first_range=7.0, threshold=3.0).init(context())[:2] == (3.0, 7.0)


def test_dc_sgd_histogram_rows():
    """R = 2, 20 bins of .1: 0 -> 0, .05 -> 0, .1 -> 1, 1.99 -> 19, 50 -> 19; no bin for what is not finite."""
    method = make_method("dc-sgd-p")
    rows = method.decide(HistogramState(1.0, 2.0), vector(0, 0.05, 0.1, 1.99, 50, math.inf, math.nan)).rows["histogram"]
    assert rows.argmax(1)[:5].tolist() == [0, 0, 1, 19, 19]
    assert rows.sum(1).tolist() == [1, 1, 1, 1, 1, 0, 0]


def test_oso_trajectory_by_hand():
    """Signs of g_t . q_{t-1}: 0 (none yet), +, -, -, +, and of g_t . g_{t-1}: 0, +, +, -, -."""
    method = make_method("oso")
    gradients = [(1, 0), (1, 0), (2, 1), (-1, 1), (1, 0)]
    directions = [(1, 0), (-1, 0), (0, -1), (1, 3), (0, 0)]
    state = OsoState(0.1, 1.0, torch.zeros(0), torch.zeros(0))
    thresholds, rates = [], []
    for step, (g, q) in enumerate(zip(gradients, directions, strict=True)):
        answer = Released((vector(*g),), {}, {"directions": (vector(*q),)})
        state = method.update(state, answer, context(), step)
        thresholds.append(round(math.log(state.threshold / 0.1) / 2.5e-3))
        rates.append(round(math.log(state.learning_rate) / 2.5e-3))
    assert thresholds == [0, 1, 0, -1, 0]
    assert rates == [0, 1, 2, 1, 0]
    plus = method.update(
        OsoState(0.1, 1.0, vector(1), vector(1)), Released((vector(1),), {}, {"directions": (vector(1),)}), context(), 1
    )
    assert plus.threshold == pytest.approx(0.100250313, abs=1e-9)
    assert method.learning_rate(state) == state.learning_rate


def test_oso_directions_are_those_of_clipped_gradients():
    method = make_method("oso", threshold=1.0)
    units = method.decide(method.init(context()), NORMS).gradient_rows["directions"]
    torch.testing.assert_close(units, vector(0, 0, 0, 0, 1 / 3, 0.1))


def test_global_adapt_v2_trajectory_by_hand():
    """R = 1/2 halves z itself, as the paper's G(e, R, K, z_0) does. q = 1/2, so two steps an epoch; every 2 epochs z halves: steps
    0-3 z = 3, 4-7 1.5, 8-11 .75."""
    method = make_method("global-adapt-v2", upper_schedule="step:decay=0.5,every=2")
    public = context(rate=0.5)
    state, seen = method.init(public), []
    for step in range(10):
        seen.append(state.upper)
        state = method.update(state, released(), public, step)
    assert seen == [3.0] * 4 + [1.5] * 4 + [0.75] * 2


def test_global_adapt_v2_with_w_to_zero_is_global_adapt():
    v2, adapt = make_method("global-adapt-v2", w=1e-12), make_method("global-adapt", upper=3.0)
    torch.testing.assert_close(
        v2.decide(v2.init(context()), NORMS).weights, adapt.decide(adapt.init(context()), NORMS).weights
    )


def test_dpsgd_f_update():
    """By hand: two groups, 5 of 100 and 1 of 4 above C0: the paper's form gives 1.866667 and 5.333333."""
    method = make_method("dpsgd-f")
    state = method.init(context())
    state = method.update(state, released(counts=[95, 3, 5, 1]), context(), 0)
    assert state.thresholds.tolist() == pytest.approx([1.866667, 5.333333], abs=1e-6)
    assert method.l2_bound(state) == pytest.approx(5.333333, abs=1e-6)
    weights = method.decide(state, vector(4.0, 4.0), torch.tensor([0, 1])).weights
    assert weights.tolist() == pytest.approx([1.866667 / 4, 1.0], abs=1e-6)
    assert method.update(state, released(counts=[9, 9, -1, 0]), context(), 1).thresholds.tolist() == [1.0, 1.0]
    assert float(method.update(state, released(counts=[1e6, 0, 0, 1]), context(), 1).thresholds.max()) == 10.0
    with pytest.raises(BadArgument, match="groups=None"):
        method.decide(state, NORMS)


def test_dpsgd_f_trajectory_by_hand():
    """C_k = 1 + r_k / r, with r_k the share of group k above C0 = 1 and r that of all; counts (below, below, above, above).
    5 % and 25 % of 6 / 104; none above: both at C0; half of each: 1 + 1; 1 and 1/4 of .4; an empty group counts as 1, 1/5
    of .2, after negative counts were taken as 0."""
    method = make_method("dpsgd-f")
    state, seen = method.init(context()), []
    for step, counts in enumerate([[95, 3, 5, 1], [50, 50, 0, 0], [50, 50, 50, 50], [0, 60, 20, 20], [-5, 80, -3, 20]]):
        state = method.update(state, released(counts=counts), context(), step)
        seen += state.thresholds.tolist()
    assert seen == pytest.approx([1.866667, 5.333333, 1, 1, 2, 2, 3.5, 1.625, 6, 2], abs=1e-6)


def test_auto_dp_sound_trajectory_by_hand():
    """kappa = 2, B = 100. U = 50: mean 2 s .5 = s. U = 100: 2 s. U = 25: s / 2. U = 1e9: at most 2 s. U = -5: at least s / 2."""
    method, state = make_method("auto-dp-sound", threshold=3.0), FixedState(3.0)
    seen = []
    for step, total in enumerate([50.0, 100.0, 25.0, 1e9, -5.0]):
        state = method.update(state, released(mean_norm=[total]), context(batch=100.0), step)
        seen.append(state.threshold)
    assert seen == pytest.approx([3.0, 6.0, 3.0, 6.0, 3.0])


def test_bounded_quantile_trajectory_by_hand():
    """B = 100, rate ln 4, target 1/2, floor .3: counts +50 (all below), +50, -50, -50, 0 are shares 1, 1, 0, 0, 1/2, so
    that C is halved, kept at the floor (.25 would follow), doubled, doubled, kept."""
    method = make_method("bounded-quantile", rate=math.log(4), lowest=0.3)
    state, seen = method.init(context()), []
    for step, count in enumerate([50.0, 50.0, -50.0, -50.0, 0.0]):
        state = method.update(state, released(below=[count]), context(batch=100.0), step)
        seen.append(state.threshold)
    assert seen == pytest.approx([0.5, 0.3, 0.6, 1.2, 1.2])


def test_dynamic_trajectory_by_hand():
    """C_0 = 2, r_C = .25 and r_sigma = .81 over 4 steps: C falls by .25^(1/4) = .7071 a step, sigma by .81^(1/4)."""
    method, over_four = make_method("dynamic", threshold=2.0, threshold_decay=0.25, noise_decay=0.81), context(steps=4)
    state, seen = method.init(over_four), []
    for step in range(5):
        seen.append(state.threshold)
        state = method.update(state, released(), over_four, step)
    assert seen == pytest.approx([2.0, 1.41421356, 1.0, 0.70710678, 0.5])
    assert state.threshold == pytest.approx(0.5)  # it stays there in a run that goes on
    factors = [method.noise_factor(over_four, step) for step in range(6)]
    assert factors == pytest.approx([1.0, 0.9486833, 0.9, 0.8538150, 0.81, 0.81])


def test_dynamic_wants_to_know_how_long():
    with pytest.raises(BadArgument, match="epochs"):
        make_method("dynamic").init(context(steps=0))


def test_auto_dp_trajectory_by_hand():
    """B = 10, q = .5 (two steps an epoch), W = 1: sums of norms 20, 40, 30, 50, 60 give s = 2, 4, 3, 5, 6, whose running
    means are 2, 3, 3, 3.5, 4; sigma = 2 in epochs 0, 1 and 2 adds 1/4 each at steps 0, 2 and 4. The paper's figure:
    rho = 13 * .25 * 16 / 2 * .75 = 19.5, epsilon = 19.5 + 2 sqrt(19.5 ln 1e5) = 49.4668."""
    method, public = make_method("auto-dp"), context(batch=10.0, rate=0.5)
    state, seen = method.init(public), []
    for step, total in enumerate([20.0, 40.0, 30.0, 50.0, 60.0]):
        answer = Released((torch.zeros(3),), {"mean_norm": vector(total)}, {}, 2.0)
        assert method.noise_scale(state, answer.sides, public) == total / 10
        state = method.update(state, answer, public, step)
        seen.append(tuple(state))
    assert seen == [(2, 0.25), (3, 0.25), (3, 0.5), (3.5, 0.5), (4, 0.75)]
    assert method.claimed_epsilon(state, public, 1e-5) == pytest.approx(49.4668, abs=1e-4)


@pytest.mark.parametrize(
    ("noise", "sensitivity", "printed", "summed"),
    [
        (1.4929, 3.9565, 0.50, 5.478),
        (0.9584, 3.4414, 0.68, 7.678),
        (0.663, 1.8266, 0.52, 5.717),
        (0.5517, 1.4911, 0.51, 5.598),
    ],
)
def test_auto_dp_claims_what_the_paper_prints(noise, sensitivity, printed, summed):
    """Its Table 14, Auto DP-S on MNIST: 100 epochs at 64/60000, R = .5, D = 10; the sensitivities are those of docs/claims.md. The
    sum over epochs, which the paper's equation stands for, is ten times what it prints."""
    method, epochs = make_method("auto-dp"), range(100)
    claims = []
    for schedule in (Schedule("step"), Schedule("levels", levels=tuple(0.5 ** (e // 10 / 2) for e in epochs))):
        public = Context(64.0, noise, 3, 93750, 64 / 60000, 0.0, schedule)
        state = method.init(public)
        for step in (math.ceil(e * 937.5) for e in epochs):  # each epoch's first step
            sigma = noise * schedule.factor(step, sample_rate=64 / 60000, steps=93750)
            answer = Released((torch.zeros(3),), {"mean_norm": vector(64 * sensitivity)}, {}, sigma)
            state = method.update(state, answer, public, step)
        claims.append(method.claimed_epsilon(state, public, 1e-5))
    assert claims == [pytest.approx(printed, abs=0.005), pytest.approx(summed, abs=0.005)]


@pytest.mark.parametrize(
    "name", [name for name in METHODS if METHODS[name].sound and make_method(name).side_queries(context())]
)
@pytest.mark.parametrize("total", [0.3, 1.0, 1.4929, 4.0])
def test_the_split_of_the_noise_is_exact(name, total):
    sides = [query.noise_multiplier for query in make_method(name).side_queries(context(noise=total))]
    gradient = gradient_share(total, sides)
    assert joint_noise_multiplier([gradient, *sides]) == pytest.approx(total, rel=1e-12)
    assert gradient > total


def test_splits_of_the_papers():
    assert gradient_share(1.0, [5.0]) == pytest.approx(1.0206207, abs=1e-7)
    assert gradient_share(0.9659, [5.0]) == pytest.approx(0.9844436, abs=1e-7)
    assert gradient_share(2.5, [8.0]) == pytest.approx(2.6318068, abs=1e-7)
    assert gradient_share(1.4929, [6.4]) == pytest.approx(1.5352529, abs=1e-7)
    assert gradient_share(1.0, [7.124]) == pytest.approx(1.01, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("auto-s", {"gamma": 0}),
        ("psac", {"r": -1}),
        ("global", {"upper": 0.5}),
        ("global-adapt", {"count_std": 0}),
        ("quantile", {"target": 1.0}),
        ("quantile", {"threshold": 1e9}),
        ("dc-sgd-p", {"percentile": 0}),
        ("dc-sgd-e", {"bins": 1}),
        ("oso", {"lr_rate": math.nan}),
        ("auto-dp-sound", {"growth": 1.0}),
    ],
)
def test_bad_options_are_named(name, options):
    (option,) = options
    with pytest.raises(BadArgument, match=f"{option}="):
        make_method(name, **options)
