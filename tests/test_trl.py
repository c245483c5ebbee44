"""TRL's trainers with an epsilon: their losses are TRL's, a record's alone, and what would join records is refused."""

import pytest
import torch

import clipwise
from clipwise.types import Unsupported

transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")

pytestmark = pytest.mark.filterwarnings("ignore")
WORDS = ["[PAD]", "[EOS]", "[UNK]", *"abcdefghijklmnop"]


@pytest.fixture(scope="module", autouse=True)
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
        yield


def tokenizer():
    words = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]"
    )


def model(seed=0):
    torch.manual_seed(seed)
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"num_key_value_heads": 2, "vocab_size": len(WORDS), "max_position_embeddings": 64}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(pad_token_id=0, eos_token_id=1, **small))


def sentence(number, words):
    return " ".join(WORDS[3 + (number * 7 + i * i) % 16] for i in range(words))


def texts(records=48):
    return datasets.Dataset.from_list([{"text": sentence(i, 3 + i % 5)} for i in range(records)])


def pairs(records=48):
    return datasets.Dataset.from_list(
        [
            {
                "prompt": sentence(i, 2 + i % 3),
                "chosen": " " + sentence(i + 1, 2 + i % 4),
                "rejected": " " + sentence(i + 2, 3),
            }
            for i in range(records)
        ]
    )


def arguments(kind, folder, **more):
    named = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 4,
        "report_to": [],
        "use_cpu": True,
    }
    named |= {"save_steps": 2, "logging_steps": 1, "disable_tqdm": True, "bf16": False, "learning_rate": 1e-2}
    return kind(str(folder), **{**named, **more})


def sft(folder, *, records=48, config=None, **options):
    options = {"epsilon": 8.0, "delta": 1e-3, **options}
    args = arguments(trl.SFTConfig, folder, **(config or {}))
    return clipwise.hf.PrivateSFTTrainer(
        model(), args, train_dataset=texts(records), eval_dataset=texts(8), processing_class=tokenizer(), **options
    )


def dpo(folder, *, config=None, adapter=None, reference=None, **options):
    reference = (
        model(1)
        if reference is None and adapter is None and not (config or {}).get("precompute_ref_log_probs")
        else reference
    )
    options = {"epsilon": 8.0, "delta": 1e-3, **options}
    args = arguments(trl.DPOConfig, folder, **(config or {}))
    return clipwise.hf.PrivateDPOTrainer(
        model(),
        reference,
        args,
        train_dataset=pairs(),
        eval_dataset=pairs(8),
        processing_class=tokenizer(),
        peft_config=adapter,
        **options,
    )


def lora():
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)


def test_sft_with_an_epsilon(tmp_path):
    one = sft(tmp_path)
    before = {name: p.clone() for name, p in one.model.named_parameters()}
    assert one.train().global_step == 4
    assert 7 < one.epsilon() <= 8
    assert "next words, labels shifted by one, each record's mean over its own" in one.statement().loss
    assert all(not torch.equal(p, before[name]) for name, p in one.model.named_parameters())
    shown = {key for entry in one.state.log_history for key in entry}
    assert "epsilon" in shown
    assert shown.isdisjoint({"loss", "train_loss", "grad_norm", "entropy", "num_tokens", "mean_token_accuracy"})
    assert one.evaluate()["eval_loss"] > 0
    assert "Privacy statement" in (tmp_path / "checkpoint-4" / "privacy_statement.md").read_text()


def test_sft_goes_on_after_a_kill(tmp_path):
    whole = sft(tmp_path / "whole", seed=3)
    whole.train()
    sft(tmp_path / "died", seed=3).train()
    again = sft(tmp_path / "died", seed=3)
    assert again.train(resume_from_checkpoint=str(tmp_path / "died" / "checkpoint-2")).global_step == 4
    for (name, a), (_, b) in zip(whole.model.named_parameters(), again.model.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name, rtol=0, atol=0)


def test_a_record_of_sft_has_trls_loss(tmp_path):
    """On one record, where a mean over the batch's words and one over the record's are the same."""
    one = sft(tmp_path)
    batch = one.data_collator([one.train_dataset[3]])
    torch.testing.assert_close(one.loss_of(one.model, dict(batch)), one.compute_loss(one.model, dict(batch)))


@pytest.mark.parametrize("loss", ["sigmoid", "hinge", "robust", "bco_pair", "apo_zero", "apo_down"])
def test_a_batch_of_dpo_has_trls_loss(tmp_path, loss):
    """Other weights than the reference's, so that no ratio is zero; pairs of several lengths."""
    one = dpo(tmp_path, config={"loss_type": [loss], "label_smoothing": 0.1, "beta": 0.7}, reference=model(1))
    records = [one.train_dataset[i] for i in range(5)]
    rows = one.loss_of(one.model, one.collate()(records))
    assert rows.shape == (5,)
    torch.testing.assert_close(rows.mean(), one.compute_loss(one.model, dict(one.data_collator(records))))
    alone = [one.loss_of(one.model, one.collate()([record])) for record in records]
    torch.testing.assert_close(rows, torch.cat(alone))


@pytest.mark.parametrize("way", ["reference", "adapter", "before"])
def test_dpo_with_an_epsilon(tmp_path, way):
    given = {"reference": {"reference": model(1)}, "adapter": {"adapter": lora()}}.get(way, {})
    one = dpo(tmp_path, config={"precompute_ref_log_probs": way == "before"}, **given)
    before = {name: p.clone() for name, p in one.model.named_parameters()}
    one.train()
    assert 7 < one.epsilon() <= 8
    assert "one loss a pair" in one.statement().loss
    assert all(p.requires_grad != torch.equal(p, before[name]) for name, p in one.model.named_parameters())
    shown = {key for entry in one.state.log_history for key in entry}
    assert shown.isdisjoint({"loss", "rewards/chosen", "logps/chosen", "rewards/accuracies", "num_tokens"})
    assert "eval_rewards/accuracies" in one.evaluate()


def test_a_pair_is_clipped_once(tmp_path):
    """Next to no noise, all pairs each step, a threshold that clips all: a step of SGD is one of the mean of unit gradients."""
    records, rate, bound = 48, 1.0, 1e-2
    config = {
        "per_device_train_batch_size": 12,
        "gradient_accumulation_steps": 4,
        "max_steps": 1,
        "optim": "sgd",
        "learning_rate": rate,
    }
    config |= {"lr_scheduler_type": "constant", "save_strategy": "no", "gradient_checkpointing": False}
    clipped = {"method": "fixed", "threshold": bound, "noise_multiplier": 1e-4, "epsilon": None}
    one = dpo(tmp_path, config=config, reference=model(1), **clipped)
    parameters = list(one.model.parameters())
    wanted = [torch.zeros_like(p) for p in parameters]
    for record in one.train_dataset:
        grads = torch.autograd.grad(one.loss_of(one.model, one.collate()([record])).sum(), parameters)
        norm = torch.stack([g.square().sum() for g in grads]).sum().sqrt()
        assert norm > bound
        for total, g in zip(wanted, grads, strict=True):
            total += g * bound / norm / records
    before = [p.detach().clone() for p in parameters]
    one.train()
    for p, start, step in zip(parameters, before, wanted, strict=True):
        torch.testing.assert_close(p - start, -rate * step, rtol=1e-3, atol=rate * bound * 1e-3)


@pytest.mark.parametrize(
    ("made", "config", "word"),
    [
        (sft, {"packing": True, "max_length": 16}, "packing: .* joins several records"),
        (sft, {"loss_type": "dft"}, "loss_type"),
        (dpo, {"loss_type": ["aot"]}, "loss_type: .*aot is not"),
        (dpo, {"use_weighting": True}, "use_weighting"),
        (dpo, {"ld_alpha": 0.5}, "ld_alpha"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path, made, config, word):
    with pytest.raises(Unsupported, match=word):
        made(tmp_path, config=config)
