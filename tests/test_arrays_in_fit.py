"""What `fit` takes for records beside a torch data set, and the errors that name what is not clear."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import clipwise
from clipwise.types import BadArgument

DRAW = np.random.RandomState(0)
X, Y = DRAW.rand(40, 3), DRAW.randint(0, 2, 40)


def trained(data, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, options.pop("outputs", 2))
    done = clipwise.fit(
        model,
        data,
        epsilon=8.0,
        delta=1e-3,
        epochs=1,
        expected_batch_size=20,
        seed=1,
        accountant="rdp",
        method="fixed",
        **options,
    )
    return [p.detach().clone() for p in done.model.parameters()]


def equal(a, b):
    return all(x.equal(y) for x, y in zip(a, b, strict=True))


def test_arrays_and_frames_train_as_the_tensors_that_they_are():
    pandas = pytest.importorskip("pandas")
    expected = trained(TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(Y)))
    for data in (
        (X, Y),
        [X, Y.astype(np.int8)],
        (torch.tensor(X), torch.tensor(Y)),
        (pandas.DataFrame(X), pandas.Series(Y)),
        (pandas.DataFrame(X), pandas.DataFrame({"y": Y})),
    ):
        assert equal(trained(data), expected)
    assert equal(trained((X, Y), test=(X, Y)), expected)


def test_numbers_as_targets():
    target = X @ np.array([[1.0], [2.0], [-1.0]])
    assert len(trained((X, target), loss="huber", outputs=1)) == 2


def test_a_hugging_face_data_set_of_two_columns():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()})
    assert equal(trained(data), trained((X, Y)))
    with pytest.raises(BadArgument, match="which are the input and the target is not said"):
        trained(datasets.Dataset.from_dict({"a": [1.0], "b": [2.0], "label": [0]}))
    with pytest.raises(BadArgument, match="a DatasetDict of train"):
        trained(datasets.DatasetDict({"train": data}))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X, "one ndarray, and which part of it is the target is not said"),
        ((X, Y[:5]), "one target a record"),
        ((X.astype(str), Y), "train\\[0\\] holds <U32, not numbers"),
        ((X, np.array(["no", "yes"] * 20)), "train\\[1\\] holds <U3, not numbers"),
        ({"x": X, "y": Y}, "of type dict holds no records"),
        ("people.csv", "of type str holds no records"),
        ((X, Y, Y), "of type tuple holds no records"),
        (None, "of type NoneType"),
    ],
)
def test_what_is_not_clear_is_refused_by_name(data, message):
    with pytest.raises(BadArgument, match=message):
        trained(data)


def test_a_frame_alone_is_not_clear():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(BadArgument, match="one DataFrame, and which part"):
        trained(pandas.DataFrame(X))
