"""The config: what is written is read back the same, and what is not known or cannot be is refused with a remedy."""

import builtins
import math
import tomllib
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clipwise.data import DATASETS, Recipe
from clipwise.training.config import make_config, read_config
from clipwise.training.options import TrainConfig
from clipwise.training.resolve import optimizer_of, resolve
from clipwise.types import BadArgument

value = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.lists(st.integers(0, 9)),
)


def dataset(records):
    return SimpleNamespace(
        train=range(records), classes=10, recipe=Recipe("mlp", 64, 5, 0.25), kind="tabular", numbers=False
    )


@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), value), st.floats(1e-300, math.inf))
def test_round_trip(options, epsilon):
    config = make_config({"method_options": options, "epsilon": epsilon, "ranges": {"a": [0.0, 1.5]}, "seed": 3})
    assert make_config(tomllib.loads(config.to_toml())) == config


def test_resolved_fills_every_option_and_reads_back():
    config = resolve(make_config({"seed": 1, "out": "runs/x", "method": "fixed"}), dataset(1437))
    assert (config.model, config.expected_batch_size, config.epochs, config.lr, config.momentum) == (
        "mlp",
        64,
        5,
        0.25,
        0.9,
    )
    assert (config.epsilon, config.delta) == (3.0, 1e-5)
    assert config.method_options == {"threshold": 1.0, "normalise": False}
    again = make_config(tomllib.loads(config.to_toml()))
    assert again == config.model_copy(update={"out": None})
    assert resolve(again, dataset(1437)) == again


def test_what_a_run_finds_for_itself_is_left_open_and_reads_back():
    config = resolve(make_config({"seed": 1}), dataset(1437))
    assert config.method == "auto"
    assert (config.expected_batch_size, config.epochs, config.lr, config.optimizer) == (None, None, None, None)
    assert (config.epsilon, config.delta) == (3.0, 1e-5)
    assert resolve(make_config(tomllib.loads(config.to_toml())), dataset(1437)) == config
    assert resolve(make_config({"optimizer": "sgd"}), dataset(1437)).momentum == 0.9
    with pytest.raises(BadArgument, match="--optimizer sgd"):
        resolve(make_config({"momentum": 0.5}), dataset(1437))


def test_a_recipe_whose_package_is_not_here_is_passed_over():
    small = Recipe("mlp", 64, 5, 0.25)
    other = Recipe("linear", 32, 4, 0.5, instead=small)
    large, here = (Recipe("bert", 128, 2, 1.0, packages=(p,), instead=other) for p in ("no_such_package", "numpy"))
    assert [recipe.chosen(None) for recipe in (small, other, large, here)] == [small, other, other, here]
    assert [large.chosen(model) for model in ("bert", "mlp", "cnn")] == [large, small, other]
    alone = Recipe("scattering", 2048, 30, 0.5, for_others=False, instead=small)
    assert [alone.chosen(model) for model in (None, "scattering", "linear")] == [alone, alone, small]
    found = resolve(
        make_config({"model": "mlp", "method": "fixed"}), SimpleNamespace(**vars(dataset(1437)) | {"recipe": large})
    )
    assert (found.expected_batch_size, found.epochs, found.lr) == (64, 5, 0.25)


def test_the_recommended_method_unless_one_is_named():
    recipe = DATASETS["adult"].recipe
    assert recipe.method == "auto-s"
    assert make_config({"data": "adult"}).method == "auto-s"
    assert make_config({"data": "adult", "method": "psac"}).method == "psac"
    assert make_config({"data": "mine.csv"}).method == "auto"
    assert make_config({"data": "digits"}).method == make_config({}).method == DATASETS["digits"].recipe.method
    for strange in ([], {}, 3, None):
        with pytest.raises(BadArgument, match="data"):
            make_config({"data": strange})


def test_no_seed_is_said():
    assert "No seed was given" in TrainConfig().to_toml()
    assert "No seed" not in TrainConfig(seed=0).to_toml()


@pytest.mark.parametrize(("records", "delta"), [(10, 1e-5), (60_000, 1e-5), (100_000, 1e-6), (2_000_000, 1e-7)])
def test_default_delta_is_below_one_over_the_records(records, delta):
    found = resolve(TrainConfig(batch=1), dataset(records)).delta
    assert found == pytest.approx(delta)
    assert found < 1 / records


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"delta": 0.001}, "1 / 1000"),
        ({"delta": 0.01}, "such as 1e-04"),
        ({"batch": 1001}, "give 1000 or less"),
        ({"method": "nope"}, "choose one of"),
    ],
)
def test_what_the_data_rules_out(options, message):
    with pytest.raises(BadArgument, match=message):
        resolve(make_config(options), dataset(1000))


BAD = [
    ({"epslion": 3}, "did you mean 'epsilon'"),
    ({"methods": "fixed"}, "did you mean 'method'"),
    ({"qqqq": 3}, "known are data"),
    ({"epsilon": 0}, "epsilon=0"),
    ({"epsilon": -1.0}, "epsilon=-1.0"),
    ({"epsilon": math.nan}, "epsilon=nan"),
    ({"epsilon": -math.inf}, "epsilon=-inf"),
    ({"epsilon": True}, "epsilon=True"),
    ({"epsilon": "3"}, "epsilon='3'"),
    ({"noise_multiplier": -0.1}, "noise_multiplier=-0.1"),
    ({"noise_multiplier": math.nan}, "noise_multiplier=nan"),
    ({"epsilon": 3.0, "noise_multiplier": 1.0}, "leave one out"),
    ({"delta": 0.0}, "delta=0.0"),
    ({"delta": 1.0}, "delta=1.0"),
    ({"delta": 1.5}, "delta=1.5"),
    ({"epochs": 0}, "epochs=0"),
    ({"epochs": 2.5}, "epochs=2.5"),
    ({"batch": -1}, "batch=-1"),
    ({"lr": 0.0}, "lr=0.0"),
    ({"lr": math.inf}, "lr=inf"),
    ({"momentum": 1.0}, "momentum=1.0"),
    ({"momentum": 0.5, "optimizer": "adam"}, "leave it out"),
    ({"optimizer": "lbfgs"}, "optimizer='lbfgs'"),
    ({"weight_decay": -1.0}, "weight_decay=-1.0"),
    ({"accountant": "gdp"}, "accountant='gdp'"),
    ({"seed": -1}, "seed=-1"),
    ({"classes": 1}, "classes=1"),
    ({"test_fraction": 1.0}, "test_fraction=1.0"),
    ({"standardize": [0.5, 0.0]}, "standardize=0.0 must be finite and above 0"),
    ({"standardize": [0.5]}, r"standardize=\[0.5\] is not two numbers"),
    ({"ranges": {"a": [1.0, 0.0]}}, "low before high"),
    ({"ranges": {"a": [0.0, math.inf]}}, "low before high"),
    ({"method_options": 3}, "method_options=3"),
    ({"max_physical_batch": 0}, "max_physical_batch=0"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_refused(options, message):
    with pytest.raises(BadArgument, match=message):
        make_config(options)


def test_toml_and_yaml_say_the_same(tmp_path):
    (tmp_path / "a.toml").write_text('data = "digits"\nepsilon = inf\n[method_options]\nthreshold = 0.5\n')
    (tmp_path / "a.yaml").write_text("data: digits\nepsilon: .inf\nmethod_options: {threshold: 0.5}\n")
    assert make_config(read_config(tmp_path / "a.toml")) == make_config(read_config(tmp_path / "a.yaml"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.toml", "epsilon = = 3", "not valid TOML"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.yaml", "just text", "holds no options"),
        ("a.yaml", "", "holds no options"),
        ("a.toml", b"\xff\xfe", "cannot be read"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(BadArgument, match=message):
        read_config(tmp_path / name)


def test_missing_file(tmp_path):
    with pytest.raises(BadArgument, match="cannot be read"):
        read_config(tmp_path / "gone.toml")


def test_yaml_without_pyyaml(tmp_path, monkeypatch):
    real = builtins.__import__

    def without_yaml(name, *rest):
        if name == "yaml":
            raise ModuleNotFoundError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_yaml)
    (tmp_path / "a.yaml").write_text("epsilon: 3\n")
    with pytest.raises(BadArgument, match=r"clipwise\[yaml\]"):
        read_config(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    ("options", "kind", "expected"),
    [
        ({}, "SGD", {"lr": 0.25, "momentum": 0.9, "weight_decay": 0}),
        ({"optimizer": "adam", "lr": 0.1, "weight_decay": 0.5}, "Adam", {"lr": 0.1, "weight_decay": 0.5}),
        ({"optimizer": "adamw"}, "AdamW", {"lr": 2e-3, "weight_decay": 0}),
        ({"optimizer": "rmsprop", "momentum": 0.5}, "RMSprop", {"lr": 2e-3, "momentum": 0.5}),
    ],
)
def test_optimizer(options, kind, expected):
    import torch

    made = optimizer_of(resolve(make_config({"method": "fixed", **options}), dataset(1000)))(
        [torch.nn.Parameter(torch.zeros(1))]
    )
    assert type(made).__name__ == kind
    assert {name: made.param_groups[0][name] for name in expected} == expected
