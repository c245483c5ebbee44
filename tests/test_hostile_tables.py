"""Tables as they come: each hostile one is trained on as meant, or refused with an error that says what to do and tells no value."""

import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

from clipwise.cli import app
from clipwise.data import load
from clipwise.data.columns import Category, Date, Hashed, Number, Words
from clipwise.types import BadArgument


def text(path, content):
    path.write_text(content, encoding="utf-8")
    return str(path)


def table(columns, rows=30):
    """A file whose columns are functions of the row's number."""
    lines = [",".join(columns), *(",".join(make(n) for make in columns.values()) for n in range(rows))]
    return "\n".join(lines) + "\n"


NUMBER = lambda n: str(n * 1.5)  # noqa: E731
LABEL = lambda n: "yes" if n % 3 else "no"  # noqa: E731
CLASSES = {"label": "y", "classes": ["no", "yes"], "test_fraction": 0.0}
SECRET = "hunter2"

REFUSED = {
    "words as labels": ({"a": NUMBER, "y": LABEL}, {"classes": None}, "--classes no,yes.*--public-categories y"),
    "a label that is not listed": (
        {"a": NUMBER, "y": lambda n: SECRET if n == 7 else "no"},
        {},
        "none of the 2 classes.*--classes",
    ),
    "one class": (
        {"a": NUMBER, "y": lambda _: "no"},
        {"classes": None, "public_categories": ["y"]},
        "one class.*give records of two",
    ),
    "ids as labels": (
        {"a": NUMBER, "y": lambda n: f"u{n}"},
        {"classes": None, "public_categories": ["y"]},
        "ids is no label",
    ),
    "formulas": (
        {"a": lambda n: f"=SUM(B{n}:{SECRET})", "y": LABEL},
        {},
        "holds formulas; save the file with their values",
    ),
    "formulas as classes": ({"a": NUMBER, "y": LABEL}, {"classes": ["=cmd", "yes"]}, "begins like a formula.*rename"),
    "mixed types": ({"a": lambda n: SECRET if n == 3 else str(n), "y": LABEL}, {}, "--category a=hashed:32.*--drop a"),
    "a constant column": ({"a": NUMBER, "b": lambda _: "7", "y": LABEL}, {}, "column 'b' is constant.*--drop b"),
    "a constant column, declared": ({"a": lambda _: "7", "y": LABEL}, {"public_ranges": ["a"]}, "constant.*--drop a"),
    "dates": ({"when": lambda n: f"2024-01-{n % 28 + 1:02d}", "y": LABEL}, {}, "holds dates; cut.*--date when=year"),
    "dates of another form": (
        {"when": lambda n: f"{n % 28 + 1}.1.24", "y": LABEL},
        {"dates": {"when": ["month"]}},
        "no ISO date.*--drop",
    ),
    "gaps": ({"a": lambda n: "" if n == 3 else str(n), "y": LABEL}, {}, "empty fields.*--missing a=RULE"),
    "gaps in dates": (
        {"d": lambda n: "" if n else "2024-01-01", "y": LABEL},
        {"dates": {"d": ["month"]}},
        "--missing d=RULE",
    ),
    "gaps among labels": ({"a": NUMBER, "y": lambda n: "" if n == 3 else "no"}, {}, "none of the 2 classes"),
    "no column": ({"a": NUMBER, "y": LABEL}, {"drop": ["a"]}, "no column beside the label"),
    "no name": ({"a": NUMBER, "": NUMBER, "y": LABEL}, {}, "a column without a name.*name it"),
    "a column that is not there": (
        {"a": NUMBER, "y": LABEL},
        {"categories": {"b": "hashed:8"}},
        "--category 'b' is no column",
    ),
    "two things at once": ({"a": NUMBER, "y": LABEL}, {"categories": {"a": "hashed:8"}, "drop": ["a"]}, "named twice"),
    "the label as a feature": ({"a": NUMBER, "y": LABEL}, {"categories": {"y": "hashed:8"}}, "named twice, as --label"),
    "no rule": ({"a": NUMBER, "y": LABEL}, {"missing": {"a": "mean"}}, "is no rule; give flag"),
    "too many buckets": ({"a": NUMBER, "y": LABEL}, {"categories": {"a": "hashed:10000000"}}, "not in 2..65536"),
    "no buckets": ({"a": NUMBER, "y": LABEL}, {"categories": {"a": "hashed"}}, "give hashed:32"),
    "no such part": ({"a": lambda _: "2024-01-01", "y": LABEL}, {"dates": {"a": ["century"]}}, "choose of year, month"),
    "a year without a range": ({"a": lambda _: "2024-01-01", "y": LABEL}, {"dates": {"a": ["year"]}}, "year:1990:2030"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_what_to_do_and_without_a_value(tmp_path, case):
    columns, words, message = REFUSED[case]
    rows = 1200 if case == "ids as labels" else 30
    with pytest.raises(BadArgument, match=message) as error:
        load(text(tmp_path / "a.csv", table(columns, rows)), **{**CLASSES, **words})
    assert SECRET not in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_number_to_predict_needs_a_range_that_is_public_or_paid_for(tmp_path):
    path = text(tmp_path / "a.csv", table({"a": NUMBER, "price": lambda n: str(n * 10.5)}))
    words = {"label": "price", "regression": True, "test_fraction": 0.0}
    with pytest.raises(BadArgument, match=r"--range price=LOW:HIGH, learn it.*--public-ranges price"):
        load(path, **words)
    gap = text(tmp_path / "b.csv", table({"a": NUMBER, "price": lambda n: "" if n == 3 else str(n)}))
    with pytest.raises(BadArgument, match="labels that are missing or not finite; take such records out"):
        load(gap, **words, ranges={"price": [0.0, 400.0]})
    stated = load(path, **words, ranges={"price": [0.0, 400.0]})
    assert stated.numbers
    assert sorted(stated.train.tensors[1][:, 0].tolist())[:2] == pytest.approx([-1, -0.9475])
    assert load(path, **words, public_ranges=["price"]).preprocessing.target.high == 29 * 10.5
    assert load(path, **words, learn_ranges=True).unlearned.what.ranges == ("a", "price")


def test_quoted_newlines_unicode_names_and_a_byte_order_mark(tmp_path):
    path = tmp_path / "a.csv"
    rows = "".join(f'{n},"two\nlines, {n % 2}",{LABEL(n)}\r\n' for n in range(20))
    path.write_bytes(("\ufeffÄlter,城市,y\r\n" + rows).encode())
    found = load(
        str(path), **CLASSES, categories={"城市": ["two\nlines, 0", "two\nlines, 1"]}, ranges={"Älter": [0, 20]}
    )
    assert found.feature_names[0] == "Älter"
    assert found.train.tensors[0][:, 1:3].sum() == 20


def test_a_million_columns_are_refused_at_once(tmp_path):
    header = ",".join(f"c{n}" for n in range(10**6))
    with pytest.raises(BadArgument, match="1,000,000 columns, above 65,536; store so many numbers as arrays"):
        load(text(tmp_path / "a.csv", f"{header}\n{'1,' * 10**6}1\n"), **CLASSES)


def test_few_categories_do_not_become_many_numbers_without_a_word(tmp_path):
    columns = {f"c{n}": NUMBER for n in range(40)}
    path = text(tmp_path / "a.csv", table({**columns, "y": LABEL}))
    with pytest.raises(BadArgument, match="numbers of a record, above 1,000,000; hash"):
        load(path, **CLASSES, categories=dict.fromkeys(columns, "hashed:65536"))


def test_unscaled_numbers_are_warned_of_before_anything_is_spent(tmp_path):
    path = text(tmp_path / "a.csv", table({"a": NUMBER, "y": LABEL}))
    (warning,) = load(path, **CLASSES).warnings
    assert "no public range is stated for a" in warning
    assert "--learn-ranges" in warning
    assert load(path, **CLASSES, ranges={"a": [0, 50]}).warnings == ()
    shown = CliRunner().invoke(
        app,
        [
            "train",
            "--data",
            path,
            "--label",
            "y",
            "--classes",
            "no,yes",
            "--epochs",
            "1",
            "--batch",
            "9",
            "--out",
            str(tmp_path / "r"),
        ],
    )
    assert "warning: no public range is stated for a" in " ".join(shown.stderr.split())


def test_kinds_of_columns_by_hand():
    assert Number("a", 0, 10, "flag").encode(["5", "", "20"]).tolist() == [[0.5, 0], [0, 1], [1, 0]]
    assert Number("a", 0, 10, 4.0).encode(["5", "NA", None]).tolist() == [[0.5], [0.4], [0.4]]
    assert Number("a").encode(np.array([1, 2])).tolist() == [[1], [2]]
    assert Category("c", ("red", "1")).encode(["red", 1, 1.0, "blue", "", None]).tolist() == [
        [1, 0, 0],
        [0, 1, 0],
        [0, 1, 0],
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 1],
    ]
    hashed = Hashed("c", 5)
    rows = hashed.encode(["red", "red", "", "green"])
    assert rows.sum(1).tolist() == [1, 1, 1, 1]
    assert rows[0].tolist() == rows[1].tolist()
    assert rows[2, 5] == 1
    kept = Hashed("c", 5, (hashed.bucket("red"),)).encode(["red", "", "green"])
    assert kept[:2].tolist() == [[1, 0], [0, 1]]
    assert Words("t", 4).encode(["a a a a", ""]).sum(1).tolist() == [2, 0]
    date = Date("d", ("year:2000:2020", "month", "hour"), "flag")
    assert date.encode(["2010-01-01", "2030-12-31T12:00", ""]).tolist() == [
        [0.5, 0, 0, 0],
        [1, 1, 0.5, 0],
        [0, 0, 0, 1],
    ]


def test_one_record_is_encoded_as_it_is_among_others(tmp_path):
    """`encode` sees one value at a time: what is beside it changes nothing."""
    columns = {"a": NUMBER, "c": lambda n: f"c{n % 5}", "y": LABEL}
    path = text(tmp_path / "a.csv", table(columns))
    made = load(path, **CLASSES, categories={"c": "hashed:8"}, missing={"*": "flag"}).preprocessing
    whole = {"a": [NUMBER(n) for n in range(30)], "c": [f"c{n % 5}" for n in range(30)]}
    together = made.inputs.apply(whole)
    alone = [made.inputs.apply({name: [values[n]] for name, values in whole.items()}) for n in range(30)]
    assert np.array_equal(together, np.concatenate(alone))


def test_parquet_without_pyarrow_names_the_extra(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from clipwise.data import load\nfrom clipwise.types import BadArgument\n"
        f"try: load({str(path)!r}, label='y')\nexcept BadArgument as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'clipwise[files]'" in done.stdout, done.stderr
    pytest.importorskip("pyarrow")
    with pytest.raises(BadArgument, match=r"cannot be read as a \.parquet file"):
        load(str(path), label="y")


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "f" / "a").mkdir(parents=True)
    with pytest.raises(BadArgument, match="in a folder a class; sort its files so"):
        load(str(tmp_path / "f"))
    (tmp_path / "f" / "a" / "x.exe").write_bytes(b"MZ")
    with pytest.raises(BadArgument, match="in a folder a class"):
        load(str(tmp_path / "f"))
    (tmp_path / "g" / "a").mkdir(parents=True)
    (tmp_path / "g" / "b").mkdir()
    (tmp_path / "g" / "a" / "x.png").write_bytes(b"no image")
    (tmp_path / "g" / "b" / "y.png").write_bytes(b"none either")
    pytest.importorskip("PIL")
    with pytest.raises(BadArgument, match="an image cannot be read"):
        load(str(tmp_path / "g"), test_fraction=0.0)


def test_a_table_that_stands_for_more_than_the_memory(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"a": [0.0] * 100_000, "y": [1] * 100_000}), path)
    monkeypatch.setattr("clipwise.data.table.memory", lambda: 2**20)
    with pytest.raises(BadArgument, match="100,000 rows of 2 columns, more than this machine's memory"):
        load(str(path), label="y")


def test_groups_by_a_column_of_categories(tmp_path):
    from clipwise.data.grouping import find_grouping

    columns = {"a": NUMBER, "c": lambda n: ("red", "green", "", "blue")[n % 4], "y": LABEL}
    path = text(tmp_path / "a.csv", table(columns))
    found = find_grouping(load(path, **CLASSES, categories={"c": ["red", "green"]}), "c")
    assert found.names == ("red", "green", "missing", "other")
    assert np.bincount(found.train.numpy(), minlength=4).tolist() == [8, 8, 7, 7]
