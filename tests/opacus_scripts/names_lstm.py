"""A training script for Opacus: names of two made-up languages, letter by letter, for a target epsilon."""

import random

import torch
from opacus import PrivacyEngine
from opacus.layers import DPLSTM
from torch import nn
from torch.utils.data import DataLoader, Dataset

DELTA, EPSILON, EPOCHS = 1e-5, 8.0, 8
SYLLABLES = (("ka", "ro", "mi", "tu"), ("esk", "olm", "und", "irr"))


class Names(Dataset):
    def __init__(self, size, length=12):
        draw = random.Random(0)
        self.kinds = [draw.randrange(2) for _ in range(size)]
        words = ["".join(draw.choice(SYLLABLES[kind]) for _ in range(3)) for kind in self.kinds]
        self.letters = [torch.tensor([ord(c) - 96 for c in word.ljust(length, "`")[:length]]) for word in words]

    def __len__(self):
        return len(self.kinds)

    def __getitem__(self, i):
        return self.letters[i], self.kinds[i]


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(27, 16)
        self.lstm = DPLSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 2)

    def forward(self, letters):
        _, (hidden, _) = self.lstm(self.embedding(letters))
        return self.head(hidden[-1])


model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
criterion = nn.CrossEntropyLoss()
privacy_engine = PrivacyEngine(accountant="rdp")
model, optimizer, loader = privacy_engine.make_private_with_epsilon(
    module=model,
    optimizer=optimizer,
    data_loader=DataLoader(Names(800), batch_size=100),
    target_epsilon=EPSILON,
    target_delta=DELTA,
    epochs=EPOCHS,
    max_grad_norm=1.0,
)
for _ in range(EPOCHS):
    for letters, kinds in loader:
        optimizer.zero_grad()
        loss = criterion(model(letters), kinds)
        loss.backward()
        optimizer.step()
epsilon = privacy_engine.get_epsilon(DELTA)
history = privacy_engine.accountant.history
model.eval()
letters, kinds = zip(*(Names(200)[i] for i in range(200)), strict=True)
accuracy = (model(torch.stack(letters)).argmax(1) == torch.tensor(kinds)).float().mean().item()
