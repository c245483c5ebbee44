"""Sound models as people write them go through every check: low-rank adapters, and encoders with padding masks."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import clipwise

WORDS, CLASSES, RECORDS = 40, 3, 24


class LowRank(nn.Module):
    """A frozen layer and a trained product of two thin ones (LoRA)."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x)) * 2.0


def texts():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(2, 9, (RECORDS,), generator=generator).tolist()
    return [(torch.randint(1, WORDS, (n,), generator=generator), i % CLASSES) for i, n in enumerate(sizes)]


def padded(records):
    words = pad_sequence([x for x, _ in records], batch_first=True)
    return {"input_ids": words, "attention_mask": (words != 0).long()}, torch.tensor([y for _, y in records])


def train(model, forward):
    """Two epochs through the drop-in, by rows and by a mean; every trained parameter moves."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    loader = DataLoader(texts(), batch_size=6, collate_fn=padded)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    private = clipwise.attach(model, optimizer, loader, noise_multiplier=0.5, epochs=2, method="fixed")
    for epoch in private.epochs():
        for batch, targets in private.loader:
            optimizer.zero_grad()
            losses = F.cross_entropy(forward(model, batch), targets, reduction="none")
            private.backward(losses) if epoch else losses.mean().backward()
            optimizer.step()
    private.detach()
    now = dict(model.named_parameters())
    assert all(not torch.equal(now[name], was) for name, was in before.items())
    assert "declared" not in private.statement().loss


@pytest.mark.filterwarnings("ignore:clipwise")
def test_low_rank_adapters_on_a_masked_encoder():
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(WORDS, 8).requires_grad_(False)
            self.body = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True).requires_grad_(False)
            self.adapter, self.head = LowRank(nn.Linear(8, 8)), nn.Linear(8, CLASSES)

        def forward(self, input_ids, attention_mask):
            hidden = self.body(self.words(input_ids), src_key_padding_mask=attention_mask == 0)
            hidden = self.adapter(hidden) * attention_mask[:, :, None]
            return self.head(hidden.sum(1) / attention_mask.sum(1, keepdim=True).clamp(min=1))

    train(Encoder(), lambda model, batch: model(**batch))


@pytest.mark.filterwarnings("ignore:clipwise")
@pytest.mark.parametrize("kind", ["Bert", "DistilBert"])
def test_encoders_of_transformers_with_padding_masks(kind):
    transformers = pytest.importorskip("transformers")
    sizes = {
        "Bert": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        "DistilBert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16},
    }[kind]
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS, max_position_embeddings=16, num_labels=CLASSES, **sizes
    )
    model = getattr(transformers, f"{kind}ForSequenceClassification")(config)
    train(model, lambda m, batch: m(**batch).logits)
