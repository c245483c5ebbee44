"""Texts of different lengths through the drop-in: padding that matters is refused, or fixed to a public length; then one more
record moves the released sum by no more than the bound, however long it is."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, TensorDataset

import clipwise
from clipwise.types import BadArgument, Unsupported

WORDS, WIDTH, CLASSES, ROWS = 30, 6, 3, 12


def texts(longest=9, rows=ROWS, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, longest + 1, (rows,), generator=generator).tolist()
    return [(torch.randint(1, WORDS, (n,), generator=generator), i % CLASSES) for i, n in enumerate(sizes)]


def padded(records):
    return pad_sequence([x for x, _ in records], batch_first=True), torch.tensor([y for _, y in records])


def with_lengths(records):
    x, y = padded(records)
    return x, torch.tensor([len(t) for t, _ in records]), y


def as_dict(records):
    x, y = padded(records)
    return {"input_ids": x, "attention_mask": (x != 0).long(), "labels": y}


class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)


class LastStep(Text):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.head(self.lstm(self.words(x))[0][:, -1])


class MeanOverTime(Text):
    def forward(self, x):
        return self.head(self.words(x).mean(1))


class PaddingIndex(Text):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, padding_idx=0)

    def forward(self, x):
        return self.head(self.words(x).mean(1))


class Convolved(Text):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return self.head(self.conv(self.words(x).mT).amax(2))


class Dropping(MeanOverTime):
    """Random, and of another shape with other padding: no seed makes the two runs alike."""

    def forward(self, x):
        return self.head(F.dropout(self.words(x), 0.3, self.training).mean(1))


class MaskedMean(Text):
    def forward(self, x):
        mask = (x != 0).unsqueeze(2)
        h = F.dropout(self.words(x), 0.3, self.training)
        return self.head((h * mask).sum(1) / mask.sum(1).clamp(min=1))


class Attention(Text):
    """An encoder that masks its padding, as a pretrained one does."""

    def __init__(self):
        super().__init__()
        self.places = nn.Embedding(64, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 12, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids, attention_mask):
        h = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        h = self.encoder(h, src_key_padding_mask=attention_mask == 0)
        return self.head(h[:, 0])


class HalfInside(Text):
    """In half precision, without a word of it outside: accelerate wraps a model's forward pass so. What is rounded hangs on
    the padding; but for that, the mean does not."""

    def forward(self, x):
        mask = (x != 0).unsqueeze(2)
        h = (self.words(x).bfloat16() * mask).mean(1) * x.shape[1]
        return self.head(h.float() / mask.sum(1))


class Tagged(Text):
    """An output for each word."""

    def forward(self, x):
        return self.head(torch.tanh(self.words(x)))


class Packed(Text):
    def __init__(self, kind=nn.LSTM, **options):
        super().__init__()
        self.rnn = kind(WIDTH, WIDTH, batch_first=True, **options)
        self.head = nn.Linear(WIDTH * (2 if options.get("bidirectional") else 1), CLASSES)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.words(x), lengths, batch_first=True, enforce_sorted=False)
        h = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)[0]
        return self.head(h.sum(1) / lengths.unsqueeze(1))


def attach(model, records, collate=padded, rows=None, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    loader = DataLoader(records, batch_size=rows or len(records), collate_fn=collate, shuffle=True)
    settings = {
        "method": "fixed",
        "noise_multiplier": 1e-9,
        "sample_rate": 1.0,
        "expected_batch_size": 1,
        "seed": 1,
        "threshold": 1.0,
    }
    return clipwise.attach(model, optimizer, loader, **settings | options)


def run(private, call=lambda model, x, *more: model(x, *more[:-1]), reduction="mean"):
    """One step; the released sum."""
    for batch in private.loader:
        private.optimizer.zero_grad()
        if isinstance(batch, dict):
            out, y = private.model(batch["input_ids"], batch["attention_mask"]), batch["labels"]
        else:
            out, y = call(private.model, *batch), batch[-1]
        F.cross_entropy(out, y, reduction=reduction).backward()
        private.optimizer.step()
        if private.stepped:
            break
    private.detach()
    return torch.cat([p.grad.flatten() for p in private.model.parameters()])


def moved(model, collate=padded, **options):
    """s/C: how far one long record moves the released sum."""
    records = texts()
    extra = (torch.arange(41) % (WORDS - 1) + 1, 0)
    model.eval()  # dropout draws by row and place; what is measured here is padding
    sums = [run(attach(copy.deepcopy(model), r, collate, **options)) for r in (records, [*records, extra])]
    return float((sums[1] - sums[0]).norm())


UNMASKED = [LastStep, MeanOverTime, PaddingIndex, Convolved, Dropping]


@pytest.mark.parametrize("kind", UNMASKED)
def test_padding_that_matters_is_refused(kind):
    torch.manual_seed(0)
    private = attach(kind(), texts())
    with pytest.raises(Unsupported, match=r"pads a batch to its longest record.*pad_to=LENGTH"):
        run(private)
    assert private.run.ledger.events() == []


@pytest.mark.parametrize("kind", UNMASKED)
@pytest.mark.parametrize("length", [5, 50])
def test_a_public_length_bounds_it(kind, length):
    torch.manual_seed(0)
    assert moved(kind(), pad_to=length) <= 1.001
    assert moved(kind(), collate=clipwise.pad_to(padded, length)) <= 1.001


@pytest.mark.parametrize(("kind", "collate"), [(MaskedMean, padded), (Attention, as_dict), (Packed, with_lengths)])
def test_a_model_that_masks_its_padding_goes_through(kind, collate):
    torch.manual_seed(0)
    run(attach(kind(), texts(), collate))
    assert moved(kind(), collate) <= 1.001
    assert moved(kind(), collate, pad_to=4) <= 1.001


def test_half_precision_inside_the_model_is_not_taken_for_padding_that_matters():
    torch.manual_seed(0)
    with pytest.warns(UserWarning, match="in half precision"):
        run(attach(HalfInside(), texts(), loss_reduction="sum"), reduction="sum")


def test_an_output_for_each_word_may_have_more_of_them():
    model = Tagged()
    private = attach(model, texts(), as_tags)
    for x, tags in private.loader:
        losses = F.cross_entropy(model(x).mT, tags, reduction="none", ignore_index=-100).sum(1)
        losses.mean().backward()
        private.optimizer.step()
        break


def as_tags(records):
    return padded(records)[0], pad_sequence([x % CLASSES for x, _ in records], batch_first=True, padding_value=-100)


def test_padding_is_asked_about_when_there_is_some():
    """The first batches hold one record, or two of one length: nothing is padded, nothing is wrong."""
    torch.manual_seed(0)
    model = MeanOverTime()
    private = attach(model, texts(), sample_rate=0.09, epochs=40)
    padded_batches = []

    def loop():
        for _ in range(40):
            for x, y in private.loader:
                padded_batches.append(len(x) > 1 and bool((x == 0).any()))
                private.optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                private.optimizer.step()

    with pytest.raises(Unsupported, match="longest record"):
        loop()
    assert len(padded_batches) > 1
    assert padded_batches.index(True) == len(padded_batches) - 1
    alone = attach(MeanOverTime(), texts(), max_physical_batch=1)
    assert run(alone).isfinite().all()


def test_what_the_loop_makes_of_a_batch_is_seen_as_well():
    """A mask that the loop itself makes, and one-hot words that no collate function has padded."""

    class OneHot(nn.Module):
        def __init__(self, masked):
            super().__init__()
            self.layer, self.masked = nn.Linear(WORDS, CLASSES), masked

        def forward(self, x, mask):
            h = self.layer(x)
            return (h * mask).sum(1) / mask.sum(1) if self.masked else h.mean(1)

    def call(model, x, _):
        return model(F.one_hot(x, WORDS).float(), (x != 0).unsqueeze(2).float())

    run(attach(OneHot(masked=True), texts()), call)
    with pytest.raises(Unsupported, match="longest record"):
        run(attach(OneHot(masked=False), texts()), call)


class Trimming(Text):
    """Padded to a public length by the data set, and cut to the longest text of the batch inside."""

    def forward(self, x):
        longest = int((x != 0).sum(1).max().clamp(min=1))
        return self.head(self.words(x[:, :longest]).mean(1))


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_cutting_to_the_longest_text_inside_the_model_is_refused(order):
    torch.manual_seed(0)
    rows = [F.pad(x, (0, 9 - len(x))) for x, _ in texts()][order]
    data = TensorDataset(torch.stack(rows), torch.tensor([y for _, y in texts()]))
    with pytest.raises(Unsupported, match="cutting to the longest text"):
        run(attach(Trimming(), data, torch.utils.data.default_collate))
    equal = TensorDataset(torch.randint(1, WORDS, (12, 9)), torch.arange(12) % CLASSES)  # all as long as can be
    with pytest.raises(Unsupported, match="cutting to the longest text"):
        run(attach(Trimming(), equal, torch.utils.data.default_collate))


def test_an_empty_batch_goes_through_packed_sequences():
    for make in (with_lengths, lambda records: padded(records)):
        model = Packed()
        private = attach(model, texts(), make, sample_rate=1e-9, expected_batch_size=4)
        for batch in private.loader:
            x, lengths, y = batch if len(batch) == 3 else (batch[0], (batch[0] != 0).sum(1), batch[1])
            assert len(x) == 1
            assert int(lengths.min()) >= 1
            F.cross_entropy(model(x, lengths), y).backward()
            private.optimizer.step()
            break


@pytest.mark.parametrize(
    ("collate", "message"),
    [
        (lambda records: mixed(*padded(records)), r"batch\[0\].*change with the other records"),
        (lambda records: standardised(*padded(records)), r"batch\[0\].*change with the other records"),
        (lambda records: padded(sorted(records, key=lambda r: -len(r[0]))), "another order"),
        (lambda records: (*padded(records), sum(len(x) for x, _ in records)), "no row of a record"),
    ],
)
def test_collate_functions_that_mix_are_refused_at_attach(collate, message, tmp_path):
    with pytest.raises(Unsupported, match=message):
        attach(MeanOverTime(), texts(), collate, ledger=tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


def mixed(x, y):
    share, other = torch.distributions.Beta(1.0, 1.0).sample(), torch.randperm(len(x))
    return share * x + (1 - share) * x[other], y


def standardised(x, y):
    x = x.float()
    return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-6), y


@pytest.mark.parametrize("length", [0, -3, 2.5, "9", True])
def test_a_bad_length_is_refused(length):
    with pytest.raises(BadArgument, match=f"pad_to={length!r}"):
        attach(MeanOverTime(), texts(), pad_to=length)
    with pytest.raises(BadArgument, match=f"length={length!r}"):
        clipwise.pad_to(padded, length)


def test_a_length_where_nothing_is_padded_is_refused():
    data = TensorDataset(torch.randn(20, 4), torch.arange(20) % 2)
    with pytest.raises(BadArgument, match="pad_to=7: no tensor"):
        attach(nn.Linear(4, 2), data, torch.utils.data.default_collate, pad_to=7)


class Encoder(Text):
    """Deep enough that half precision rounds its outputs by percents. `padding` counts that much."""

    def __init__(self, padding):
        super().__init__()
        self.padding, width = padding, 16
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, input_ids, attention_mask):
        words = self.words(input_ids)
        h = self.encoder(
            words + self.places(torch.arange(input_ids.shape[1])), src_key_padding_mask=attention_mask == 0
        )
        return self.head(h[:, 0] + self.padding * words.mean(1))


def first_batch(seed, padding, *, autocast):
    torch.manual_seed(seed)
    model = Encoder(padding) if autocast else Encoder(padding).bfloat16()
    private = attach(model, texts(longest=30, seed=seed), collate=as_dict, loss_reduction="sum")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            for batch in private.loader:
                model(batch["input_ids"], batch["attention_mask"])
                return private.statement()
    finally:
        private.detach()


@pytest.mark.parametrize("autocast", [False, True], ids=["weights", "autocast"])
def test_padding_is_told_from_rounding_in_half_precision(autocast):
    for seed in (0, 33):  # 33: rounding changes an output by more than 3 %
        with pytest.warns(UserWarning, match="in half precision on batches that are padded"):
            statement = first_batch(seed, 0.0, autocast=autocast)
        assert "epsilon does not count that" in statement.to_markdown()
        with pytest.raises(Unsupported, match="changes with the padding"):
            first_batch(seed, 0.01, autocast=autocast)


def test_a_model_that_cannot_be_asked_in_float32_is_refused_by_name():
    class Narrow(MaskedMean):
        def forward(self, x):
            if self.head.weight.dtype != torch.bfloat16:
                raise ValueError("in bfloat16 alone")
            return super().forward(x)

    private = attach(Narrow().bfloat16(), texts(), loss_reduction="sum")
    with pytest.raises(Unsupported, match=r"cannot be asked.*ValueError.*pad_to"):
        run(private, reduction="sum")
