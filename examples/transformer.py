"""A small transformer on sequences, its batches split to fit into memory. Run: python examples/transformer.py [EPOCHS]"""

import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import clipwise

TOKENS, LENGTH, WIDTH = 20, 12, 32
epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 6


class Classifier(nn.Module):
    """Does the token 1 come more often than the token 2? Attention, layer norms and embeddings have rules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, texts: Tensor) -> Tensor:
        hidden = self.tokens(texts) + self.places(torch.arange(LENGTH, device=texts.device).expand(texts.shape))
        return self.head(self.encoder(hidden).mean(1))


torch.manual_seed(0)
texts = torch.randint(0, TOKENS // 4, (4000, LENGTH))
labels = ((texts == 1).sum(1) > (texts == 2).sum(1)).long()
train, test = TensorDataset(texts[:3500], labels[:3500]), (texts[3500:], labels[3500:])

model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
private = clipwise.attach(
    model,
    optimizer,
    DataLoader(train, batch_size=350, shuffle=True),
    method="auto-s",
    epsilon=4.0,
    delta=1e-5,
    epochs=epochs,
    max_physical_batch=128,  # at most so many texts in memory; a logical batch is still one noise draw
)
for _ in range(epochs):
    for x, y in private.loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
private.detach()

model.eval()
accuracy = (model(test[0]).argmax(1) == test[1]).float().mean()
print(f"accuracy {accuracy:.1%} on test data, epsilon {private.epsilon():.2f} at delta 1e-5")
