"""Your own model on your own table, with `fit`. Run: python examples/own_model_on_a_csv.py [FILE.csv] [EPOCHS]

The file has a header, numbers in every column, and a column `label` of 0 and 1. Without one, a made-up table is used.
"""

import csv
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import clipwise

# Ranges that you know without looking at the records: minimum and maximum read off the data would be outside the guarantee.
RANGES = {"age": (0, 100), "hours": (0, 80), "income": (0, 200_000)}


def made_up(path: Path, rows: int = 3000) -> Path:
    torch.manual_seed(1)
    table = torch.rand(rows, 3) * torch.tensor([100.0, 80.0, 200_000.0])
    label = (table[:, 2] / 200_000 + table[:, 1] / 80 + 0.1 * torch.randn(rows) > 1).int()
    lines = [f"{a:.0f},{h:.1f},{i:.0f},{y}" for (a, h, i), y in zip(table.tolist(), label.tolist(), strict=True)]
    path.write_text("\n".join(["age,hours,income,label", *lines]) + "\n")
    return path


def read(path: Path) -> TensorDataset:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    scaled = [[(float(row[name]) - low) / (high - low) for name, (low, high) in RANGES.items()] for row in rows]
    return TensorDataset(torch.tensor(scaled).clamp(0, 1), torch.tensor([int(row["label"]) for row in rows]))


file = Path(sys.argv[1]) if len(sys.argv) > 1 else made_up(Path("made_up.csv"))
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 10
data = read(file)
train, test = (TensorDataset(*data[part]) for part in (slice(500, None), slice(None, 500)))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(len(RANGES), 32), nn.ReLU(), nn.Linear(32, 2))
fitted = clipwise.fit(
    model,
    train,
    test=test,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    method="quantile",  # the threshold follows the median of the gradients' norms, and pays for it
    epsilon=2.0,
    delta=1e-5,
    epochs=epochs,
    expected_batch_size=100,
    unit="one person: each has one row in the table",
)
print(f"accuracy {fitted.accuracy:.1%}, epsilon {fitted.epsilon:.2f}, threshold {fitted.method_state.threshold:.3g}")
torch.save(model.state_dict(), "model.pt")
