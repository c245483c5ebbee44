"""The models fit their data, have the sizes on record, agree with the reference engine without its fallback, and do not
disturb the global random state."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import clipwise
from clipwise.data import DATASETS
from clipwise.models import MODELS, build_model, parameter_count, parameters_on
from clipwise.models.nfnet import NFNet, Plan
from clipwise.models.resnet import resnet
from clipwise.models.scaled_conv import ScaledStdConv2d
from clipwise.models.tokens import is_token, last_token, mean_of_tokens
from clipwise.norms.loop import assert_agrees
from clipwise.types import BadArgument

PRETRAINED = ("efficientnet-lite0", "bert")  # tested in test_pretrained.py
LARGE = ("resnet18", "resnet34", "nf-resnet50", "nfnet-f0", "nfnet-f1")  # tested by small ones of the same make
IMAGES = [n for n, a in MODELS.items() if a.records == "image" and n not in (*PRETRAINED, *LARGE)]
TOKENS = [n for n, a in MODELS.items() if a.records == "tokens" and n not in PRETRAINED]
LEAST = {"cnn-20-50": 16, "cnn-8-64": 10, "shufflenet": 32}


def shaped(*shape, classes=10, kind=None, words=None, padding=None):
    kind = kind or ("image" if len(shape) == 3 else "tabular" if words is None else "text")
    return SimpleNamespace(shape=shape, classes=classes, kind=kind, vocabulary_size=words, padding=padding)


def tokens():
    """Padded at the end, one record not at all, one of nothing but padding."""
    made = torch.randint(1, 20, (4, 9), generator=torch.Generator().manual_seed(0))
    made[0, 5:], made[1, :] = 0, 0
    return made


SIZES = [
    *(("linear", 1, 7850), ("mlp", 1, 784 * 128 + 128 + 1290), ("cnn", 1, 26010), ("cnn-relu", 1, 26010)),
    *(("cnn", 3, 28058), ("cnn-20-50", 1, 431080), ("cnn-16-32", 1, 20586), ("autoencoder", 1, 45697)),
    *(("cnn-8-64", 1, 551322), ("autoencoder-oso", 1, 48705)),  # OSO-DPSGD, Table 1
]


@pytest.mark.parametrize(("name", "channels", "count"), SIZES)
def test_parameters_on_28x28(name, channels, count):
    """28,058 is the small CNN of DC-SGD; 431,080 that of 20 and 50 channels by hand: 520 + 25,050 + 400,500 + 5,010."""
    assert parameter_count(build_model(name, shaped(channels, 28, 28))) == count


def test_parameters_of_the_large_ones():
    """torchvision's ResNets with 10 classes have 11,181,642 and 21,289,802; timm's NF-nets with 1000 have the others."""
    of = {name: parameters_on(name, shaped(3, 32, 32, classes=1000 if "nf" in name else 10)) for name in LARGE}
    expected = (11_181_642, 21_289_802, 25_557_032, 71_489_284, 132_634_256)
    assert of == dict(zip(LARGE, expected, strict=True))


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 8, 40), (3, 13, 19), (3, 20, 20), (1, 28, 28), (3, 32, 32)])
@pytest.mark.parametrize("name", ["linear", "mlp", *IMAGES])
def test_outputs_for_images_of_many_sizes(name, shape):
    given = shaped(*shape, classes=7)
    if min(shape[1:]) < LEAST.get(name, 8):
        with pytest.raises(BadArgument, match=f"model='{name}' needs images of at least"):
            build_model(name, given)
        return
    out = build_model(name, given)(torch.zeros(5, *shape))
    assert out.shape == ((5, *shape) if MODELS[name].reconstructs else (5, 7))


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_tables(name):
    assert build_model(name, shaped(4, classes=3))(torch.zeros(0, 4)).shape == (0, 3)


@pytest.mark.parametrize("shape", [(4,), (1, 7, 9), (8, 8)])
@pytest.mark.parametrize("name", [*IMAGES, *LARGE])
def test_refuses_what_is_no_image(name, shape):
    with pytest.raises(BadArgument, match=f"model='{name}' needs images.*use model="):
        build_model(name, shaped(*shape))


@pytest.mark.parametrize("name", [n for n, a in MODELS.items() if a.records != "tokens" and n not in PRETRAINED])
def test_token_numbers_are_not_features(name):
    with pytest.raises(BadArgument, match="of kind 'text'"):
        build_model(name, shaped(48, words=100, padding=0))


@pytest.mark.parametrize("name", TOKENS)
def test_features_are_not_token_numbers(name):
    with pytest.raises(BadArgument, match="needs rows of token numbers"):
        build_model(name, shaped(48))


def test_unknown():
    with pytest.raises(
        BadArgument, match="model='resnet' is not known; choose one of autoencoder, autoencoder-oso, bert"
    ):
        build_model("resnet", shaped(4))


def test_every_model_fits_the_data_set_that_it_is_typical_of():
    for name, architecture in MODELS.items():
        if name not in PRETRAINED:
            assert parameters_on(name, DATASETS[architecture.typical]), name


def test_every_recipe_names_a_model_that_fits():
    for source in DATASETS.values():
        assert parameters_on(source.recipe.chosen(None).model, source), source.name  # whose package is installed
        recipe = source.recipe
        while recipe is not None:
            assert recipe.packages or parameters_on(recipe.model, source), (source.name, recipe.model)
            recipe = recipe.instead


def test_seed_decides_the_weights_and_nothing_else():
    before = torch.random.get_rng_state()
    first, same, other, fresh = (build_model("linear", shaped(4), seed)[1].weight for seed in (1, 1, 2, None))
    assert torch.random.get_rng_state().equal(before)
    assert first.equal(same)
    assert not first.equal(other)
    assert not fresh.equal(build_model("linear", shaped(4))[1].weight)


# -- the engine ------------------------------------------------------------------------------------------------------------


def moved(model, seed=0):
    """Away from where gains and biases start, so that every term of every gradient counts."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return model


def small(name):
    """A model, and records for it."""
    generator = torch.Generator().manual_seed(1)
    if name in TOKENS:
        return build_model(name, shaped(9, classes=3, words=20, padding=0), 0), tokens()
    size = LEAST.get(name, 8)
    if name in LARGE:
        size = 32
        plans = {
            "nf-resnet50": Plan((1, 2, 1, 1), (16, 16, 32, 32), 8, 0.25, deepmind=False),
            "nfnet-f0": Plan((1, 2, 1, 1), (16, 16, 32, 32), 16, 0.5, deepmind=True, group=4, top=24),
        }
        torch.manual_seed(0)
        model = moved(NFNet(plans[name], 3, 3)) if name in plans else resnet(3, 3, (1, 2, 1, 1), (32, 32, 64, 64))
        return model, torch.rand(3, 3, size, size, generator=generator)
    return build_model(name, shaped(1, size, size, classes=3), 0), torch.rand(3, 1, size, size, generator=generator)


ALIKE = ("resnet34", "nfnet-f1")  # the same layers as resnet18 and nfnet-f0


@pytest.mark.parametrize("name", [n for n in MODELS if n not in (*PRETRAINED, *ALIKE)])
def test_agrees_with_the_reference_engine_without_fallback(name):
    model, x = small(name)
    assert_agrees(model, (x,))


@pytest.mark.parametrize("name", [n for n in MODELS if n not in (*PRETRAINED, *LARGE)])
def test_a_private_step_on_its_own_kind_of_records(name):
    model, x = small(name)
    architecture = MODELS[name]
    x = x.repeat(5, *[1] * (x.dim() - 1))
    y = x if architecture.reconstructs else torch.arange(len(x)) % 3
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no notice of a fallback
        result = clipwise.fit(
            model,
            TensorDataset(x, y),
            noise_multiplier=1.0,
            delta=1e-3,
            epochs=1,
            expected_batch_size=6,
            loss=architecture.loss,
            test=TensorDataset(x, y),
            seed=0,
            method="fixed",
        )
    assert result.steps == len(result.history) * -(-len(x) // 6)
    assert all(not value.equal(before[key]) for key, value in model.state_dict().items())
    assert (result.accuracy is None) == architecture.reconstructs
    if architecture.reconstructs:
        assert result.test_loss == pytest.approx(float((model(x) - x).detach().square().mean()), rel=1e-4)
        assert result.history[-1]["test_loss"] == result.test_loss


# -- parts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize(("groups", "stride"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("trained", [("weight", "gain", "bias"), ("weight",), ("gain",), ("bias",)])
def test_scaled_convolution_agrees(same, groups, stride, trained):
    torch.manual_seed(0)
    conv = moved(ScaledStdConv2d(4, 6, 3, stride=stride, groups=groups, same=same, gamma=1.7))
    for name, p in conv.named_parameters():
        p.requires_grad_(name in trained)
    assert_agrees(conv, (torch.rand(3, 4, 7, 6),))


def test_scaled_convolution_standardises():
    conv = moved(ScaledStdConv2d(4, 6, 3, gamma=1.7))
    weight = conv.standardised().weight.flatten(1) / conv.gain.flatten(1)
    assert weight.mean(1).abs().max() < 1e-6
    assert weight.norm(dim=1).tolist() == pytest.approx([1.7] * 6, rel=1e-3)  # variance gamma^2 / fan in


VECTORS = [
    (
        Plan((1, 2, 1, 1), (16, 16, 32, 32), 16, 0.5, deepmind=True, group=4, top=24),
        (-8.528381155072447, 11.919755470066177, -12.264932087221185),
    ),
    (
        Plan((1, 2, 1, 1), (32, 32, 64, 64), 8, 0.25, deepmind=False),
        (0.9820437383891225, 3.5182727577551796, 0.14128060258941919),
    ),
]


@pytest.mark.parametrize(("plan", "want"), VECTORS, ids=["nfnet", "nf-resnet"])
def test_nf_nets_are_timms(plan, want):
    """Outputs of timm 1.0.30's NormFreeNet of the same sizes, in float64, with weights by this formula under its names."""
    model = NFNet(plan, 3, 3).double().eval()
    with torch.no_grad():
        for i, (name, value) in enumerate(sorted(model.state_dict().items())):
            numbers = (torch.arange(value.numel(), dtype=torch.float64) * 0.37 + i).sin() * 0.5
            value.copy_(numbers.view(value.shape) + (0.3 if value.numel() == 1 or "gain" in name else 0))
        picture = (torch.arange(3 * 33 * 33, dtype=torch.float64) * 0.11).sin().view(1, 3, 33, 33)
        assert model(picture)[0].tolist() == pytest.approx(list(want), rel=1e-9)


def test_padding_decides_nothing():
    there = is_token(tokens(), 0)
    assert there.sum(1).tolist() == [5, 1, 9, 9]
    states = torch.arange(4 * 9).view(4, 9, 1).double()
    assert last_token(states, there).flatten().tolist() == [4, 9, 26, 35]
    assert mean_of_tokens(states, there).flatten().tolist() == [2, 9, 22, 31]
    assert is_token(tokens(), None).all()


@pytest.mark.parametrize("name", ["bow", "lstm"])
def test_a_longer_tail_of_padding_changes_nothing(name):
    model = build_model(name, shaped(9, words=20, padding=0), 0)
    given = tokens()[:1]
    torch.testing.assert_close(model(torch.cat([given, torch.zeros(1, 4, dtype=torch.long)], 1)), model(given))


def test_no_model_mixes_records():
    """A record's output alone and in company."""
    for name in MODELS:
        if name not in (*PRETRAINED, *ALIKE):
            model, x = small(name)
            model.double().eval()
            x = x.double() if x.is_floating_point() else x
            torch.testing.assert_close(model(x)[:1], model(x[:1]), msg=lambda m, name=name: f"{name}: {m}")
            assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


def test_the_table_of_the_docs():
    """docs/models.md has a row for every model, with the count that `clipwise models` prints."""
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text()
    for name, architecture in MODELS.items():
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}` |") and line.count("|") == 6]
        _, _, records, typical, count, summary, _ = (cell.strip() for cell in row.split("|"))
        assert (records, typical, summary) == (architecture.records, architecture.typical, architecture.summary)
        if name not in PRETRAINED:
            assert int(count.replace(",", "")) == parameters_on(name, DATASETS[typical]), name
