"""Several views of an image are one record: one mean gradient, clipped once."""

import json

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from typer.testing import CliRunner

import clipwise
from clipwise.cli import app
from clipwise.loop.keeping import Keeping
from clipwise.training.views import OfViews, Views

torch.manual_seed(0)
IMAGES = TensorDataset(torch.randn(24, 2, 8, 8), torch.arange(24) % 3)


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(144, 3))


def test_a_view_is_a_crop_of_its_own_image_perhaps_turned_over():
    views, target = Views(IMAGES, 50)[3]
    assert views.shape == (50, 2, 8, 8)
    assert target.tolist() == [int(IMAGES[3][1])] * 50
    wide = F.pad(IMAGES[3][0], [1, 1, 1, 1], mode="reflect")
    crops = [wide[:, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    all_of_them = [*crops, *(crop.flip(-1) for crop in crops)]
    found = [[torch.equal(view, crop) for crop in all_of_them].index(True) for view in views]
    assert len(set(found)) > 12  # of 18, in 50 draws


def test_a_record_gives_the_mean_gradient_of_its_views_clipped_once():
    views = TensorDataset(torch.randn(12, 5, 2, 8, 8), (torch.arange(12) % 3)[:, None].expand(12, 5))
    model, means = OfViews(network()), []
    for images, targets in views:
        model.zero_grad()
        F.cross_entropy(model.model(images), targets).backward()
        means.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    threshold = float(torch.stack(means).norm(dim=1).median())  # half of the records are clipped
    want = sum(mean * min(1.0, threshold / float(mean.norm())) for mean in means)
    private = clipwise.attach(
        model,
        optimizer := torch.optim.SGD(model.parameters(), lr=1.0),
        DataLoader(views, batch_size=12),
        method="fixed",
        threshold=threshold,
        noise_multiplier=1e-9,
        sample_rate=1.0,
        expected_batch_size=12,
        delta=1e-3,
        epochs=1,
    )
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    for images, targets in private.loader:
        optimizer.zero_grad()
        private.backward(clipwise.losses.cross_entropy(model(images), targets))
        optimizer.step()
    moved = before - torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.allclose(moved * 12, want, atol=1e-5)


def train(folder, *, die_at=None, resume=None):
    torch.manual_seed(3)

    def on_step(values, _):
        if values["step"] == die_at:
            raise KeyboardInterrupt

    return clipwise.fit(
        OfViews(network()),
        Views(IMAGES, 3),
        test=IMAGES,
        loss="cross-entropy",
        ledger=folder / "ledger.jsonl",
        checkpoints=Keeping(folder / "kept", every_steps=1),
        resume=resume,
        on_step=on_step,
        **{"method": "fixed", "threshold": 1.0, "epsilon": 3.0, "delta": 1e-3, "epochs": 2},
        **{"expected_batch_size": 6, "seed": 5},
    )


def test_a_run_that_dies_goes_on_with_the_same_views(tmp_path):
    (whole := tmp_path / "whole").mkdir()
    (cut := tmp_path / "cut").mkdir()
    want = train(whole)
    with pytest.raises(KeyboardInterrupt):
        train(cut, die_at=5)
    again = train(cut, resume=cut / "kept")
    for one, other in zip(want.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert want.accuracy == again.accuracy


def clip(*words):
    return CliRunner().invoke(app, ["train", *map(str, words)])


def test_from_the_command_line(tmp_path):
    common = ("--model", "cnn", "--method", "auto-s", "--epochs", 1, "--batch", 400, "--seed", 1, "--json")
    result = clip("--views", 3, *common, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["accuracy"] is not None
    assert "mean over 3 random crops and flips" in (tmp_path / "run/statement.md").read_text()
    assert "views = 3" in (tmp_path / "run/config.toml").read_text()
    assert clipwise.load(tmp_path / "run").predict(torch.zeros(2, 1, 8, 8)).shape == (2,)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--views", 0), "views=0"),
        (("--views", 2, "--model", "autoencoder"), "learns numbers"),
        (("--views", 2, "--model", "cnn", "--group-counts", 20), "images as they are"),
    ],
)
def test_what_has_no_views_is_refused_before_training(options, why, tmp_path):
    result = clip(*options, "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
    assert not (tmp_path / "run").exists()
