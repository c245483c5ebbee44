"""A batch in small parts, measured together, is the batch."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from clipwise import attach, devices, step
from clipwise.norms import Deferred
from clipwise.types import ClipwiseError, LoopMisuse

ROWS = 32


def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))


def conv():
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, 5)), nn.Conv1d(1, 2, 2), nn.Flatten(), nn.Linear(8, 3))


def trained(make, part, *, steps=3, method="quantile", reuse=False, declared="mean", groups=None, measured=None):
    """The weights of a run whose batches are split; `measured` gets the rows of each tape that was measured."""
    model = make()
    data = TensorDataset(torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1)), torch.arange(ROWS) % 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    private = attach(
        model,
        optimizer,
        DataLoader(data, batch_size=20),
        noise_multiplier=1e-6,
        delta=1e-5,
        epochs=4,
        method=method,
        seed=0,
        max_physical_batch=part,
        loss_reduction=declared,
        groups=groups,
    )
    plain = step.clip_and_sum
    buffer = torch.empty(ROWS, 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step, "clip_and_sum", lambda *a, **k: (measured or []).append(a[3].rows) or plain(*a, **k))
        for _ in private.epochs():
            for x, y in private.loader:
                given = buffer[: len(x)].copy_(x) if reuse else x
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(given), y, reduction=declared).backward()
                if measured is not None and private.run.stepper.unfinished:
                    measured.append("waiting")
                optimizer.step()
                if private.step == steps:
                    private.detach()
                    return torch.cat([p.detach().flatten() for p in model.parameters()])
    raise AssertionError("the run was too short")


@pytest.mark.parametrize("declared", ["mean", "sum"])
@pytest.mark.parametrize("make", [small, conv])
@pytest.mark.parametrize("reuse", [False, True])
def test_parts_give_what_the_whole_gives(make, declared, reuse):
    """Parts of 7 rows, and a last one of another number, so that means are over other numbers of rows; a loop may fill one buffer with
    each batch."""
    whole = trained(make, None, declared=declared)
    torch.testing.assert_close(trained(make, 7, declared=declared, reuse=reuse), whole, rtol=1e-4, atol=1e-5)


def test_groups_stay_with_their_rows():
    kind = {"method": "dpsgd-f", "groups": lambda batch: batch[1] % 2}
    torch.testing.assert_close(trained(small, 7, **kind), trained(small, None, **kind), rtol=1e-4, atol=1e-5)


def rows_measured(make, part, **options):
    seen = ["the run"]
    trained(make, part, steps=1, measured=seen, **options)
    return [rows for rows in seen if isinstance(rows, int)], seen.count("waiting")


def test_linear_layers_are_measured_once_a_logical_batch_and_others_part_by_part():
    whole, _ = rows_measured(small, None)
    together, waited = rows_measured(small, 4)
    assert together == whole
    assert waited == -(-whole[0] // 4) - 1
    assert rows_measured(conv, 4)[0] == [4] * (whole[0] // 4) + [whole[0] % 4] * (whole[0] % 4 > 0)


def test_no_more_than_the_cap_waits(monkeypatch):
    two_parts = 2 * 4 * 4 * (5 + 4 + 4 + 3)  # bytes of inputs and output gradients
    monkeypatch.setattr(
        devices, "_HOST", devices._HOST.__class__(**{**vars(devices._HOST), "deferred_bytes": two_parts})
    )
    rows, _ = rows_measured(small, 4)
    assert max(rows) == 12, "two that wait, and the third that does not"


def test_what_waits_is_forgotten_with_its_batch():
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    data = TensorDataset(torch.randn(ROWS, 5), torch.arange(ROWS) % 3)
    private = attach(
        model, optimizer, DataLoader(data, batch_size=20), noise_multiplier=1.0, epochs=4, method="fixed", threshold=1.0,
        seed=0, max_physical_batch=4, delta=1e-5,
    )  # fmt: skip
    for x, y in private.loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        break
    stepper = private.run.stepper
    assert not stepper.unfinished
    assert stepper._deferred._like is None
    with pytest.raises(LoopMisuse):
        optimizer.step()
    private.detach()


def test_a_part_that_is_left_over_stops_the_step(monkeypatch):
    """It would be summed in the next one, where its records may have parts of their own."""
    monkeypatch.setattr(Deferred, "take", lambda _, *last: [last])
    with pytest.raises(ClipwiseError, match="was not summed"):
        trained(small, 4)
