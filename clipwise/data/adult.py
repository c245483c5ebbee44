"""Adult: does a person of the 1994 census earn above 50,000 dollars a year?

Nothing is learned from the records on the way in: categories are those of the published adult.names, ranges are public
constants below. `fnlwgt`, a weight of the census's sampling and not a fact about the person, is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from clipwise.data.source import Array, Edition, File, Recipe, Source, Split, listed, tuned
from clipwise.data.tables import labels, read_rows
from clipwise.types import BadArgument

_SITE = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_PLAIN = {
    "adult/adult.data": File(
        "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", 3_974_305, (_SITE + "adult.data",)
    ),
    "adult/adult.test": File(
        "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", 2_003_153, (_SITE + "adult.test",)
    ),
}
_COMPRESSED = {
    "adult/adult.data.gz": File("c7a2b4716a97f930123e0baf879188d701e798172631a654fc703d4b082907f3"),
    "adult/adult.test.gz": File("8a2c1bffa6e7ce5abfa43881ae5e87c4311ebc2b3cd526c9c40a43f19f06f799"),
}
_COLUMNS = listed(
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
    "capital-loss hours-per-week native-country income"
)
_INCOMES = ("<=50K", ">50K")

# Mapped to 0..1 and cut off there. Sums of money go by their logarithm: most are 0, and a few are very large.
RANGES = {"age": (0, 100), "education-num": (1, 16), "hours-per-week": (0, 100)}
LOGARITHMIC = {"capital-gain": 99_999, "capital-loss": 5_000}  # from 0 to here

# Of adult.names; `?` stands for a value that is missing.
CATEGORIES: dict[str, tuple[str, ...]] = {
    "workclass": listed(
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?"
    ),
    "education": listed(
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool"
    ),
    "marital-status": listed(
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse"
    ),
    "occupation": listed(
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners Machine-op-inspct "
        "Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv Armed-Forces ?"
    ),
    "relationship": listed("Wife Own-child Husband Not-in-family Other-relative Unmarried"),
    "race": listed("White Asian-Pac-Islander Amer-Indian-Eskimo Other Black"),
    "sex": ("Female", "Male"),
    "native-country": listed(
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
        "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand Yugoslavia "
        "El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?"
    ),
}
GROUPS = ("sex", "race")
FEATURES = (*RANGES, *LOGARITHMIC, *(f"{column}={value}" for column, values in CATEGORIES.items() for value in values))


def read_adult(path: Path) -> Split:
    """One of the two files, in the published form."""
    rows = [[field.strip() for field in row] for row in read_rows(path, 1)]
    rows = [row for row in rows if len(row) == len(_COLUMNS)]  # the first line of adult.test is a remark
    if not rows:
        raise BadArgument(f"{path} has no rows of {len(_COLUMNS)} fields; put a fresh copy there")
    columns = dict(zip(_COLUMNS, zip(*rows, strict=True), strict=True))
    chosen = {name: labels(path, columns[name], values) for name, values in CATEGORIES.items()}
    parts = [_numbers(path, name, columns[name], low, high) for name, (low, high) in RANGES.items()]
    parts += [
        np.log1p(most * _numbers(path, name, columns[name], 0, most)) / math.log1p(most)
        for name, most in LOGARITHMIC.items()
    ]
    parts += [np.eye(len(CATEGORIES[name]))[numbers] for name, numbers in chosen.items()]
    incomes = labels(path, [income.rstrip(".") for income in columns["income"]], _INCOMES)
    groups = {name: np.array(chosen[name]) for name in GROUPS}
    return Split(np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind"), np.array(incomes), groups)


def _numbers(path: Path, name: str, fields: Sequence[str], low: float, high: float) -> Array:
    try:
        values = np.array([float(field) for field in fields])[:, None]
    except ValueError as error:
        raise BadArgument(f"{path}: column {name} holds what is no number; put a fresh copy there") from error
    return (np.clip(values, low, high) - low) / (high - low)


def _edition(files: dict[str, File]) -> Edition:
    def read(root: Path) -> tuple[Split, Split]:
        train, test = (read_adult(root / name) for name in files)
        return train, test

    return Edition(files, read, 32_561, 16_281)


ADULT = Source(
    name="adult",
    summary="1994 census: income above 50,000 dollars or not",
    kind="tabular",
    licence="CC BY 4.0 (UCI, Becker and Kohavi 1996)",
    how_to_get="clipwise data get adult",
    shape=(len(FEATURES),),
    class_names=_INCOMES,
    recipe=Recipe(model="mlp", expected_batch_size=2048, epochs=30, lr=0.5, method="auto-s"),
    tuning=tuned(9),
    notes=("adult: categories and ranges are public constants; fnlwgt is left out, and a missing value is a category",),
    feature_names=FEATURES,
    groups={name: CATEGORIES[name] for name in GROUPS},
    editions=(_edition(_PLAIN), _edition(_COMPRESSED)),
)
