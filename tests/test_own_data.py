"""Users' own files: what is read, and a clear refusal of everything that does not fit."""

import resource
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from clipwise.data import load
from clipwise.types import BadArgument


def save(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


def text(path, content):
    path.write_text(content)
    return str(path)


def some(records=20, *shape, classes=2):
    x = np.random.RandomState(0).rand(records, *(shape or (3,))).astype(np.float32)
    return {"x": x, "y": np.arange(records) % classes}


def test_npz_is_split_once_and_for_all(tmp_path):
    arrays = some(100)
    path = save(tmp_path / "a.npz", **arrays)
    first, second = load(path), load(path)
    assert (len(first.train) + len(first.test), first.classes, first.shape) == (100, 2, (3,))
    assert 8 <= len(first.test) <= 32  # a fifth, give or take three standard deviations
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
    "huge label": ("a,y\n1,99999999999999999999999\n", "above 999"),
    "negative label": ("a,y\n1,-1\n", r"outside 0\.\.1"),
    "text feature": ("a,b,y\n1,red,0\n", "column 'b' holds text"),
    "empty field": ("a,b,y\n1,,0\n", "column 'b' has empty fields"),
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


@pytest.mark.parametrize("header", [",".join(f"column{i}" for i in range(100_000)), "a" * 1_000_000 + ",b"])
def test_a_header_without_end_makes_no_message_without_end(tmp_path, header):
    path = text(tmp_path / "a.csv", f"{header}\nx,1\n")
    column = "column7" if header.startswith("c") else "b"
    for options in ({"label": "y"}, {"label": column}, {"label": column, "ranges": {"z": [0, 1]}}):
        with pytest.raises(BadArgument) as error:
            load(path, **options)
        assert len(str(error.value)) < 1000


def in_little_memory(code, gigabytes=3):
    """Runs the code in a process that may not hold more than that; returns what it printed."""
    limit = gigabytes * 1024**3
    return subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_line_of_five_gigabytes_is_refused_without_being_read(tmp_path):
    path = tmp_path / "a.csv"
    with path.open("wb") as handle:
        handle.write(b"a,y\n1")
        handle.truncate(5 * 1024**3)  # a sparse file: zeros without a line end, and hardly a byte on the disk
    code = (
        "from clipwise.data.table import read_csv; from clipwise.types import BadArgument; from pathlib import Path\n"
        f"try: read_csv(Path({str(path)!r}))\n"
        "except BadArgument as error: print(error)"
    )
    done = in_little_memory(code)
    assert "has a line above 16777216 characters; give a file with a record a line" in done.stdout, done.stderr


def test_an_archive_that_unpacks_to_more_than_the_memory(tmp_path):
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", b"")
        archive.writestr("y.npy", b"")
    raw = bytearray(path.read_bytes())
    at = raw.index(b"PK\x01\x02") + 24  # the size that the directory promises for x.npy: 4 GiB less one ...
    raw[at : at + 4] = b"\xff\xff\xff\xfe"[::-1]
    path.write_bytes(raw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("clipwise.data.table.memory", lambda: 2**31)  # ... on a machine of half of that
        with pytest.raises(BadArgument, match="unpacks to 4,294,967,294 bytes, and this machine has 2,147,483,648"):
            load(str(path))


def test_a_header_that_promises_more_than_there_is(tmp_path):
    path = tmp_path / "a.npz"
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 100), }"
    header += b" " * (117 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"12345678")
        archive.writestr("y.npy", b"")
    with pytest.raises(BadArgument, match=r"cannot be read as a \.npz"):
        load(str(path))


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


def sides(dataset):
    """Which records are on which side, by their content."""
    return [{tuple(row) for row in part.tensors[0].tolist()} for part in (dataset.train, dataset.test)]


@pytest.mark.parametrize("kind", ["npz", "csv"])
def test_one_record_more_moves_no_other_between_train_and_test(tmp_path, kind):
    """Neighbouring files must have neighbouring training parts: under a permutation of all, 171 of 1,000 changed sides."""
    rows = np.random.RandomState(0).rand(1001, 3).astype(np.float32)
    labels = np.arange(1001) % 2
    where = []
    for name, keep in (("all", slice(0, 1001)), ("less", slice(1, 1001))):
        path = tmp_path / f"{name}.{kind}"
        if kind == "npz":
            save(path, x=rows[keep], y=labels[keep])
        else:
            lines = (f"{a},{b},{c},{y}" for (a, b, c), y in zip(rows[keep].tolist(), labels[keep], strict=True))
            text(path, "a,b,c,y\n" + "\n".join(lines) + "\n")
        where.append(sides(load(str(path), label="y" if kind == "csv" else None)))
    (train, test), (fewer, tested) = where
    assert len(train - fewer) + len(test - tested) == 1
    assert not fewer - train
    assert not tested - test
    assert 160 <= len(test) <= 240  # a fifth of 1,001, give or take three standard deviations


def test_equal_records_go_the_same_way_in_any_order_and_scale(tmp_path):
    arrays = some(200)
    twice = {name: np.concatenate([values, values[::-1]]) for name, values in arrays.items()}
    once, both = load(save(tmp_path / "a.npz", **arrays)), load(save(tmp_path / "b.npz", **twice))
    assert sides(once) == sides(both)
    assert not set.intersection(*sides(both))
    assert (len(both.train), len(both.test)) == (2 * len(once.train), 2 * len(once.test))
    scaled = load(save(tmp_path / "c.npz", **arrays), ranges={"*": [0.0, 2.0]})
    assert (scaled.train.tensors[0] * 2).allclose(once.train.tensors[0])


def test_the_share_that_is_held_out_is_as_asked(tmp_path):
    path = save(tmp_path / "a.npz", **some(2000))
    shares = [len(load(path, test_fraction=share).test) / 2000 for share in (0.01, 0.2, 0.5, 0.9)]
    assert shares == pytest.approx([0.01, 0.2, 0.5, 0.9], abs=0.035)
    assert "hash of its own content" in " ".join(load(path).notes)


def test_a_file_of_one_record_said_over_and_over_has_nothing_to_train_on(tmp_path):
    path = save(tmp_path / "a.npz", x=np.zeros((20, 3)), y=np.zeros(20, int))
    with pytest.raises(BadArgument, match="every record was held out"):
        load(path, test_fraction=0.999999)
    assert load(path, test_fraction=1e-9).test is None


def test_the_number_of_classes_is_stated_or_said_to_be_read_off(tmp_path):
    path = save(tmp_path / "a.npz", **some(40))
    assert any("read off the labels" in note for note in load(path).notes)
    stated = load(path, classes=5)
    assert stated.classes == 5
    assert not any("classes" in note for note in stated.notes)
