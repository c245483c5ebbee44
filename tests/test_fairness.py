"""Figures by group from a run to its report, what training records may say, and the comparison from end to end."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
from typer.testing import CliRunner

import clipwise
from clipwise.accounting import StepEvent, epsilon
from clipwise.accounting.ledger import Ledger
from clipwise.cli import app
from clipwise.fairness.after_training import clipped_counts, group_counts
from clipwise.fairness.evaluate import Answers, ask, figures_by_group
from clipwise.loop.fit import fit
from clipwise.types import BadArgument, Unsupported

SMALL = ("--model", "linear", "--epochs", "1", "--batch", "500", "--accountant", "rdp", "--seed", "7")


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def answer(*words):
    result = run(*words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*words):
    result = run(*words, "--json")
    assert result.exit_code == 2, result.output
    return json.loads(result.stdout)["error"]


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A user's table: a feature, a group in {0, 1, 2}, a label."""
    rng = np.random.default_rng(0)
    rows = [(rng.normal(), rng.integers(0, 3), rng.integers(0, 2)) for _ in range(200)]
    path = tmp_path_factory.mktemp("own") / "table.csv"
    path.write_text("x,ward,ill\n" + "".join(f"{x + y:.3f},{g},{y}\n" for x, g, y in rows))
    return path


def test_a_run_tells_its_figures_by_group(tmp_path):
    folder = tmp_path / "run"
    result = answer(
        "train",
        *SMALL,
        "--epsilon",
        "5",
        "--method",
        "dpsgd-f",
        "--group-counts",
        "20",
        "--clipped-counts",
        "15",
        "--out",
        folder,
    )
    groups = result["by_group"]["class"]["groups"]
    assert [g["group"] for g in groups] == list("0123456789")
    assert sum(g["records"] for g in groups) == 360
    assert sum(g["records"] * g["accuracy"] for g in groups) / 360 == pytest.approx(result["accuracy"])
    assert result["by_group"]["class"]["equalised_odds_difference"] == {
        "value": None,
        "note": "the groups are the classes",
    }
    assert 0.5 < result["auc"]["value"] < 1
    with np.load(folder / "predictions.npz") as file:
        assert (file["predicted"] == file["targets"]).mean() == pytest.approx(result["accuracy"])
        assert (file["group class"] == file["targets"]).all()
    # The counts were paid for from the same budget, and the statement says where each figure comes from.
    assert result["epsilon"] <= 5
    events = Ledger.read(folder / "ledger.jsonl").events()
    assert StepEvent(1.0, 20.0) in events
    assert StepEvent(1.0, 15.0) in events
    assert sum(event.count for event in events) == result["steps"] == 5
    counts = result["group_counts"]["groups"]
    assert sum(g["right"] + g["wrong"] for g in counts) == pytest.approx(1437, abs=5 * 20 * 20**0.5)
    assert "unsafe_by_group" not in result
    low, high = result["auc"]["interval"]
    assert low < result["auc"]["value"] < high
    # Why: on the test part, and as released counts; never exact on training records without being asked.
    gradients = result["gradients"]
    assert (gradients["group_by"], gradients["method"]) == ("class", "dpsgd-f")
    assert [g["records"] for g in gradients["groups"]] == [g["records"] for g in groups]
    assert all(0 <= g["clipped_share"] <= 1 and g["direction_error"] < 90 for g in gradients["groups"])
    assert max(g["kept"] for g in gradients["groups"]) == 1
    clipped = result["clipped_counts"]["groups"]
    assert sum(g["clipped"] + g["not_clipped"] for g in clipped) == pytest.approx(1437, abs=5 * 15 * 20**0.5)
    assert "unsafe_gradients" not in result
    statement = (folder / "statement.md").read_text()
    assert (
        "on the test part, which is treated as public; on the training records, by class: one release of 20"
        in statement
    )
    assert "one release of 20 counts (clipped and not clipped), l2 bound 1, noise multiplier 15" in statement
    assert "not private" not in statement
    # dpsgd-f has a threshold for each of the ten classes, and says what the labels cost.
    assert '"number_of_groups" = 10' in (folder / "config.toml").read_text()
    assert "counts, 20 numbers, noise multiplier 10 at l2 bound 1" in statement
    made = answer("report", folder, "--out", tmp_path / "page")
    assert made["problems"] == []
    page = (tmp_path / "page" / "report.html").read_text()
    assert "Accuracy by group: class" in page
    assert "Accuracy by group, released: class" in page
    assert "predictions.npz" in page
    assert "Clipping by group: class" in page
    assert "Clipping by group, released: class" in page
    assert 'aria-label="Share of gradients that are clipped. 0:' in page
    assert "Clipping by group, not private" not in page


def test_exact_figures_on_training_records_only_by_name(tmp_path):
    result = answer("train", *SMALL, "--epsilon", "5", "--unsafe-diagnostics", "--out", tmp_path / "run")
    assert sum(g["records"] for g in result["unsafe_by_group"]["class"]["groups"]) == 1437
    assert sum(g["records"] for g in result["unsafe_gradients"]["groups"]) == 1437
    statement = (tmp_path / "run" / "statement.md").read_text()
    assert "Exact figures on the training records were printed" in statement
    assert "exact ones on the training records, at the user's request: not private" in statement


def test_a_users_column_as_groups(table, tmp_path):
    words = ("train", "--data", table, "--label", "ill", "--model", "linear", "--epochs", "1", "--batch", "40")
    words += ("--accountant", "rdp", "--seed", "1", "--epsilon", "8")
    result = answer(*words, "--group-by", "ward", "--method", "dpsgd-f", "--out", tmp_path / "run")
    groups = result["by_group"]["ward"]["groups"]
    assert [g["group"] for g in groups] == ["0", "1", "2"]
    assert sum(g["records"] for g in groups) == result["test_size"]
    assert result["by_group"]["ward"]["demographic_parity_difference"]["value"] is not None
    assert '"number_of_groups" = 3' in (tmp_path / "run" / "config.toml").read_text()
    out = ("--out", tmp_path / "refused")
    assert "'x': the column holds more than whole numbers" in refused(*words, "--group-by", "x", *out)
    assert "choose one of class, x, ward" in refused(*words, "--group-by", "sex", *out)
    wrong = ("--method", "dpsgd-f", "--method-option", "number_of_groups=2")
    assert "has 3 groups" in refused(*words, "--group-by", "ward", *wrong, *out)
    assert not (tmp_path / "refused").exists()


def tiny(**options):
    torch.manual_seed(0)
    x = torch.randn(120, 3)
    data = TensorDataset(x, (x[:, 0] > 0).long(), torch.arange(120) % 2)
    settings = {
        "method": "fixed",
        "delta": 1e-4,
        "epochs": 1,
        "expected_batch_size": 40,
        "seed": 0,
        "accountant": "rdp",
    }
    by = {"groups": options.pop("groups", third), "number_of_groups": options.pop("number_of_groups", 2)}
    after = [make(options.pop(name), **by) for name, make in COUNTS.items() if name in options]
    return fit(nn.Linear(3, 2), data, after=after, **settings | options)


def third(batch):
    return batch[2]


COUNTS = {"group_counts": group_counts, "clipped_counts": clipped_counts}


def test_counts_come_out_of_the_same_budget():
    """More noise in the steps pays for the release; the sum stays within the target."""
    without, with_counts = tiny(epsilon=2.0), tiny(epsilon=2.0, group_counts=6.0)
    assert with_counts.noise_multiplier > 1.02 * without.noise_multiplier
    assert with_counts.epsilon <= 2.0
    assert with_counts.epsilon == pytest.approx(2.0, rel=1e-3)
    assert (with_counts.steps, without.steps) == (4, 3)
    assert len(with_counts.released["group_counts"].yes) == 2
    assert not without.released
    # At the same noise, the release adds what one unsampled Gaussian costs.
    same = tiny(noise_multiplier=without.noise_multiplier, group_counts=6.0)
    events = [StepEvent(same.sample_rate, same.noise_multiplier, 3), StepEvent(1.0, 6.0)]
    assert same.epsilon == pytest.approx(epsilon(events, 1e-4, "rdp").value)
    assert same.epsilon > without.epsilon


def test_clipped_counts_by_hand():
    """Without any training to speak of and almost no noise: how many records of each group have a gradient above C."""
    torch.manual_seed(0)
    x = torch.randn(120, 3)
    data = TensorDataset(x, (x[:, 0] > 0).long(), torch.arange(120) % 2)
    model = nn.Linear(3, 2)
    options = {"method": "fixed", "delta": 1e-4, "epochs": 1, "expected_batch_size": 40, "seed": 0, "accountant": "rdp"}
    found = fit(
        model,
        data,
        noise_multiplier=1.0,
        after=[clipped_counts(1e-3, groups=third, number_of_groups=2)],
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        method_options={"threshold": 1.3},
        **options,
    )
    shares = model(x).softmax(1) - nn.functional.one_hot(data.tensors[1], 2)
    rows = torch.cat([x, torch.ones(120, 1)], dim=1)  # a 1 for the bias: the gradient is an outer product
    norms = shares.norm(dim=1) * rows.norm(dim=1)
    above = norms > 1.3
    by_hand = [int(above[data.tensors[2] == g].sum()) for g in (0, 1)]
    assert found.released["clipped_counts"].yes == pytest.approx(by_hand, abs=0.05)
    assert 5 < min(by_hand) < max(by_hand) < 55
    assert list(found.released) == ["clipped_counts"]
    assert found.method_state.threshold == 1.3
    assert "forward" not in model.__dict__


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clipped_counts": 0.3}, "releases after training alone"),
        ({"clipped_counts": -1.0}, "clipped_counts=-1"),
        ({"clipped_counts": 5.0, "groups": None}, "clipped_counts: groups=None"),
        ({"clipped_counts": 5.0, "epsilon": float("inf")}, "clipped_counts with epsilon=inf"),
        ({"group_counts": 0.3}, "releases after training alone"),
        ({"group_counts": 0.0}, "group_counts=0"),
        ({"group_counts": 5.0, "groups": None}, "groups=None"),
        ({"group_counts": 5.0, "number_of_groups": None}, "number_of_groups=None"),
        ({"group_counts": 5.0, "epsilon": float("inf")}, "epsilon=inf"),
    ],
)
def test_counts_that_cannot_be_paid_for_are_refused(options, match):
    with pytest.raises(BadArgument, match=match):
        tiny(**{"epsilon": 2.0, **options})


def test_a_model_without_class_scores_has_no_figures():
    data = TensorDataset(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))
    assert ask(nn.Linear(3, 1), data) is None
    model = nn.Linear(3, 2).train()
    assert ask(model, data).scores.shape == (4, 2)
    assert model.training


def test_scores_that_are_not_finite_are_named():
    scores = np.array([[1.0, 0], [np.nan, 0], [0, 1], [0, 1]])
    figures = figures_by_group(Answers(np.array([0, 0, 1, 1]), scores), {"side": (("a", "b"), np.array([0, 0, 1, 1]))})
    first, second = figures["side"]["groups"]
    assert first == {"group": "a", "records": 2, "accuracy": 0.5, "loss": None, "note": "a value is not finite"}
    assert "note" not in second
    json.dumps(figures, allow_nan=False)


def test_the_comparison_from_end_to_end(tmp_path):
    out = ("--out", tmp_path / "study", "--publish", tmp_path / "docs", "--jobs", "1")
    words = ("--data", "digits", "--methods", "fixed", "--epsilon", "8", "--seeds", "1", "--groups", "2,8")
    found = answer("fairness", *words, "--model", "linear", "--epochs", "1", "--batch", "500", *out)
    plain, private = found["rows"]
    assert (plain["variant"], private["variant"], private["target_epsilon"]) == ("without privacy", "fixed", 8.0)
    assert private["epsilon"] <= 8
    (gap,) = private["gaps"]
    cost = {group: entry["value"] for group, entry in private["cost_by_group"].items()}
    for group in "28":
        by_hand = plain["accuracy_by_group"][group]["value"] - private["accuracy_by_group"][group]["value"]
        assert cost[group] == pytest.approx(by_hand)
    assert gap["gap"]["value"] == pytest.approx(abs(cost["2"] - cost["8"]))
    assert gap["interval"][0] <= gap["gap"]["value"] <= gap["interval"][1]
    names = {"fairness.md", "fairness.json", "gap-1.png", "gap-largest.png", "lowest-group.png", "results.jsonl"}
    names |= {"clipped-share.png", "direction-error.png", "kept.png"}
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {f"fairness-digits-{name}" for name in names}
    assert f"Made by `{found['command']}`" in (tmp_path / "study" / "fairness.md").read_text()
    for name, picture in (
        ("study/fairness.md", "kept.png"),
        ("docs/fairness-digits-fairness.md", "fairness-digits-kept.png"),
    ):
        page = (tmp_path / name).read_text()
        assert f"]({picture})" in page
        assert ((tmp_path / name).parent / picture).exists()
    assert plain["gradients_by_group"] == {}
    assert private["gradients_by_group"]["8"]["clipped_share"]["value"] <= 1
    assert private["auc"]["interval"][0] < private["auc"]["value"] < private["auc"]["interval"][1]
    words = "\n".join(of_docs().section(found, "fairness-digits"))
    assert "| fixed | " in words
    assert f"fixed, {100 * gap['gap']['value']:.2f} (" in words
    assert "(results/fairness-digits-kept.png)" in words
    assert "gap-1.png" not in words  # a line against one epsilon


def of_docs():
    path = Path(__file__).parent.parent / "docs" / "make_fairness.py"
    spec = importlib.util.spec_from_file_location("make_fairness", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_names_what_narrows_the_gap():
    """Rows by hand: a method that is bad for everyone does not win, and intervals that overlap are said to."""

    def row(variant, accuracy, gap, low, high, published):
        entry = {"groups": ["2", "8"], "gap": {"value": gap}, "interval": [low, high], "published_per_cent": published}
        return {"variant": variant, "target_epsilon": 3.0, "accuracy": accuracy, "gaps": [entry]}

    rows = [
        row("fixed", 0.90, 0.20, 0.15, 0.25, 3.0),
        row("fair", 0.92, 0.10, 0.06, 0.16, 9.0),
        row("useless", 0.11, 0.01, 0.0, 0.02, 1.0),
    ]
    module = of_docs()
    (line,) = module._narrowest(rows)
    assert line.startswith("- epsilon 3: fair, 10.00 (6.00 to 16.00) at accuracy 92.00; fixed has 20.00")
    assert "2.00 points lower" in line
    assert "overlaps with that of fixed" in line
    assert "whatever the gap: useless (11.00)" in line
    assert (
        module._ranking(rows)[-2]
        == "| 3 | useless 1.00 < fixed 3.00 < fair 9.00 | useless 1.00 < fair 10.00 < fixed 20.00 |"
    )


def test_class_weights_from_public_priors(table, tmp_path):
    """On the command line and in Python; the statement says whose numbers they are."""
    words = (
        "train",
        "--data",
        table,
        "--label",
        "ill",
        "--model",
        "linear",
        "--epochs",
        "1",
        "--batch",
        "40",
        "--seed",
        "1",
    )
    words += ("--accountant", "rdp", "--epsilon", "8", "--lr", "0.5")
    for text in ("cross-entropy:weights=0.25/4", "focal:gamma=2,alpha=0.05/0.95"):
        folder = tmp_path / text[:5]
        result = answer(*words, "--loss", text, "--out", folder)
        rare = {g["group"]: g["accuracy"] for g in result["by_group"]["class"]["groups"]}
        assert rare["1"] > rare["0"]  # the class that weighs more
        assert "stated by the user as public" in (folder / "statement.md").read_text()
    assert "3 weights for 2 classes" in refused(
        *words, "--loss", "cross-entropy:weights=1/2/3", "--out", tmp_path / "x"
    )


def test_sampling_by_group_is_refused_by_name():
    data = TensorDataset(torch.randn(20, 3), torch.zeros(20, dtype=torch.long))
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    more_of_some = torch.where(torch.arange(20) < 4, 5.0, 1.0)
    loader = DataLoader(data, batch_size=5, sampler=WeightedRandomSampler(more_of_some, 20))
    with pytest.raises(Unsupported, match=r"WeightedRandomSampler.*weight the loss instead"):
        clipwise.attach(model, optimizer, loader, epsilon=3.0, delta=1e-3, epochs=1, method="fixed")
    own = DataLoader(data, batch_sampler=[[0, 1], [2, 3]])
    with pytest.raises(Unsupported, match="batch_sampler"):
        clipwise.attach(model, optimizer, own, epsilon=3.0, delta=1e-3, epochs=1, method="fixed")


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (("--data", "digits", "--groups", "2"), "groups='2' is not a pair"),
        (("--data", "digits", "--groups", "2,2"), "two different"),
        (("--data", "digits", "--groups", "2,ten"), "'ten' is no group"),
        (("--data", "digits", "--group-by", "sex"), "group_by='sex'"),
        (("--data", "digits", "--methods", "fixd"), "fixd"),
        (("--data", "digits", "--methods", ","), "methods=','"),
        (("--data", "digits", "--epsilon", "1;2"), "epsilon='1;2'"),
        (("--data", "digits", "--epsilon", "-1"), "epsilon=-1.0"),
        (("--data", "digits", "--seeds", "0"), "seeds=0"),
        (("--data", "digits", "--quick"), "quick"),
        (("studies/quick.toml", "--data", "digits"), "data='digits'"),
        (("--data", "nowhere"), "nowhere"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(words, match, tmp_path):
    assert match in refused("fairness", *words, "--out", tmp_path / "study")
    assert not (tmp_path / "study").exists()


def test_a_study_without_a_plain_run_is_refused(tmp_path):
    file = tmp_path / "s.toml"
    file.write_text('[common]\ndata = "digits"\nseed = 0\nepsilon = 3.0\n[[variant]]\nname = "fixed"\n')
    assert "no variant without privacy" in refused("fairness", file)
