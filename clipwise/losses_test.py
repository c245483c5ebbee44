"""Losses against torch's own and a formula by hand; one record's loss never depends on another's."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from clipwise import losses
from clipwise.losses import LOSSES, make_loss
from clipwise.norms.loop import assert_agrees
from clipwise.types import BadArgument

TEXTS = [
    "cross-entropy",
    "cross-entropy:label_smoothing=0.1",
    "cross-entropy:weights=1/2/0.5",
    "focal",
    "focal:gamma=0.5,alpha=0.25",
    "focal:alpha=1/2/0.5",
]


def batch(rows=5):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, 3, generator=generator).double(), torch.arange(rows) % 3


def test_cross_entropy_is_torchs():
    out, y = batch()
    assert make_loss("cross-entropy")(out, y) == pytest.approx(float(F.cross_entropy(out, y)))
    weights = torch.tensor([1.0, 2.0, 0.5]).double()
    each = F.cross_entropy(out, y, weight=weights, reduction="none")
    torch.testing.assert_close(make_loss("cross-entropy:weights=1/2/0.5").each(out, y), each)
    assert make_loss("cross-entropy:weights=1/2/0.5")(out, y) == pytest.approx(float(each.mean()))  # not torch's mean


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.7])
def test_words_are_torchs_each_record_alone(smoothing):
    """Every record's own mean over its words that are not padding, or their sum over a public number."""
    generator = torch.Generator().manual_seed(0)
    out = torch.randn(4, 3, 6, generator=generator).double()
    y = torch.randint(0, 3, (4, 6), generator=generator)
    y[0, 2:], y[1, 5:], y[3] = -100, -100, -100
    options = {"label_smoothing": smoothing, "ignore_index": -100}
    got = losses.cross_entropy(out, y, **options)
    alone = [F.cross_entropy(out[i : i + 1], y[i : i + 1], **options) for i in range(3)]
    torch.testing.assert_close(got, torch.stack([*alone, torch.zeros(()).double()]))
    total = torch.stack([F.cross_entropy(out[i : i + 1], y[i : i + 1], reduction="sum", **options) for i in range(4)])
    torch.testing.assert_close(losses.cross_entropy(out, y, divide_by=6, **options), total / 6)


def test_any_losses_of_places_to_one_a_row():
    values, mask = torch.arange(6.0).view(2, 3), torch.tensor([[1, 1, 0], [0, 0, 0]])
    assert losses.per_row(values).tolist() == [1.0, 4.0]
    assert losses.per_row(values, mask).tolist() == [0.5, 0.0]
    assert losses.per_row(values, mask, divide_by=4).tolist() == [0.25, 0.0]
    assert losses.per_row(values[:, 0], mask[:, 1]).tolist() == [0.0, 0.0]
    with pytest.raises(BadArgument, match="mask of shape"):
        losses.per_row(values, mask[:, :2])
    with pytest.raises(BadArgument, match="divide_by=0"):
        losses.per_row(values, divide_by=0)


def test_weights_are_numbers():
    out, y = batch()
    assert losses.weights_from_priors((0.8, 0.2)) == pytest.approx((0.625, 2.5))
    with pytest.raises(BadArgument, match="may have been counted"):
        losses.cross_entropy(out, y, weights=torch.ones(3))
    with pytest.raises(BadArgument, match="2 weights for 3 classes"):
        losses.focal(out, y, alpha=(1, 2))
    with pytest.raises(BadArgument, match=r"label_smoothing=1\.5"):
        losses.cross_entropy(out, y, label_smoothing=1.5)
    with pytest.raises(BadArgument, match="places"):
        losses.cross_entropy(out, y.unsqueeze(1))


def test_focal_by_hand():
    """p = 1/2 and 9/10: 0.25 * 0.5^2 * ln 2 and 0.25 * 0.1^2 * ln(10/9)."""
    out = torch.tensor([[0.0, 0.0], [0.0, float(torch.tensor(9.0).log())]]).double()
    each = make_loss("focal:gamma=2,alpha=0.25").each(out, torch.tensor([0, 1]))
    assert each.tolist() == pytest.approx([0.25 * 0.25 * 0.69314718, 0.25 * 0.01 * 0.10536052], rel=1e-6)
    assert make_loss("focal:gamma=0").each(out, torch.tensor([0, 1])).tolist() == pytest.approx(
        [0.69314718, 0.10536052]
    )


@pytest.mark.parametrize("gamma", [0.5, 1, 2])
def test_focal_is_finite_where_the_class_is_certain(gamma):
    out = torch.tensor([[200.0, 0.0], [0.0, 200.0]], requires_grad=True)
    make_loss(f"focal:gamma={gamma}")(out, torch.tensor([0, 0])).backward()
    assert out.grad.isfinite().all()


def test_squared_error_is_torchs():
    out, target = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    assert make_loss("squared-error")(out, target) == pytest.approx(float(F.mse_loss(out, target)), rel=1e-5)
    with pytest.raises(BadArgument, match="cannot be compared"):
        make_loss("squared-error")(out, target[:, :1])


@pytest.mark.parametrize("text", TEXTS)
def test_a_batch_is_the_mean_of_its_records(text):
    """torch's own weighted mean fails here: it divides by the weights of the whole batch."""
    loss = make_loss(text)
    out, y = batch()
    alone = torch.stack([loss(out[i : i + 1], y[i : i + 1]) for i in range(len(y))])
    torch.testing.assert_close(loss(out, y), alone.mean())
    torch.testing.assert_close(loss.each(out, y), alone)


@pytest.mark.parametrize("text", TEXTS)
def test_the_engine_agrees_under_each(text):
    torch.manual_seed(0)
    loss = make_loss(text)

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x, y):
            return loss.each(self.layer(x), y)

    assert_agrees(Both(), (torch.randn(5, 4), torch.arange(5) % 3), loss=lambda each: each.sum())


@pytest.mark.parametrize("text", [*TEXTS, *LOSSES])
def test_text_round_trip(text):
    assert make_loss(str(make_loss(text))) == make_loss(text)


def test_weights_are_said_to_be_public():
    assert "public" in make_loss("focal:alpha=0.25/0.75").note
    assert make_loss("focal:alpha=0.25").note is None  # the same for all classes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hinge", "choose one of cross-entropy"),
        ("", "not a name"),
        ("focal:gamma=x", "gamma='x' is not a number"),
        ("focal:gamma=-1", "gamma=-1.0"),
        ("focal:gamma=nan", "gamma=nan"),
        ("focal:beta=1", "has gamma, alpha"),
        ("focal:gamma", "'gamma' is not understood"),
        ("focal:gamma=1,gamma=2", "twice"),
        ("focal:alpha=0/0", "every weight is 0"),
        ("cross-entropy:weights=1/-2", "weights=-2.0"),
        ("squared-error:gamma=1", "it has none"),
    ],
)
def test_refused(text, message):
    with pytest.raises(BadArgument, match=message):
        make_loss(text)


def test_weights_for_other_classes():
    with pytest.raises(BadArgument, match="2 weights for 10 classes"):
        make_loss("focal:alpha=0.25/0.75").check_classes(10)


def test_huber_is_torchs_row_by_row():
    output, target = torch.randn(7, 3, generator=torch.manual_seed(0)) * 3, torch.zeros(7, 3)
    expected = nn.HuberLoss(reduction="none", delta=0.7)(output, target).mean(1)
    assert losses.huber(output, target, delta=0.7).allclose(expected)
    loss = make_loss("huber:delta=0.7")
    assert (
        str(loss),
        loss.wants_classes,
        loss.each(output, target).equal(losses.huber(output, target, delta=0.7)),
    ) == (
        "huber:delta=0.7",
        False,
        True,
    )
    for bad in ("huber:delta=0", "huber:delta=x", "huber:gamma=2"):
        with pytest.raises(BadArgument):
            make_loss(bad)
    with pytest.raises(BadArgument, match="outputs' shape"):
        losses.huber(output, target[:, 0])
