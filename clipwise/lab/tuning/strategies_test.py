"""The totals against closed forms of the papers, and against numbers from outside this code."""

import math

import numpy as np
import pytest
from scipy import stats

from clipwise.accounting import StepEvent, calibrate, epsilon
from clipwise.accounting.rdp import ORDERS, converted
from clipwise.lab.tuning.calibrate import smallest_noise
from clipwise.lab.tuning.exponential import Exponential
from clipwise.lab.tuning.free import Public, Uncharged
from clipwise.lab.tuning.grid import GridRdp
from clipwise.lab.tuning.liu_talwar import LiuTalwar
from clipwise.lab.tuning.repeat_select import RepeatSelect, TruncatedNegativeBinomial
from clipwise.types import BadArgument

RATE, STEPS, DELTA = 256 / 60000, 2350, 1e-5
ALL = (GridRdp(), LiuTalwar(), RepeatSelect(), RepeatSelect("poisson"), Exponential(), Public(), Uncharged())


def run(noise):
    return [StepEvent(RATE, noise, STEPS)]


def test_the_grid_is_all_steps_of_all_runs():
    assert GridRdp().total([run(1.1)] * 9, DELTA) == epsilon([StepEvent(RATE, 1.1, 9 * STEPS)], DELTA).value
    mixed = GridRdp().total([run(1.1), run(1.3)], DELTA)
    assert mixed == epsilon([*run(1.1), *run(1.3)], DELTA).value


@pytest.mark.parametrize(("grid", "honest"), [(7, 7.45), (49, 7.56)])
def test_seeds_that_a_paper_left_out(grid, honest):
    """OSO-DPSGD, MNIST: a grid at epsilon 3 in all, by RDP, of which each point ran with five seeds that nobody counted."""
    rate, steps = 512 / 60000, 1172
    noise = calibrate(3.0, DELTA, rate, grid * steps, "rdp")
    assert GridRdp().total([[StepEvent(rate, noise, steps)]] * grid * 5, DELTA, "rdp") == pytest.approx(
        honest, abs=0.01
    )


def test_liu_talwar_by_hand():
    """G = 10: gamma = 1/20, T = 20 ln(1e20) = 921.034; delta_1 = (1e-5 / (3 T))^2 / 2 = 6.549e-18."""
    strategy = LiuTalwar()
    assert strategy.most_runs(10) == 921
    delta_1 = strategy.delta_of_one_run(10, DELTA)
    assert delta_1 == pytest.approx(6.549e-18, rel=1e-3)
    assert 3 * math.sqrt(2 * delta_1) * 20 * math.log(1e20) + 1e-20 == pytest.approx(DELTA, rel=1e-12)
    expected = 3 * epsilon(run(2.0), delta_1).value + 3 * math.sqrt(2 * delta_1)
    assert strategy.total([run(2.0)] * 10, DELTA) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(BadArgument, match="delta_2"):
        strategy.total([run(2.0)] * 10, 1e-21)


def test_liu_talwar_counts_are_geometric_with_a_hard_limit():
    counts = np.array(LiuTalwar().counts(10, (np.arange(200_000) + 0.5) / 200_000))
    assert counts.mean() == pytest.approx(20, rel=1e-3)
    assert np.mean(counts == 1) == pytest.approx(1 / 20, abs=1e-4)
    assert LiuTalwar().counts(10, [1 - 2**-53]) == [min(921, 1 + math.floor(-53 * math.log(2) / math.log(0.95)))]
    assert LiuTalwar(delta_2=1e-3).counts(10, [1 - 2**-53]) == [138]


@pytest.mark.parametrize("shape", [-0.5, 0.0, 0.5, 1.0, 2.0])
def test_truncated_negative_binomial(shape):
    counts = TruncatedNegativeBinomial.of_mean(shape, 12.0)
    k = np.arange(1, len(counts.chances) + 1)
    assert counts.chances.sum() == pytest.approx(1, abs=1e-12)
    assert (k * counts.chances).sum() == pytest.approx(12, rel=1e-9)
    assert counts.mean == pytest.approx(12, rel=1e-9)
    if shape > 0:
        other = stats.nbinom(shape, counts.gamma)
        assert np.allclose(counts.chances[:200], other.pmf(k[:200]) / (1 - other.pmf(0)), rtol=1e-9)
    elif shape == 0:
        assert np.allclose(counts.chances[:200], stats.logser(1 - counts.gamma).pmf(k[:200]), rtol=1e-9)
    drawn = counts.quantiles((np.arange(100_000) + 0.5) / 100_000)
    assert drawn.min() == 1
    assert drawn.mean() == pytest.approx(12, rel=5e-3)


@pytest.mark.parametrize("shape", [0.0, 0.5, 1.0, 3.0])
def test_repeat_select_of_a_pure_run(shape):
    """Papernot and Steinke, Corollary 3: an e-private run gives (2 + eta) e; large orders come close."""
    pure = np.full(len(ORDERS), 0.3)
    whole = RepeatSelect(str(shape)).curve_of_best(pure, 10)
    gamma = TruncatedNegativeBinomial.of_mean(shape, 10.0).gamma
    slack = (1 + shape) * math.log(1 / gamma) / 1024 + math.log(10) / 1023
    assert (2 + shape) * 0.3 - (1 + shape) * 0.3 / 1024 <= whole[-1] <= (2 + shape) * 0.3 + slack


@pytest.mark.parametrize("shape", [0.0, 1.0])
def test_repeat_select_of_a_concentrated_run(shape):
    """A run with divergence r a: the best order is sqrt(ln(1/gamma) / r), and the whole (1 + eta) (2 sqrt(r ln(1/gamma)) - r)
    above it, plus ln E[K] / (a - 1) (their Corollary 4)."""
    r = 0.02
    gamma = TruncatedNegativeBinomial.of_mean(shape, 20.0).gamma
    whole = RepeatSelect(str(shape), mean_runs=20.0).curve_of_best(r * ORDERS, 7)
    closed = r * ORDERS + (1 + shape) * (2 * math.sqrt(r * math.log(1 / gamma)) - r) + math.log(20) / (ORDERS - 1)
    assert (whole >= closed - 1e-12).all()  # ours looks at a list of orders, the closed form at all
    assert np.allclose(whole, closed, rtol=1e-3)


def test_repeat_select_with_a_poisson_number():
    """Theorem 6 on a plain Gaussian run, whose exact delta is known: ours takes a larger one, and at most 5 times that."""
    noise, mean = 5.0, 8.0
    curve = ORDERS / (2 * noise**2)
    whole = RepeatSelect("poisson", mean_runs=mean).curve_of_best(curve, 8)
    hats = np.log1p(1 / (ORDERS - 1))
    exact = stats.norm.cdf(0.5 / noise - hats * noise) - np.exp(hats) * stats.norm.cdf(-0.5 / noise - hats * noise)
    deltas = (whole - curve - math.log(mean) / (ORDERS - 1)) / mean
    assert (deltas >= exact - 1e-12).all()
    middle = (ORDERS > 1.5) & (ORDERS < 40)
    assert (deltas[middle] <= 5 * exact[middle] + 1e-12).all()


def test_repeat_select_agrees_with_another_library_where_that_is_right():
    dp = pytest.importorskip("dp_accounting")
    from dp_accounting import dp_event, rdp

    for name, shape in (("geometric", 1.0), ("logarithmic", 0.0), ("0.5", 0.5)):
        other = rdp.RdpAccountant(list(ORDERS), dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
        other.compose(dp_event.RepeatAndSelectDpEvent(dp.GaussianDpEvent(4.0), 12.0, shape))
        ours = RepeatSelect(name, mean_runs=12.0).total([[StepEvent(1.0, 4.0)]] * 12, DELTA)
        assert ours == pytest.approx(other.get_epsilon(DELTA), rel=1e-3)


def test_repeat_select_takes_the_dearest_candidate():
    both = RepeatSelect(mean_runs=5.0).total([run(1.0), run(3.0)], DELTA)
    assert both == RepeatSelect(mean_runs=5.0).total([run(1.0)] * 2, DELTA)
    assert RepeatSelect().total([run(1.0), [StepEvent(RATE, 0.0)]], DELTA) == math.inf
    assert converted(np.full(len(ORDERS), math.inf), DELTA) == math.inf


@pytest.mark.parametrize("text", ["-1", "nan", "often", "11"])
def test_repeat_select_refuses_unknown_distributions(text):
    with pytest.raises(BadArgument, match="repetitions"):
        RepeatSelect(text)


@pytest.mark.parametrize("mean", [1.0, 0, math.inf, 1e6])
def test_repeat_select_refuses_means(mean):
    with pytest.raises(BadArgument, match="mean_runs"):
        RepeatSelect(mean_runs=mean)


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_draw_and_select(strategy):
    generator = np.random.default_rng(1)
    drawn = [strategy.draw(4, generator.random) for _ in range(300)]
    if strategy.losers_are_public:
        assert all(each == [0, 1, 2, 3] for each in drawn)
    else:
        lengths = np.array([len(each) for each in drawn])
        assert abs(lengths.mean() - strategy.expected_runs(4)) < 5 * lengths.std() / math.sqrt(300)
        shares = np.bincount([i for each in drawn for i in each], minlength=4) / lengths.sum()
        assert np.allclose(shares, 0.25, atol=0.08)
    scores = [-30, -2, -30, -30] if strategy.parts else [0.1, 0.9, 0.3, 0.9]
    assert strategy.select(scores, 3.0, generator.random) == 1


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_calibrated_noise_meets_the_target_and_hardly_less_would(strategy):
    target = 2.0
    noise = smallest_noise(strategy, [run] * 6, target, DELTA)
    assert strategy.total([run(noise)] * 6, DELTA) <= target < strategy.total([run(noise * 0.999)] * 6, DELTA)


def test_more_candidates_take_more_noise():
    for strategy in (GridRdp(), LiuTalwar(), RepeatSelect(), RepeatSelect("poisson")):
        noises = [smallest_noise(strategy, [run] * candidates, 2.0, DELTA) for candidates in (2, 20)]
        assert noises == sorted(noises)
        assert noises[0] > smallest_noise(Public(), [run] * 2, 2.0, DELTA)


def test_a_target_too_small_names_the_largest_number_that_fits():
    with pytest.raises(BadArgument, match=r"largest number that fits is (\d+)") as caught:
        smallest_noise(GridRdp(), [run] * 90, 2.0, DELTA, most_noise=2.5)
    number = int(str(caught.value).rpartition(" ")[2])
    assert smallest_noise(GridRdp(), [run] * number, 2.0, DELTA, most_noise=2.5) <= 2.5
    with pytest.raises(BadArgument, match="too small"):
        smallest_noise(GridRdp(), [run] * (number + 1), 2.0, DELTA, most_noise=2.5)
    with pytest.raises(BadArgument, match="even over two"):
        smallest_noise(LiuTalwar(), [run] * 5, 2.0, DELTA, most_noise=1.0)
    with pytest.raises(BadArgument, match="protects nobody"):
        smallest_noise(GridRdp(), [lambda n: [StepEvent(1e-7, n, 1)]] * 2, 2.0, 0.1)
