"""The registered data sets: the counts on record, what each carries for models, and refusals before anything is read."""

import gzip
import hashlib
import math
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from clipwise.data import DATASETS, TOKEN_KINDS, Source, load, source
from clipwise.types import BadArgument

needs_data = pytest.mark.skipif(
    not os.environ.get("CLIPWISE_DATA"), reason="CLIPWISE_DATA is not set: the real data sets are not at hand"
)
TEN = [1000] * 10
# Records a class, train and test, as their publishers count them; None: not stated.
REAL = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion_mnist": ([6000] * 10, TEN),
    "cifar10": ([5000] * 10, TEN),
    "svhn-subset": ([196, 529, 408, 354, 321, 292, 240, 242, 219, 199], [57, 151, 135, 86, 78, 78, 57, 55, 55, 48]),
    "ag_news": ([11756, 11910, 11831, 11685], [1900] * 4),
    "sst2": ([29780, 37569], [428, 444]),
    "adult": ([32561 - 7841, 7841], [16281 - 3846, 3846]),
}
# Published without a test part: records a class of both parts together.
WHOLE = {
    "qnli": [2761, 2702],
    "names": [
        *(2000, 268, 519, 297, 3668, 277, 724, 203, 232, 709, 991, 94, 139, 74, 9384, 100, 298, 73),  # by alphabet
    ],
}
MOMENTS = {  # mean and standard deviation of the train part's pixels, a channel
    "mnist": ([0.1307], [0.3081]),
    "fashion_mnist": ([0.2860], [0.3530]),
    "cifar10": ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
}
SLOW = {"cifar10": pytest.mark.slow}  # 20 s where it has not been decoded before, 2 s after that


def per_class(dataset):
    return [np.bincount(part.tensors[1], minlength=dataset.classes).tolist() for part in (dataset.train, dataset.test)]


@needs_data
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in REAL])
def test_records_a_class(name):
    dataset = load(name)
    assert per_class(dataset) == list(REAL[name])
    x = dataset.train.tensors[0]
    assert tuple(x.shape[1:]) == tuple(dataset.test.tensors[0].shape[1:]) == dataset.shape == DATASETS[name].shape
    found = DATASETS[name].find().edition
    assert (len(dataset.train), len(dataset.test)) == (found.train_count, found.test_count)
    if name in MOMENTS:
        for i, (mean, std) in enumerate(zip(*MOMENTS[name], strict=True)):
            assert float(x[:, i].mean()) == pytest.approx(mean, abs=5e-5)
            assert float(x[:, i].double().std()) == pytest.approx(std, abs=5e-5)


@needs_data
@pytest.mark.parametrize("name", WHOLE)
def test_what_has_no_test_part_is_split_without_overlap(name):
    dataset = load(name)
    train, test = per_class(dataset)
    assert [a + b for a, b in zip(train, test, strict=True)] == WHOLE[name]
    found = DATASETS[name].find().edition
    assert (sum(train), sum(test)) == (found.train_count, found.test_count)
    assert 0.15 < sum(test) / sum(WHOLE[name]) < 0.25
    raw = found.read(DATASETS[name].find().root)
    key = (lambda pair: pair[1]) if name == "qnli" else (lambda text: text)
    assert not {key(text) for text in raw[0].x} & {key(text) for text in raw[1].x}


@needs_data
def test_unbalanced_mnist_is_mnist_with_few_eights():
    whole, thinned = load("mnist"), load("unbalanced-mnist")
    assert thinned.test.tensors[0].equal(whole.test.tensors[0])
    train, counts = per_class(whole)[0], per_class(thinned)[0]
    assert [n for digit, n in enumerate(counts) if digit != 8] == [n for digit, n in enumerate(train) if digit != 8]
    assert counts[8] / sum(counts) == pytest.approx(0.01, abs=1e-3)
    assert sum(counts) == DATASETS["unbalanced-mnist"].editions[0].train_count
    others = whole.train.tensors[1] != 8
    assert thinned.train.tensors[0][thinned.train.tensors[1] != 8].equal(whole.train.tensors[0][others])


@needs_data
def test_adult_by_hand():
    dataset = load("adult")
    row = dict(zip(dataset.feature_names, dataset.train.tensors[0][0].tolist(), strict=True))
    # 39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States
    ones = {name for name, value in row.items() if "=" in name and value == 1}
    assert ones == {
        *("workclass=State-gov", "education=Bachelors", "marital-status=Never-married", "occupation=Adm-clerical"),
        *("relationship=Not-in-family", "race=White", "sex=Male", "native-country=United-States"),
    }
    assert row["age"] == pytest.approx(0.39)
    assert row["education-num"] == pytest.approx(12 / 15)
    assert row["capital-gain"] == pytest.approx(np.log(2175) / np.log(100000))
    assert (row["capital-loss"], row["hours-per-week"]) == (0, pytest.approx(0.4))
    x = dataset.train.tensors[0]
    assert (float(x.min()), float(x.max())) == (0, 1)
    loss = x[:, dataset.feature_names.index("capital-loss")]
    assert float(loss.max()) == pytest.approx(np.log(4357) / np.log(5001))  # the largest is 4356
    assert set(x[:, 5:].sum(1).tolist()) == {8.0}  # one of each of the eight columns
    sex, race = dataset.groups["sex"], dataset.groups["race"]
    assert (sex.names, race.names[0]) == (("Female", "Male"), "White")
    assert torch.bincount(sex.train).tolist() == [10771, 21790]
    assert torch.bincount(sex.test).tolist() == [5421, 10860]
    assert (int(sex.train[0]), int(race.train[0])) == (1, 0)


@needs_data
def test_texts_as_token_numbers():
    dataset = load("sst2")
    x = dataset.train.tensors[0]
    assert (dataset.kind, dataset.vocabulary_size, dataset.padding) == ("text", 16384, 0)
    assert x.dtype == torch.int64
    assert (int(x.min()), int(x.max()) < 16384) == (0, True)
    assert any("looks at no text" in note for note in dataset.notes)
    # "hide new secretions from the parental units": seven words, then padding
    assert (x[0] != 0).sum() == 7
    learned = load("sst2", vocabulary="training:1000")
    assert learned.vocabulary_size == 1000
    assert any("not private" in note for note in learned.notes)
    assert load("sst2", vocabulary="hashed:500").vocabulary_size == 500


@needs_data
def test_a_subset_says_so():
    notes = {name: DATASETS[name].find().edition.note for name in ("ag_news", "qnli")}
    if "ag_news/train_subset.csv.gz" in DATASETS["ag_news"].find().edition.files:
        assert "47,182 of the 120,000" in notes["ag_news"]
    if "qnli/dev.tsv.gz" in DATASETS["qnli"].find().edition.files:
        assert "not a GLUE score" in notes["qnli"]
        assert f"qnli: {notes['qnli']}" in load("qnli").notes


@pytest.mark.parametrize("name", DATASETS)
def test_what_every_source_says(name):
    entry = DATASETS[name]
    assert entry.name == name
    assert entry.licence
    assert entry.how_to_get
    assert entry.tuning
    assert entry.recipe.expected_batch_size <= min(edition.train_count for edition in entry.editions)
    assert len(set(entry.class_names)) == entry.classes >= 2
    assert (entry.kind in TOKEN_KINDS) == (entry.vocabulary_size is not None) == (entry.padding is not None)
    if entry.kind in TOKEN_KINDS:
        assert entry.shape == (entry.encoder.length,)
    for edition in entry.editions:
        for path, file in edition.files.items():
            assert not Path(path).is_absolute()
            assert ".." not in Path(path).parts
            for sha256 in (file.sha256, file.also):
                assert sha256 is None or re.fullmatch("[0-9a-f]{64}", sha256)
            if file.urls:
                assert file.size
                assert file.sha256
                assert all(url.startswith(("https://", "http://")) for url in file.urls)
    told = f"clipwise data get {name}" in entry.how_to_get
    assert told == (entry.fetchable is not None)


@needs_data
def test_the_sums_are_those_of_the_published_files():
    """What is here compressed holds the bytes of the published files, whose sums are on record for fetching."""
    root = Path(os.environ["CLIPWISE_DATA"])
    for name, compressed in (
        ("adult", "adult/adult.data.gz"),
        ("adult", "adult/adult.test.gz"),
        ("ag_news", "ag_news/test.csv.gz"),
    ):
        if (root / compressed).is_file():
            content = gzip.decompress((root / compressed).read_bytes())
            published = DATASETS[name].fetchable.files[compressed.removesuffix(".gz")]
            assert hashlib.sha256(content).hexdigest() == published.sha256
            assert len(content) == published.size


def test_digits():
    digits = load("digits")
    x, y = digits.train.tensors
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert (digits.shape, digits.classes) == ((1, 8, 8), 10)
    assert (x.min(), x.max()) == (0, 1)
    assert set(y.tolist()) == set(range(10))
    # Every record is on one side of the split: together they are scikit-learn's 1797, whose pixels add up to this.
    assert round(float(x.sum() + digits.test.tensors[0].sum()) * 16) == 561718
    # The split never changes, or accuracies could not be compared.
    assert y[:10].tolist() == load("digits").train.tensors[1][:10].tolist()


@pytest.fixture
def fake_mnist(tmp_path, monkeypatch):
    """A folder with MNIST's file names and the wrong bytes in them."""
    for name in DATASETS["mnist"].editions[0].files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not mnist")
    monkeypatch.setenv("CLIPWISE_DATA", str(tmp_path))
    return tmp_path


def test_damaged_file_is_named_with_both_sums(fake_mnist):
    with pytest.raises(BadArgument) as error:
        load("mnist")
    name, expected = next(iter(DATASETS["mnist"].editions[0].files.items()))
    for part in (str(fake_mnist / name), expected.sha256, hashlib.sha256(b"not mnist").hexdigest()):
        assert part in str(error.value)


def test_missing_set_says_where_it_was_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("CLIPWISE_DATA", str(tmp_path / "nowhere"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadArgument, match=r"nowhere, data, .*clipwise; to get it"):
        load("mnist")


def test_first_folder_wins(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLIPWISE_DATA", str(tmp_path / "named"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for folder in ("cache/clipwise", "data", "named"):  # last place first
        for name in DATASETS["mnist"].editions[0].files:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).touch()
        assert DATASETS["mnist"].find().root.resolve() == (tmp_path / folder).resolve()


@pytest.mark.parametrize("name", ["", "digitz", "MNIST", "../mnist", "mnist\0", "svhn_subset", "a" * 5000])
def test_an_unknown_name(name):
    with pytest.raises(BadArgument, match="is not known; choose one of digits"):
        load(name)


@pytest.mark.parametrize("name", ["digits", "adult", "names"])
def test_a_vocabulary_is_for_words(name):
    with pytest.raises(BadArgument, match="vocabulary='training' is for a data set of words"):
        load(name, vocabulary="training")


def test_pixels_by_public_figures():
    raw, scaled = load("digits"), load("digits", standardize=[0.3, 0.25])
    for part in ("train", "test"):
        before, after = getattr(raw, part).tensors, getattr(scaled, part).tensors
        assert torch.equal(after[0], (before[0] - 0.3) / 0.25)
        assert torch.equal(after[1], before[1])
    assert scaled.notes == (
        *raw.notes,
        "pixels: less 0.3, divided by 0.25, figures of the user's that are treated as public",
    )
    assert load("digits", standardize=[0.0, 1.0]).train.tensors[0].equal(raw.train.tensors[0])


@pytest.mark.parametrize(
    ("name", "standardize", "message"),
    [
        ("adult", [0.1, 0.3], "standardize=\\[0.1, 0.3\\] is for images; 'adult' has none"),
        ("names", [0.1, 0.3], "is for images"),
        *(
            ("digits", bad, "standardize=")
            for bad in ([0.1], [0.1, 0.0], [0.1, -1.0], [0.1, math.inf], [math.nan, 1.0])
        ),
    ],
)
def test_figures_that_cannot_scale_pixels(monkeypatch, name, standardize, message):
    monkeypatch.setattr(Source, "find", None)  # refused before any data is looked for
    with pytest.raises(BadArgument, match=message):
        load(name, standardize=standardize)


def test_the_registry_needs_no_torch():
    assert "torch" not in vars(source)


def test_the_page_has_the_tables_of_the_registry():
    docs = Path(__file__).parent.parent / "docs"
    names: dict = {"__name__": "data_table"}
    exec((docs / "data_table.py").read_text(), names)
    page = (docs / "data.md").read_text()
    for table in names["tables"]().split("\n\n"):
        assert table.strip() in page


def test_a_part_of_a_data_set_is_the_same_in_every_run_and_said() -> None:
    some, again, whole = (load("digits", records=n) for n in (100, 100, None))
    assert len(some.train) == 100
    assert len(some.test) == len(whole.test)
    assert torch.equal(some.train.tensors[0], again.train.tensors[0])
    assert any("100 of the 1437 records" in note for note in some.notes)
    for wrong in (0, 1438):
        with pytest.raises(BadArgument, match="records="):
            load("digits", records=wrong)
