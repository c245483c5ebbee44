"""Data sets and users' own files: the counts on record, and a clear refusal of everything that does not fit."""

import gzip
import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

from clipwise.data import DATASETS, load, source
from clipwise.data.idx import read_idx
from clipwise.types import BadArgument

needs_data = pytest.mark.skipif(
    not os.environ.get("CLIPWISE_DATA"), reason="CLIPWISE_DATA is not set: the real data sets are not at hand"
)


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def text(path, content):
    path.write_text(content)
    return str(path)


def some(records=20, *shape, classes=2):
    x = np.random.RandomState(0).rand(records, *(shape or (3,))).astype(np.float32)
    return {"x": x, "y": np.arange(records) % classes}


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


@needs_data
@pytest.mark.parametrize(
    ("name", "per_class", "mean"),
    [
        ("mnist", [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949], 0.1307),
        ("fashion_mnist", [6000] * 10, 0.2860),
    ],
)
def test_real_sets_have_the_counts_on_record(name, per_class, mean):
    dataset = load(name)
    x, y = dataset.train.tensors
    assert np.bincount(y).tolist() == per_class
    assert (tuple(x.shape), len(dataset.test)) == ((60000, 1, 28, 28), 10000)
    assert float(x.mean()) == pytest.approx(mean, abs=5e-5)


@pytest.fixture
def fake_mnist(tmp_path, monkeypatch):
    """A folder with MNIST's file names and the wrong bytes in them."""
    for name in DATASETS["mnist"].files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"not mnist")
    monkeypatch.setenv("CLIPWISE_DATA", str(tmp_path))
    return tmp_path


def test_damaged_file_is_named_with_both_sums(fake_mnist):
    with pytest.raises(BadArgument) as error:
        load("mnist")
    name, expected = next(iter(DATASETS["mnist"].files.items()))
    for part in (str(fake_mnist / name), expected, hashlib.sha256(b"not mnist").hexdigest()):
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
        for name in DATASETS["mnist"].files:
            (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            (Path(folder) / name).touch()
        assert DATASETS["mnist"].find().resolve() == (tmp_path / folder).resolve()


@pytest.mark.parametrize(
    "content",
    [b"", b"\0\0\x08", gzip.compress(b"\0\0\x08\x01\0\0\0\x09ab"), gzip.compress(b"\0\0\x0d\x01\0\0\0\0")],
    ids=["empty", "not gzip", "too short", "not bytes"],  # gzip writes the time: as a name, it would differ by worker
)
def test_bad_idx(tmp_path, content):
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    with pytest.raises(BadArgument, match="idx"):
        read_idx(path)


def test_idx_by_hand(tmp_path):
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x02\0\0\0\x02\0\0\0\x03" + bytes(range(6))))
    assert read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_npz_is_split_once_and_for_all(tmp_path):
    arrays = some(100)
    path = save(tmp_path / "a.npz", **arrays)
    first, second = load(path), load(path)
    assert (len(first.train), len(first.test), first.classes, first.shape) == (80, 20, 2, (3,))
    assert first.train.tensors[0].equal(second.train.tensors[0])
    both = np.concatenate([first.train.tensors[0], first.test.tensors[0]])
    assert sorted(both.tolist()) == sorted(arrays["x"].tolist())
    assert any("classes" in note for note in first.notes)
    assert load(path, test_fraction=0.0).test is None


def test_npz_with_its_own_test_part(tmp_path):
    path = save(tmp_path / "a.npz", **some(10), x_test=np.zeros((4, 3)), y_test=np.array([0, 1, 2, 2]))
    dataset = load(path)
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (10, 4, 3)


def test_images_get_a_channel_and_bytes_their_public_range(tmp_path):
    x = np.full((10, 9, 9), 255, np.uint8)
    dataset = load(save(tmp_path / "a.npz", x=x, y=np.arange(10) % 2))
    assert dataset.shape == (1, 9, 9)
    assert float(dataset.train.tensors[0].max()) == 1
    assert dataset.recipe.model == "cnn"


def test_features_are_left_alone_or_scaled_by_a_stated_range(tmp_path):
    path = text(tmp_path / "a.csv", "age,sum,y\n50,1000,1\n200,3000,0\n")
    raw = load(path, label="y", test_fraction=0.0)
    assert sorted(raw.train.tensors[0].tolist()) == [[50, 1000], [200, 3000]]
    assert any("as they are" in note for note in raw.notes)
    scaled = load(path, label="y", test_fraction=0.0, ranges={"age": [0, 100]})
    assert sorted(scaled.train.tensors[0].tolist()) == [[0.5, 1000], [1, 3000]]
    every = load(path, label="y", test_fraction=0.0, ranges={"*": [0, 4000], "age": [0, 100]})
    assert sorted(every.train.tensors[0].tolist()) == [[0.5, 0.25], [1, 0.75]]


def test_strange_features_pass_and_strange_labels_do_not(tmp_path):
    arrays = some(10)
    arrays["x"] = arrays["x"].astype(np.float64)
    arrays["x"][:3, 0] = [np.nan, np.inf, 1e300]  # the step gives such records no weight
    kept = load(save(tmp_path / "a.npz", **arrays), test_fraction=0.0).train.tensors[0][:, 0]
    assert int((~kept.isfinite()).sum()) == 3
    arrays["y"] = arrays["y"].astype(float)
    arrays["y"][0] = np.nan
    with pytest.raises(BadArgument, match="missing"):
        load(save(tmp_path / "b.npz", **arrays))


Y = np.arange(10) % 2
X = np.zeros((10, 3))
BAD_NPZ = {
    "float labels": ({"x": X, "y": Y.astype(float)}, "float64, not whole numbers"),
    "text labels": ({"x": X, "y": np.array(["a", "b"] * 5)}, "not whole numbers"),
    "negative labels": ({"x": X, "y": Y - 1}, r"outside 0\.\.1"),
    "ids for labels": ({"x": X, "y": Y + 123456}, "--classes"),
    "labels in a column": ({"x": X, "y": Y[:, None]}, r"shape \(10, 1\)"),
    "too few labels": ({"x": X, "y": Y[:5]}, "one label a record"),
    "one label": ({"x": X, "y": np.array(1)}, "one label a record"),
    "no labels": ({"x": X}, "no array 'y'"),
    "half a test part": ({"x": X, "y": Y, "x_test": X}, "no array 'y_test'"),
    "no records": ({"x": X[:0], "y": Y[:0]}, "no records"),
    "no features": ({"x": X[:, :0], "y": Y}, "shape"),
    "flat features": ({"x": X[:, 0], "y": Y}, "one record a row"),
    "text features": ({"x": X.astype(str), "y": Y}, "not numbers"),
    "complex features": ({"x": X.astype(complex), "y": Y}, "not numbers"),
    "objects": ({"x": X.astype(object), "y": Y}, "no objects"),
    "object labels": ({"x": X, "y": np.array([0, None] * 5)}, "no objects"),
    "channels last": ({"x": np.zeros((10, 32, 32, 3)), "y": Y}, "moveaxis"),
    "test of another shape": ({"x": X, "y": Y, "x_test": X[:, :2], "y_test": Y}, "differ in shape"),
}


@pytest.mark.parametrize("case", BAD_NPZ)
def test_bad_npz(tmp_path, case):
    arrays, message = BAD_NPZ[case]
    with pytest.raises(BadArgument, match=message):
        load(save(tmp_path / "a.npz", **arrays))


def test_labels_against_a_stated_number_of_classes(tmp_path):
    path = save(tmp_path / "a.npz", **some(10, classes=5))
    assert load(path, classes=7).classes == 7
    with pytest.raises(BadArgument, match=r"outside 0\.\.2"):
        load(path, classes=3)


BAD_CSV = {
    "empty": ("", "empty"),
    "no records": ("a,y\n", "no records"),
    "no such label": ("a,b\n1,2\n", "'y' is not a column"),
    "twice": ("a,a,y\n1,2,0\n", "same name"),
    "short row": ("a,y\n1,0\n1\n", "fewer fields"),
    "only a label": ("y\n0\n1\n", "no column beside"),
    "float label": ("a,y\n1,0.5\n", "not whole numbers"),
    "text label": ("a,y\n1,cat\n", "not whole numbers"),
    "missing label": ("a,y\n1,\n", "not whole numbers"),
    "huge label": ("a,y\n1,99999999999999999999999\n", "not whole numbers"),
    "negative label": ("a,y\n1,-1\n", r"outside 0\.\.1"),
    "text feature": ("a,b,y\n1,red,0\n", "column 'b' holds text"),
    "empty field": ("a,b,y\n1,,0\n", "column 'b' holds text or empty"),
    "open quote": ('a,y\n"1,0\n', "cannot be read"),
}


@pytest.mark.parametrize("case", BAD_CSV)
def test_bad_csv(tmp_path, case):
    content, message = BAD_CSV[case]
    with pytest.raises(BadArgument, match=message):
        load(text(tmp_path / "a.csv", content), label="y")


def test_an_error_does_not_show_the_record(tmp_path):
    with pytest.raises(BadArgument) as error:
        load(text(tmp_path / "a.csv", "a,y\n1,secret\n"), label="y")
    assert "secret" not in str(error.value)


def test_an_endless_line_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("clipwise.data.own._LONGEST_LINE", 1000)
    with pytest.raises(BadArgument, match="a line above 1000"):
        load(text(tmp_path / "a.csv", "a,y\n" + "1" * 5000 + ",0\n"), label="y")


def test_not_a_data_set(tmp_path):
    for name, options, message in [
        ("digitz", {}, "not known; choose one of digits"),
        (str(tmp_path / "gone.npz"), {}, "is not a file"),
        (text(tmp_path / "bad.npz", "x"), {}, "cannot be read as a .npz"),
        (text(tmp_path / "empty.npz", ""), {}, "cannot be read as a .npz"),
        (save(tmp_path / "a.npz", **some()), {"label": "y"}, "leave it out"),
        (save(tmp_path / "a.npz", **some()), {"ranges": {"age": [0, 1]}}, "no such column"),
        ("digits", {"label": "y"}, "leave it out"),
    ]:
        with pytest.raises(BadArgument, match=message):
            load(name, **options)


def test_the_registry_needs_no_torch():
    assert "torch" not in vars(source)
