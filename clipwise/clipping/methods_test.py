"""Every method of the registry passes the conformance suite; broken twins of `fixed` do not."""

from dataclasses import dataclass

import pytest
import torch

from clipwise.clipping import METHODS, Fixed, make_method, method_options
from clipwise.clipping.conformance import Nonconforming, check
from clipwise.types import BadArgument, Decision


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.sound])
def test_conforms(name):
    check(make_method(name))


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if not kind.sound])
def test_what_has_no_guarantee_does_not_conform(name):
    with pytest.raises(Nonconforming):
        check(make_method(name))
    assert METHODS[METHODS[name].alternative].sound


@pytest.mark.parametrize("threshold", [1e-6, 0.1, 1.0, 1e6])
def test_fixed_conforms_at_any_threshold(threshold):
    check(Fixed(threshold=threshold))


def test_weights_of_abadi():
    """min(1, C / norm), by hand: C = 1, norms 0, .01, .5, 1, 3, 10."""
    norms = torch.tensor([0, 0.01, 0.5, 1, 3, 10], dtype=torch.float64)
    method = Fixed()
    weights = method.decide(method.init(None), norms).weights
    torch.testing.assert_close(weights, torch.tensor([1, 1, 1, 1, 1 / 3, 0.1], dtype=torch.float64))


class NoClamp(Fixed):
    def decide(self, state, norms, groups=None):  # noqa: ARG002
        return Decision(torch.ones_like(norms))


class LeaksNaN(Fixed):
    def decide(self, state, norms, groups=None):  # noqa: ARG002
        return Decision(torch.clamp(state.threshold / norms, max=1.0))


class BatchMedian(Fixed):
    def decide(self, state, norms, groups=None):  # noqa: ARG002
        median = norms[norms.isfinite()].median() if norms.isfinite().any() else torch.tensor(1.0)
        return super().decide(state._replace(threshold=min(state.threshold, float(median))), norms)


@dataclass(frozen=True, kw_only=True)
class SmugglesState(Fixed):
    def decide(self, state, norms, groups=None):
        object.__setattr__(self, "seen", float(norms.nansum()))
        return super().decide(state, norms, groups)


class TooGenerous(Fixed):
    def l2_bound(self, state):
        return state.threshold / 1.01


class UndeclaredQuery(Fixed):
    def decide(self, state, norms, groups=None):
        return Decision(super().decide(state, norms, groups).weights, {"count": torch.ones(len(norms), 1)})


@pytest.mark.parametrize(
    ("twin", "rule"),
    [
        (NoClamp, "non-finite norm"),
        (LeaksNaN, "finite"),
        (BatchMedian, "own row alone"),
        (SmugglesState, "leaves nothing"),
        (TooGenerous, "within l2_bound"),
        (UndeclaredQuery, "declared and answered"),
    ],
)
def test_broken_twins_are_caught(twin, rule):
    with pytest.raises(Nonconforming, match=rule):
        check(twin())


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "1", None, True])
def test_bad_threshold(value):
    with pytest.raises(BadArgument, match="threshold="):
        make_method("fixed", threshold=value)


def test_unknown_method_and_option():
    with pytest.raises(BadArgument, match=r"method='abadi'.*fixed"):
        make_method("abadi")
    with pytest.raises(BadArgument, match=r"c=1.*threshold"):
        make_method("fixed", c=1)


def test_options_are_described():
    assert method_options("fixed")[0]["name"] == "threshold"
    assert method_options("fixed")[0]["help"]


@pytest.mark.parametrize("name", METHODS)
def test_facts_are_filled(name):
    """What `clipwise methods` and docs/methods/ print. Said by each class itself, since a parent's would be wrong."""
    kind = METHODS[name]
    for fact in ("name", "summary", "reference", "adapts", "guarantee"):
        assert fact in vars(kind), fact
        assert getattr(kind, fact), fact
    assert "tune" in vars(kind) or kind.tune == ()
    assert set(kind.tune) <= {option["name"] for option in method_options(name)}
    assert all(option["help"] for option in method_options(name))
    assert len(kind.guarantee) < 120
