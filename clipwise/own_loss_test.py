"""Losses of models that compute their own, against torch's own losses on one record at a time."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import clipwise
from clipwise.own_loss import KINDS, OwnLoss, own_loss, row_losses
from clipwise.types import BadArgument, Unsupported

ROWS, WORDS, VOCABULARY = 5, 6, 11
IGNORED = -100


class Out:
    """Named as an output of transformers is."""

    def __init__(self, **values):
        vars(self).update(values)


class MaskedLMOutput(Out):
    pass


class CausalLMOutput(Out):
    pass


def words(seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(ROWS, WORDS, VOCABULARY, generator=generator)
    labels = torch.randint(0, VOCABULARY, (ROWS, WORDS), generator=generator)
    labels[0, 3:] = IGNORED
    labels[1, :5] = IGNORED
    return logits, labels


@pytest.mark.parametrize(("output", "shift"), [(CausalLMOutput, 1), (MaskedLMOutput, 0)])
def test_words_are_averaged_over_each_records_own(output, shift):
    logits, labels = words()
    got = row_losses(output(logits=logits), labels)
    for row in range(ROWS):
        want = F.cross_entropy(logits[row, : WORDS - shift], labels[row, shift:], ignore_index=IGNORED)
        torch.testing.assert_close(got[row], want)
    public = row_losses(output(logits=logits), labels, divide_by=4)
    sums = [F.cross_entropy(logits[i, : WORDS - shift], labels[i, shift:], reduction="sum") for i in range(ROWS)]
    torch.testing.assert_close(public, torch.stack(sums) / 4)


def test_a_record_without_any_word_has_loss_0_and_no_gradient():
    logits, labels = words()
    labels[2] = IGNORED
    logits.requires_grad_()
    losses = row_losses(logits, labels, kind="tokens")
    losses.sum().backward()
    assert losses[2] == 0
    assert not logits.grad[2].any()
    assert logits.grad.isfinite().all()


def test_classes_numbers_and_labels_of_a_record():
    generator = torch.Generator().manual_seed(0)
    logits, numbers = torch.randn(ROWS, 3, generator=generator), torch.rand(ROWS, 3, generator=generator)
    classes = torch.randint(0, 3, (ROWS,), generator=generator)
    torch.testing.assert_close(row_losses(logits, classes), F.cross_entropy(logits, classes, reduction="none"))
    torch.testing.assert_close(
        row_losses(logits, numbers), F.binary_cross_entropy_with_logits(logits, numbers, reduction="none").mean(1)
    )
    torch.testing.assert_close(row_losses(logits, numbers, kind="regression"), (logits - numbers).square().mean(1))
    torch.testing.assert_close(row_losses(logits[:, :1], numbers[:, 0]), (logits[:, 0] - numbers[:, 0]).square())


def test_a_span_beyond_the_text_is_none():
    start, end = torch.randn(2, ROWS, WORDS).unbind()
    first, last = torch.tensor([0, 1, 2, 3, 99]), torch.tensor([0, 3, 2, 99, 99])
    got = row_losses((start, end), (first, last), kind="span")
    torch.testing.assert_close(got[1], (F.cross_entropy(start[1], first[1]) + F.cross_entropy(end[1], last[1])) / 2)
    torch.testing.assert_close(got[3], F.cross_entropy(start[3], first[3]) / 2)
    assert got[4] == 0


@pytest.mark.parametrize(
    ("output", "labels", "named", "words_of_error"),
    [
        (torch.randn(ROWS, WORDS, 4), torch.zeros(ROWS, WORDS, dtype=torch.long), {}, "may mean several losses"),
        (torch.randn(ROWS, 4), torch.zeros(ROWS, WORDS, dtype=torch.long), {"kind": "tokens"}, "cannot be made of"),
        (torch.randn(ROWS, 4), torch.zeros(ROWS, dtype=torch.long), {"kind": "ctc"}, "kind='ctc' is none of"),
        (Out(last_hidden_state=torch.randn(ROWS, 4)), torch.zeros(ROWS), {}, "has no logits"),
    ],
)
def test_what_cannot_be_made_is_refused_by_name(output, labels, named, words_of_error):
    with pytest.raises(BadArgument, match=words_of_error) as error:
        row_losses(output, labels, **named)
    assert str(ROWS) not in str(error.value)  # the realised batch size


def test_a_model_that_is_none_of_theirs_has_no_own_loss():
    assert own_loss(nn.Linear(2, 2), "mean") is None


# -- on an attached model ------------------------------------------------------------------------------------------------


def tiny(kind, **more):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=16, **sizes, **more)
    torch.manual_seed(0)
    return getattr(transformers, kind)(config)


def records(labels):
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(24):
        ids = torch.randint(1, VOCABULARY, (WORDS,), generator=generator)
        made.append({"input_ids": ids, "attention_mask": torch.ones(WORDS, dtype=torch.long), **labels(ids, i)})
    return made


CASES = {
    "BertForSequenceClassification": (lambda _, i: {"labels": torch.tensor(i % 2)}, "classes"),
    "BertForTokenClassification": (lambda ids, _: {"labels": ids % 2}, "tokens"),
    "BertForMaskedLM": (lambda ids, _: {"labels": torch.where(ids % 2 == 0, ids, IGNORED)}, "tokens"),
    "BertLMHeadModel": (lambda ids, _: {"labels": ids}, "causal-lm"),
    "BertForQuestionAnswering": (
        lambda _, i: {"start_positions": torch.tensor(i % 3), "end_positions": torch.tensor(3)},
        "span",
    ),
}


def attached(model, data, **named):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"method": "fixed", "threshold": 1.0, "noise_multiplier": 1.0, "delta": 1e-3, **named}
    return clipwise.attach(model, optimizer, DataLoader(data, batch_size=8), **options), optimizer


@pytest.mark.parametrize("kind", CASES)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_standard_idiom(kind, reduction):
    model = tiny(kind, is_decoder=kind == "BertLMHeadModel")
    labels, form = CASES[kind]
    private, optimizer = attached(model, records(labels), loss_reduction=reduction)
    try:
        for batch in private.loader:
            optimizer.zero_grad()
            model(**batch).loss.backward()
            optimizer.step()
            break
        assert KINDS[form].words in private.statement().loss
        assert set(private.run.engine._own_loss._kinds.values()) == {form}
    finally:
        private.detach()


def test_the_value_is_the_mean_of_the_records_own_losses():
    """And not of all words, which transformers takes, and which would let one record weigh the others."""
    model = tiny("BertForMaskedLM").eval()
    data = records(lambda ids, i: {"labels": torch.where(torch.arange(WORDS) < 1 + i % 5, ids, IGNORED)})
    private, _ = attached(model, data)
    batch = next(iter(private.loader))
    got = model(**batch)
    as_tuple = model(**batch, return_dict=False)
    private.detach()
    alone = [model(**{k: x[i : i + 1] for k, x in batch.items()}).loss for i in range(len(batch["labels"]))]
    torch.testing.assert_close(got.loss, torch.stack(alone).mean())
    torch.testing.assert_close(as_tuple[0], got.loss)
    assert (got.loss - model(**batch).loss).abs() > 1e-4
    assert next(iter(got)) == "loss"


def test_a_loss_with_another_term_is_refused_by_name():
    model = tiny("BertForSequenceClassification")
    plain = type(model).forward

    class WithPenalty(type(model)):
        def forward(self, **kwargs):
            out = plain(self, **kwargs)
            if out.loss is not None:
                out.loss = out.loss + out.logits.abs().sum()
            return out

    model.__class__ = WithPenalty
    WithPenalty.forward.__signature__ = inspect.signature(plain)
    private, _ = attached(model, records(CASES["BertForSequenceClassification"][0]))
    batch = next(iter(private.loader))
    with pytest.raises(Unsupported, match=r"cannot be taken apart by record.*clipwise.hf.row_losses"):
        model(**batch)
    private.detach()


def test_a_form_is_not_taken_for_another_that_is_near():
    """Untrained, every loss is about the logarithm of the vocabulary: a form must give the value, not nearly."""
    model = tiny("BertForMaskedLM", initializer_range=1e-3).double()
    own = OwnLoss(model, "mean")
    batch = torch.utils.data.default_collate(records(CASES["BertForMaskedLM"][0]))
    apart = own.kept_back((), batch)

    def run(**given):
        torch.manual_seed(0)
        with torch.no_grad():
            return model(**given)

    assert own._recognised(apart, run) == "tokens"


def test_by_hand_and_by_itself_agree():
    model = tiny("BertForMaskedLM").eval()
    private, optimizer = attached(model, records(CASES["BertForMaskedLM"][0]))
    batches = iter(private.loader)
    batch = next(batches)
    by_itself = model(**batch).loss
    labels = batch.pop("labels")
    losses = clipwise.hf.row_losses(model(**batch), labels)
    torch.testing.assert_close(losses.mean(), by_itself)
    private.backward(losses)
    optimizer.step()
    assert "each record's mean over its own" in private.statement().loss
    private.detach()
