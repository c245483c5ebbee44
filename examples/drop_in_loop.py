"""An ordinary PyTorch loop made private by two lines. Run: python examples/drop_in_loop.py [EPOCHS]"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 20

digits = load_digits()
inputs = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # a public range: pixels go from 0 to 16
targets = torch.tensor(digits.target)
train, test = TensorDataset(inputs[:1400], targets[:1400]), (inputs[1400:], targets[1400:])

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.Tanh(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(256, 32),
    nn.Tanh(),
    nn.Linear(32, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
loader = DataLoader(train, batch_size=140, shuffle=True)

# The first of the two lines. Without a threshold to tune: auto-s normalises each example's gradient.
private = clipwise.attach(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=epochs, method="auto-s")

for _ in range(epochs):
    for x, y in private.loader:  # the second: batches come from here
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

private.detach()
accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
print(f"accuracy {accuracy:.1%} on test data, epsilon {private.epsilon():.2f} at delta 1e-5")
print(private.statement().to_markdown())
