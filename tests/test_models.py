"""The models fit their data, have the sizes on record, and do not disturb the global random state."""

from types import SimpleNamespace

import pytest
import torch

from clipwise.models import MODELS, build_model, parameter_count
from clipwise.types import BadArgument


def shaped(*shape, classes=10):
    return SimpleNamespace(shape=shape, classes=classes, kind="image" if len(shape) == 3 else "tabular")


@pytest.mark.parametrize(("name", "count"), [("cnn", 26010), ("linear", 7850), ("mlp", 784 * 128 + 128 + 1290)])
def test_parameters_on_28x28(name, count):
    assert parameter_count(build_model(name, shaped(1, 28, 28))) == count


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 8, 40), (3, 13, 19), (3, 20, 20), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", MODELS)
def test_logits_for_images_of_many_sizes(name, shape):
    assert build_model(name, shaped(*shape, classes=7))(torch.zeros(5, *shape)).shape == (5, 7)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_tables(name):
    assert build_model(name, shaped(4, classes=3))(torch.zeros(0, 4)).shape == (0, 3)


@pytest.mark.parametrize("shape", [(4,), (1, 7, 9), (8, 8)])
def test_cnn_refuses_what_is_no_image(shape):
    with pytest.raises(BadArgument, match="use model='mlp'"):
        build_model("cnn", shaped(*shape))


@pytest.mark.parametrize("name", MODELS)
def test_token_numbers_are_not_features(name):
    if "text" not in MODELS[name].kinds:
        with pytest.raises(BadArgument, match="this is text"):
            build_model(name, SimpleNamespace(shape=(48,), classes=2, kind="text"))


def test_unknown():
    with pytest.raises(BadArgument, match="choose one of cnn, linear, mlp"):
        build_model("resnet", shaped(4))


def test_seed_decides_the_weights_and_nothing_else():
    before = torch.random.get_rng_state()
    first, same, other, fresh = (build_model("linear", shaped(4), seed)[1].weight for seed in (1, 1, 2, None))
    assert torch.random.get_rng_state().equal(before)
    assert first.equal(same)
    assert not first.equal(other)
    assert not fresh.equal(build_model("linear", shaped(4))[1].weight)
