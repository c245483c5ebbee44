"""The rule: every decision of an automatic run, as pure functions of public facts and released values.

No data comes here and no noise is drawn here, so that all of this is post-processing or known beforehand. What a run will cost
follows from `measuring` alone, before anything is read.

    J       median of the noised histogram of gradient norms at the first weights
    race    in rounds: rates around a first guess (2 / (J sqrt T) where the outputs are linear in what is trained and classes are learned,
            0.77 / sqrt(J T) elsewhere), each from the first weights, for a quarter of the run's steps, on batches of a
            third at twice the noise (for what a step's signal is worth, at six times the noise), scored by a noised count over all records; all of its weights are thrown away
    rate    a mean of log rate, weighted by scores and a prior, times FACTORS
    gamma   of values, from how much of the losses the race has left
    rise    late in the run the rate may rise, never fall, by the sign of <released gradient, weights - average>
    average avg += 9 / (t + 8) (w - avg); the average is what is released

Constants were chosen on the development tasks of research/nothing_to_tune (its README says which, and what was seen when); "the family" is
the 22 drawn tasks of its seventh session x epsilon 1, 3, 8, with one to two seeds. None has a unit unless it says so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from clipwise.accounting.gdp import gaussian_delta
from clipwise.accounting.roots import crossing

Effort = Literal["quick", "normal", "long"]
Kind = Literal["classes", "values"]  # what the model learns: right answers can be counted, or only losses compared


# -- length of a run

STEPS = 200  # of the training: the other constants were chosen at this length
SAMPLE_RATES = {"quick": 1 / 20, "normal": 1 / 10, "long": 1 / 5}  # of a batch, by effort: 10, 20 or 40 epochs
LARGEST_DELTA = 1e-5  # what studies of small data sets state; smaller above 10^5 records

# -- the histogram of norms

BINS = 60  # of each histogram


class Bins(NamedTuple):
    """Powers of two, evenly spaced in their exponent."""

    lowest: int  # exponent where the first bin begins
    an_octave: int  # bins for each factor of two


NORMS = Bins(-10, 2)  # half octaves from 2**-10 to 2**20, which holds every norm that was seen (2e-4 to 3e4)
LOSSES = Bins(-30, 1)  # octaves from 1e-9 to 1e9: squares of targets from 3e-5 to 3e4, in whatever unit they are
HISTOGRAM_SHARE = 0.01, 0.06  # least and most of the budget, as a square of Gaussian-DP mu
READABLE = (
    1 / 13
)  # of the records: between the two, the share at which the noise of a bin, of two histograms, is at most this
STANDS_OUT = 3.0  # standard deviations of its noise: a bin below is taken for empty
WINDOW, SEEN = (
    4,
    4.0,
)  # bins that lie together, and deviations of the noise of their sum: only bins of windows that have as much are read (of noise alone
# one has with probability 0.2 %, where one bin of 60 above 3 deviations has 8 %, and set rates of any size: by itself, or as the upper fifth of few rows)

# -- the scale of the inputs

SCALE_BASE, SCALE_MOST = (
    4.0,
    15,
)  # s is a power of it, at most that one either way; of 2, so that it is exact in floating point
SMALL, LARGE = (
    0.5,
    4.0,
)  # lengths of inputs below, and outputs above, are badly scaled: of unit vectors nothing changes, nor of inputs up to 7
SCALES = 2 * SCALE_MOST + 1  # bins
INPUT_SHARE = 0.001  # of the budget, as a square of Gaussian-DP mu: nearly all records of a data set are in one or two of the bins

# -- the mean of the inputs

# Columns in 0..1, pixels and features behind a ReLU have a mean that is longer than what differs between records: it takes most of each clipped gradient, and
# the noise along it moves all outputs together. Of eight tasks of the family with columns in 0..1, centred less as they are, the best of a grid gained 0.4 to 16 points.
CENTRE_SHARE = (
    0.02  # of the budget, as a square of Gaussian-DP mu: the noise of all training is 1 % more, worth 0.03 points
)
CENTRED_LENGTH = 4.0  # what is left is brought to half of this up to this, where it is shorter: columns in 0..1 of 9 to 20 inputs leave .5 to .7, and gained 0.5 to 12 points more
CENTRED = 0.6  # of the square of the noised mean, what is not noise, or nothing is subtracted: of noise alone with probability 2 % for 6 inputs, next to none for 20

LEAST_MEAN = (
    1 / 8
)  # root mean square of the mean's numbers: below it is not worth a word (a bag of words has .02, columns in 0..1 .5)

# -- the race

GUESS = 0.77  # first rate = GUESS / sqrt(J T): between 2 / (J sqrt T), right for convex models, and 0.3 / sqrt T
# Where outputs are linear in the trained parameters nothing but J says how far noise of a given size moves them: first rate =
# LINEAR_GUESS / (J sqrt T). Best constants there (research/nothing_to_tune, lin4.py, 2 to 6 seeds):
# svhn features 1.1 at epsilon 1 and 0.6 to 2.6 alike at 3 and 8, AG News 0.9 to 1.7, Fashion-MNIST by scattering 3 to 6, which the race corrects.
LINEAR_GUESS = 2.0
# Of values it is 2 l / (J sqrt T), l a typical loss, where that is lower: noise then moves an output by about one of the errors that it begins with.
# Diabetes (309 rows, epsilon 1, 4 splits) has its best R^2 at .6 of it, and -1 at 7 times that.
# l is half of the loss that four records of five are below. Targets with a spike have hardly any loss in the middle: of hours a week, where most are 40, the median is .02
# and four of five are below .36, and a rate by the median was 8 times too low (100 R^2 of 16.8; 18.1 with this). Of evenly spread losses half of it is
# .8 of their median, of squares of Gaussian errors 1.8.
LOSS_QUANTILE, LOSS_PART = 0.8, 0.5
MADE_LOSS = 0.25  # where no loss was seen: targets about 1/2 from the outputs, as of values in -1..1
RATES = 5  # of the race
SPACING = 2.5  # between neighbouring rates: the race spans a factor of 39, best rates were 0.2 to 2 times the guess
# What the race can tell is its signal over its noise, sqrt(RACE_LENGTH) RACE_PART / RACE_NOISE, and so is its price. At the same price a
# longer race ranks rates more as the run itself does: its winner over the run's best rate was 0.6 to 5.6 for 8 % of the steps at
# 3 times the noise, 0.6 to 2.4 for half of them at 6 times. A quarter at 6 times lost least, of eight pairs with one to choose. (On the family half of them at 12 times, scored
# by the probability of the right class, lost 0.1 less, but on AG News and SST-2 through the library 1.0 and 1.4 more with a seed each.)
RACE_LENGTH = 0.25  # of the training's steps, for each rate
RACE_PART = (
    1 / 3
)  # of the training's batches: as much noise to the signal as 3 times the noise, for a third of the work
RACE_NOISE = 2.0  # over the training's: Adam's best rate hardly depends on noise, and a step is 36 times cheaper in all
SCORE_SHARE = 0.01  # of the budget, as a square of Gaussian-DP mu
# Rate of the training over the one that the race likes. Of classes on the low side, since it may rise but not fall: of the family .5, .6, .7 lose 0.41, 0.44, 0.52 points. Of values a
# short race at more noise likes rates that are too low: of 5 tasks of the family x 3 epsilons .6, .8, 1, 1.25 lose 1.4, 0.8, 0.4, 0.1 in development and, few rows among
# them, 2.9, 2.2, 2.3, 3.0 held out. 1.25 was the choice before those were seen.
FACTORS = {"classes": 0.6, "values": 1.0}
PRIOR = 1.5  # in log rate: how far from its middle the race may lead where the scores say nothing
SOFTNESS = 0.01  # of a score a record: rates this close are as good as each other
CERTAIN = 3.0  # deviations of the noise of a difference: rates that are this much (and SOFTNESS) worse than the best one do not count at all
NOISES = 3.0  # ... or so many standard deviations of the scores' noise
FAR = 100.0  # typical loss of values at the first weights: squared, targets are ten away from outputs; y gave 0.9 of R^2, 100 + 30 y 0.8
HARDLY = 2**0.25  # longer than the gradient of a blank input: as far as the bin of a median can be wrong
TELLING = 0.05  # of a score a record: with more noise than this the race says little, and the run says so

# -- the training

BETAS = (0.9, 0.99)  # of Adam
ADAM_EPS = 1e-12  # far below the noise on any gradient (1e-7 at 10^7 records): Adam's steps do not depend on it
GAIN, REACH, AFTER = 0.02, 0.9, 1 / 3  # of log rate a step; most of it in all; of the run, from when on
# gamma over J for values, at most, and the records times mu below which it is less, in proportion: normalised gradients of a squared loss would fit the
# median of the targets, but gradients far below gamma are lost in noise. R^2 in points (research/nothing_to_tune): hours a week (32,561 records,
# epsilon 1) 12.7 at gamma .01, 17.9 at 2 J; 4,000 made records at epsilon 1 90.5, 87.8, 71.7 at 0, .3, 2 J; diabetes 39.1, 33.6, 20.5 at 0, .5, 2 J.
GAMMA_OVER_MEDIAN, WORTH = 2.0, 8000.0
# Errors that a model explains shrink, and so do their gradients: where the race has left less than STAYS[0] of the losses gamma is GAMMA_LEAST J, and all of the above from
# STAYS[1] on. At epsilon 3, at 0 / 2 J, and what the race leaves: hours a week 15.8 / 19.8 (.76), Friedman's first function 83.1 / 70.1 (.27), his third
# 77.6 / 68.7 (.05), a teacher 97.1 / 95.6 (.10), a made tail 69.2 / 67.7 (.15).
STAYS, GAMMA_LEAST = (0.4, 0.7), 0.01
PLAIN_BATCH = 64  # records, without privacy: no noise makes larger batches worth their epochs
PLAIN_RATE = 2e-3  # of Adam without privacy, where no noise sets a scale


class Size(NamedTuple):
    expected_batch_size: int
    epochs: int | float


class Round(NamedTuple):
    """Of the race: so many rates, so many steps each, at so many times the training's noise; then a score for each."""

    rates: int
    steps: int
    noise: float  # over that of the training
    score_noise: float  # noise std / l2 sensitivity of the scores, which is sqrt(rates)
    part: float = 1.0  # its batches over those of the training


class Measuring(NamedTuple):
    """What is released before the training: two histograms, then the rounds. Public, and all that its cost depends on."""

    mu: float  # what the budget is worth
    input_noise: float  # of the histogram of inputs: noise std / 1
    centre_noise: float  # of the sum of inputs: noise std / the length that each is cut to
    histogram_noise: float  # of the one of norms: noise std / 1
    rounds: tuple[Round, ...]


class Result(NamedTuple):
    """Of a round that was run: released, and so public."""

    rates: tuple[float, ...]
    scores: tuple[float, ...]  # noised sums over all records, each record's in 0..1
    noise_std: float  # of each


def delta_for(records: int) -> float:
    """At most 1e-5, and a power of ten below 1 / records."""
    return min(LARGEST_DELTA, 10.0 ** -(math.floor(math.log10(records)) + 1))


def size_for(records: int, effort: Effort, *, epochs: float | None = None, batch: float | None = None) -> Size:
    """Batch and epochs: STEPS steps at the effort's sample rate, but for what is stated."""
    rate = SAMPLE_RATES[effort]
    passes = max(1, round(STEPS * rate)) if epochs is None else epochs
    if batch is not None:
        return Size(math.ceil(batch), passes)
    if epochs is not None:  # as many steps, in so many passes
        rate = min(1 / 2, epochs / STEPS)
    return Size(min(records, math.ceil(records * rate - 1e-9)), passes)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """mu of the Gaussian mechanism that is exactly (epsilon, delta): what a budget is worth, in one number."""
    return crossing(lambda mu: gaussian_delta(1 / mu, epsilon) - delta, 1e-6, 1e3, tolerance=2e-12)


def mu_of_steps(sample_rate: float, noise_multiplier: float, steps: int) -> float:
    """About what a run with a stated noise is worth (a limit theorem, and no bound: it sets the noise of the measuring,
    whose cost is accounted for exactly)."""
    return sample_rate * math.sqrt(steps * math.expm1(min(700.0, noise_multiplier**-2)))


def measuring(mu: float, steps: int, records: int) -> Measuring:
    """The releases before a training of so many steps on so many records, in a budget that is worth mu."""
    least, most = HISTOGRAM_SHARE
    readable = 2 / (READABLE * records * mu) ** 2
    shares = (INPUT_SHARE, CENTRE_SHARE, min(max(readable, least), most), SCORE_SHARE)
    inputs, centre, norms, score = (1 / (mu * math.sqrt(share)) for share in shares)
    return Measuring(
        mu, inputs, centre, norms, (Round(RATES, max(2, round(RACE_LENGTH * steps)), RACE_NOISE, score, RACE_PART),)
    )


def too_few(plan: Measuring, records: int) -> str | None:
    """Why the measuring cannot say much of so few records, or None. Known before anything is spent."""
    deviation = max(each.score_noise * math.sqrt(each.rates) for each in plan.rounds) / records
    if deviation <= TELLING:
        return None
    return (
        f"{records} records are few for this epsilon: the scores of the race have noise of {deviation:.0%} of the records, so that the "
        "learning rate is mostly the rule's first guess. More records, a larger epsilon or a rate of your own (lr=) would help"
    )


def small_inputs(median_norm: float | None, blank_norm: float | None) -> str | None:
    """That gradients are hardly longer than that of an input which is all zeros (of `Task.blank_norm`, public), or None."""
    if median_norm is None or blank_norm is None or median_norm > HARDLY * blank_norm:
        return None
    return (
        f"half of the gradients at the first weights are shorter than about {median_norm:.2g}, and an input of zeros alone has {blank_norm:.2g}: the "
        "biases take most of each gradient, and what depends on the inputs trains slowly if at all. Scale inputs to about 1 by public figures"
    )


def limited_by(signal: float, rise: float) -> str:
    """In one sentence, what held the run back: `signal` is that of `Pilot.signal`, `rise` the log of what its rate rose by."""
    figures = f"all that moved the weights beside the noise has {signal:.1f} times the noise's energy over the run"
    if signal < 1:
        return f"the run was limited by noise: {figures}. More records or a larger epsilon would help, and more steps would not"
    if rise >= REACH / 2:
        return (
            f"the run was limited by its steps: {figures}, and its rate rose {math.exp(rise):.2g} times late in it, because released "
            "gradients kept pointing the same way. More epochs would help"
        )
    return (
        f"the run was limited by the model rather than by noise or steps: {figures}, and released gradients had ceased to point the same "
        "way. Better features or another model would help most"
    )


def far_off(typical_loss: float | None) -> str | None:
    """That the targets of values are far from what the first weights put out, or None."""
    if typical_loss is None or typical_loss <= FAR:
        return None
    return (
        f"targets are far from the model's first outputs: a typical loss there is {typical_loss:.2g}. The run has to travel that "
        "far first, which costs accuracy: scale them to about -1..1 by public figures, or train with their public range (--range, target_range=)"
    )


def scale_place(inputs: Any, outputs: Any) -> Any:
    """The bin of each record, by the power of SCALE_BASE that it wants: 0 for one that is well scaled. `inputs` is the length of what one
    place of the first layer sees, which is to the gradient of its weights what 1 is to that of its bias: too small, it is brought
    to 1..4. `outputs` is the root mean square of the layer's outputs, about 0.6 for inputs of about 1 at torch's first weights: too large, it is
    brought to 1/4..1, where inputs are long too. Bin -1 is for one whose size is not known."""
    up, down = (-(size.clamp_min(1e-30).log2() / math.log2(SCALE_BASE)) for size in (inputs, outputs))
    powers = up.ceil().where(inputs < SMALL, down.floor().where((outputs > LARGE) & (inputs > LARGE), 0.0))
    known = inputs.isfinite() & outputs.isfinite() & (inputs > 0)
    return (powers.nan_to_num(0.0).clamp(-SCALE_MOST, SCALE_MOST) + SCALE_MOST).where(known, -1.0).long()


def centred_place(inputs: Any) -> Any:
    """The bin of each record once inputs are centred, by the power of 2 that brings their length to half of CENTRED_LENGTH or more; -1 for one whose length is not known."""
    powers = (CENTRED_LENGTH / inputs.clamp_min(1e-30)).log2().floor().nan_to_num(0.0).clamp(0, SCALES - 1)
    return powers.where(inputs.isfinite() & (inputs > 0), -1.0).long()


def centred_scale(noised: Sequence[float], noise_std: float) -> float:
    """What centred inputs are multiplied by: the power that most records want, 1 where none stands out of the noise."""
    most = max(noised)
    return float(2 ** list(noised).index(most)) if most >= STANDS_OUT * noise_std else 1.0


def input_scale(noised: Sequence[float], noise_std: float) -> float:
    """What the first layer's inputs are multiplied by: the power that most records want, 1 where none stands out of the noise."""
    most = max(noised)
    return SCALE_BASE ** (list(noised).index(most) - SCALE_MOST) if most >= STANDS_OUT * noise_std else 1.0


def input_bound(width: int) -> float:
    """The length that a first layer's input of so many numbers is cut to, before its mean is taken: that of numbers of about 1."""
    return math.sqrt(width)


def input_mean(noised: Any, noise_std: float, records: int) -> Any:
    """What is subtracted from the first layer's inputs, from their noised sum (a vector): their mean, less what of its square is noise; None where that is most or the mean is short."""
    mean = noised / records
    square, noise = float(mean.square().sum()), mean.numel() * (noise_std / records) ** 2
    real = 1 - noise / square if square > LEAST_MEAN**2 * mean.numel() else 0.0
    return real * mean if real >= CENTRED else None


def histogram_place(numbers: Any, bins: Bins) -> Any:
    """The bin of each (finite) number of a tensor; the first for those that are not above 0."""
    return (bins.an_octave * (numbers.clamp_min(1e-30).log2() - bins.lowest)).floor().clamp(0, BINS - 1).long()


def typical_loss(noised: Sequence[float], noise_std: float) -> float | None:
    """l, from a noised histogram of losses; None where nothing stands out of the noise."""
    upper = quantile(noised, noise_std, LOSSES, LOSS_QUANTILE)
    return None if upper is None else LOSS_PART * upper


def standing_out(noised: Sequence[float], noise_std: float) -> list[float] | None:
    """The counts with nothing where noise is all there is; None where it is all there is everywhere."""
    sums = [sum(noised[at : at + WINDOW]) for at in range(BINS - WINDOW + 1)]
    best = sums.index(max(sums))
    if sums[best] < SEEN * math.sqrt(WINDOW) * noise_std:
        return None
    near = range(best, best + WINDOW)
    sure = {at + k for at, n in enumerate(sums) if n >= SEEN * math.sqrt(WINDOW) * noise_std for k in range(WINDOW)}
    return [
        max(0.0, n) if at in near or (at in sure and n >= STANDS_OUT * noise_std) else 0.0
        for at, n in enumerate(noised)
    ]


def quantile(noised: Sequence[float], noise_std: float, bins: Bins, share: float = 0.5) -> float | None:
    """What this share is below (half of all: the median), from a noised histogram, between the ends of the bin that holds it; None where nothing
    stands out of the noise."""
    seen = standing_out(noised, noise_std)
    if seen is None:
        return None
    total, below = sum(seen), 0.0
    for place, count in enumerate(seen):
        if count and below + count >= share * total:
            return float(2 ** ((place + (share * total - below) / count) / bins.an_octave + bins.lowest))
        below += count
    return None


def left_over(noised: Sequence[float], noise_std: float, typical: float | None, score: float) -> float:
    """What share of the losses a race has left, if it is the same of each: from the noised histogram of the first ones and the best mean
    score. 1 where that cannot be told."""
    seen = None if typical is None else standing_out(noised, noise_std)
    if typical is None or seen is None:
        return 1.0
    losses = [2 ** ((place + 0.5) / LOSSES.an_octave + LOSSES.lowest) for place in range(BINS)]

    def mean_score(left: float) -> float:
        return sum(n * typical / (typical + left * loss) for n, loss in zip(seen, losses, strict=True)) / sum(seen)

    if score <= mean_score(1.0):
        return 1.0
    return (
        0.0
        if score >= mean_score(0.001)
        else crossing(lambda left: mean_score(left) - score, 0.001, 1.0, tolerance=1e-4)
    )


def gamma_for(kind: Kind, median: float | None, worth: float, left: float = 0.0) -> float | None:
    """What is added to a norm before its gradient is divided by it: of values so much that gradients below the median keep their sizes, where
    records times mu are `worth` it and the race has `left` most of the losses; None is next to nothing, and so is GAMMA_LEAST of the median."""
    if kind == "classes" or median is None:
        return None
    low, high = STAYS
    stays = min(max((left - low) / (high - low), 0.0), 1.0)
    return max(GAMMA_LEAST, GAMMA_OVER_MEDIAN * min(1.0, worth / WORTH) * stays) * median


def score_of_losses(losses: Any, first: float) -> Any:
    """In 0..1 for each row, where no right answers can be counted: 1/2 for a loss as large as a typical first one, in whatever unit."""
    return first / (first + losses.clamp_min(0.0))


def first_guess(
    norm: float | None, loss: float | None, steps: int, *, kind: Kind, linear: bool, made: float | None = None
) -> float:
    """The middle of the race; `norm` is the median and `loss` a typical one at the first weights, the latter of values alone. Where they were not seen, `made`
    stands for the norm (that of a made record's gradient; of values, over the root of its loss), and MADE_LOSS for the loss."""
    unit = 1.0 if kind == "classes" else MADE_LOSS if loss is None else loss
    seen = norm if norm is not None else (made or 1.0) * math.sqrt(unit)
    between = GUESS * math.sqrt(
        unit / (seen * steps)
    )  # of values the unit of the losses, which is in their gradients too, cancels
    all_noise = LINEAR_GUESS * unit / (seen * math.sqrt(steps))
    if kind == "values":
        return min(between, all_noise)
    return all_noise if linear and norm is not None else between


def race_rates(plan: Measuring, middle: float, results: Sequence[Result]) -> tuple[float, ...]:
    """The rates of the next round, after the results of those before it."""
    rates = plan.rounds[len(results)].rates
    return tuple(middle * SPACING ** (k - (rates - 1) / 2) for k in range(rates))


def chosen_rate(results: Sequence[Result], records: int, kind: Kind) -> float:
    """The training's rate: a mean in log rate, weighted by the scores of the last round and a prior around its middle."""
    rates, scores, noise_std = results[-1]
    soft = SOFTNESS + NOISES * noise_std / records
    logs = [math.log(rate) for rate in rates]
    middle = sum(logs) / len(logs)
    support = [
        score / records / soft - ((log - middle) / PRIOR) ** 2 / 2 for score, log in zip(scores, logs, strict=True)
    ]
    most, worst = max(support), max(scores) - (SOFTNESS * records + CERTAIN * math.sqrt(2) * noise_std)
    weights = [math.exp(each - most) if score >= worst else 0.0 for each, score in zip(support, scores, strict=True)]
    return FACTORS[kind] * math.exp(sum(w * log for w, log in zip(weights, logs, strict=True)) / sum(weights))


def next_rise(rise: float, z: float, taken: int, steps: int) -> float:
    """Log of this step's rate over the first. `z` is <released gradient, weights - average> over its noise's deviation; `taken`
    counts this step."""
    if taken <= AFTER * steps:
        return rise
    return min(max(rise - GAIN * min(max(z, -1.0), 1.0), 0.0), REACH)


def average_weight(taken: int) -> float:
    """How far the average moves towards the weights after so many steps."""
    return min(1.0, 9 / (taken + 8))


def sgd_rate(adam_rate: float, noise_std: float, momentum: float) -> float:
    """SGD's rate that walks as Adam does where noise dominates: Adam divides by the noise's deviation (of p.grad), and a
    momentum buffer adds up 1 / (1 - momentum) gradients."""
    return adam_rate * (1 - momentum) / noise_std
