"""`clipwise.hf.PrivateTrainer`: what it shows, what it keeps, how it goes on, what it refuses."""

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

import clipwise
from clipwise.types import BadArgument, Unsupported

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

pytestmark = pytest.mark.filterwarnings("ignore")
RECORDS, STEPS = 96, 12


def records():
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(1, 30, (RECORDS, 6), generator=generator)
    return [{"input_ids": x, "attention_mask": torch.ones_like(x), "labels": (x[0] > 15).long()} for x in words]


def model():
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    return transformers.BertForSequenceClassification(
        transformers.BertConfig(vocab_size=30, max_position_embeddings=8, **small)
    )


def arguments(folder, **more):
    named = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 2,
        "logging_steps": 3,
    }
    named |= {"save_steps": 4, "learning_rate": 1e-2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
    return transformers.TrainingArguments(str(folder), **{**named, **more})


class Died(Exception):
    pass


class DieAt(transformers.TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):  # noqa: ARG002
        if state.global_step == self.step:
            raise Died


def trainer(folder, *, callbacks=(), more=None, **options):
    options = {"epsilon": 8.0, "delta": 1e-3, **options}
    args = arguments(folder, **(more or {}))
    return clipwise.hf.PrivateTrainer(
        model(), args, train_dataset=records(), eval_dataset=records()[:16], callbacks=list(callbacks), **options
    )


def test_epsilon_and_nothing_else(tmp_path):
    one = trainer(tmp_path, delta=None)
    before = {name: p.clone() for name, p in one.model.named_parameters()}
    done = one.train()
    assert done.global_step == STEPS
    assert math.isnan(done.training_loss)
    assert 7.5 < one.epsilon() <= 8.0
    assert one.statement().delta == pytest.approx(RECORDS**-1.1)
    assert one.statement().steps == STEPS
    assert one.statement().expected_batch_size == 16  # parts of 8, whose number is nobody's business
    assert "one class a record" in one.statement().loss
    assert all(not torch.equal(p, before[name]) for name, p in one.model.named_parameters())
    logged = [entry for entry in one.state.log_history if "epsilon" in entry]
    assert len(logged) == STEPS // 3 + 1
    assert [entry["epsilon"] for entry in logged] == sorted(entry["epsilon"] for entry in logged)
    shown = {key for entry in one.state.log_history for key in entry}
    assert shown.isdisjoint({"loss", "train_loss", "grad_norm", "total_flos", "num_input_tokens_seen"})
    assert one.state.total_flos == 0
    with pytest.raises(BadArgument, match="no run holds it"):  # the model was given back
        clipwise.detach(one.model)


def test_with_lora_a_step_is_plain_descent_when_nothing_is_clipped(tmp_path):
    """Every record each step, next to no noise: the weights are those of a loop of torch, adapters and head alike."""
    peft = pytest.importorskip("peft")
    adapters = {"r": 2, "target_modules": ["query", "value"], "lora_dropout": 0.0, "init_lora_weights": False}

    def adapted():
        bare = model()
        for part in bare.modules():
            if isinstance(part, torch.nn.Dropout):
                part.p = 0.0
        return peft.get_peft_model(bare, peft.LoraConfig(task_type="SEQ_CLS", **adapters))

    by_hand, rate, steps = adapted(), 0.5, 3
    start = {name: p.detach().clone() for name, p in by_hand.named_parameters()}
    data = {key: torch.stack([record[key] for record in records()]) for key in records()[0]}
    optimizer = torch.optim.SGD([p for p in by_hand.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        by_hand(**data).loss.backward()
        optimizer.step()

    more = {"per_device_train_batch_size": RECORDS // 4, "gradient_accumulation_steps": 4, "max_steps": steps}
    more |= {"optim": "sgd", "learning_rate": rate, "lr_scheduler_type": "constant"}
    unclipped = {"method": "fixed", "threshold": 20.0, "noise_multiplier": 1e-5}
    one = clipwise.hf.PrivateTrainer(adapted(), arguments(tmp_path, **more), train_dataset=records(), **unclipped)
    one.train()
    found = dict(one.model.named_parameters())
    for name, p in by_hand.named_parameters():
        assert torch.allclose(found[name], p, atol=1e-4), name
        assert p.requires_grad != torch.equal(p, start[name]), name
    assert {"lora_A", "lora_B", "classifier"} <= {
        part for name, p in found.items() if p.requires_grad for part in name.split(".")
    }


def test_the_model_card_and_the_saved_model_carry_the_statement(tmp_path):
    one = trainer(tmp_path, more={"max_steps": 2, "save_strategy": "no"})
    one.train()
    one.create_model_card()
    one.save_model(str(tmp_path / "kept"))
    for page in (tmp_path / "README.md", tmp_path / "kept" / "privacy_statement.md"):
        assert "Privacy statement" in page.read_text()
    assert one.evaluate()["eval_loss"] > 0


def test_a_killed_run_goes_on_and_ends_where_it_would_have(tmp_path):
    whole = trainer(tmp_path / "whole", seed=3)
    whole.train()
    with pytest.raises(Died):
        trainer(tmp_path / "died", seed=3, callbacks=[DieAt(6)]).train()
    again = trainer(tmp_path / "died", seed=3)
    assert again.train(resume_from_checkpoint=True).global_step == STEPS
    assert again.statement().steps == STEPS  # redone with the same noise: charged once
    assert again.epsilon() == pytest.approx(whole.epsilon())
    for (name, a), (_, b) in zip(whole.model.named_parameters(), again.model.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, msg=name, rtol=0, atol=0)


def test_without_a_seed_what_was_lost_stays_charged(tmp_path):
    with pytest.raises(Died):
        trainer(tmp_path, callbacks=[DieAt(6)]).train()
    again = trainer(tmp_path)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.statement().steps > STEPS
    assert again.epsilon() <= 8.0


def test_a_checkpoint_holds_the_weights_that_the_run_holds(tmp_path):
    one = trainer(tmp_path, more={"max_steps": 4})
    one.train()
    kept = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    for name, p in one.model.state_dict().items():
        torch.testing.assert_close(kept[name], p, rtol=0, atol=0)


def test_a_checkpoint_of_another_trainer_is_refused(tmp_path):
    plain = transformers.Trainer(model(), arguments(tmp_path, max_steps=4), train_dataset=records())
    plain.train()
    with pytest.raises(BadArgument, match="holds no folder 'clipwise'"):
        trainer(tmp_path).train(resume_from_checkpoint=True)


def test_a_loss_of_ones_own(tmp_path):
    class Mine(clipwise.hf.PrivateTrainer):
        def loss_of(self, model, inputs):
            labels = inputs.pop("labels")
            return clipwise.losses.cross_entropy(model(**inputs).logits, labels, label_smoothing=0.1)

    one = Mine(model(), arguments(tmp_path, max_steps=2), train_dataset=records(), epsilon=8.0)
    one.train()
    assert "given row by row" in one.statement().loss


@pytest.mark.parametrize(
    ("more", "word"),
    [({"label_smoothing_factor": 0.1}, "label_smoothing_factor"), ({"auto_find_batch_size": True}, "it tries")],
)
def test_what_cannot_be_honoured_is_refused_by_name(tmp_path, more, word):
    with pytest.raises(Unsupported, match=word):
        trainer(tmp_path, more=more)


def test_a_stream_of_records_is_refused(tmp_path):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(records())

    one = clipwise.hf.PrivateTrainer(model(), arguments(tmp_path, max_steps=2), train_dataset=Stream(), epsilon=8.0)
    with pytest.raises(BadArgument, match="drawn by number"):
        one.train()


def with_adapters(folder, **options):
    peft = pytest.importorskip("peft")
    adapters = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query", "value"])
    args = arguments(folder, max_steps=4, save_steps=2)
    return clipwise.hf.PrivateTrainer(
        peft.get_peft_model(model(), adapters), args, train_dataset=records(), epsilon=8.0, **options
    )


def test_adapters_that_are_loaded_are_those_that_were_trained(tmp_path):
    peft = pytest.importorskip("peft")
    one = with_adapters(tmp_path)
    one.train()
    loaded = dict(peft.PeftModel.from_pretrained(model(), tmp_path / "checkpoint-4").named_parameters())
    for name, p in one.model.named_parameters():
        torch.testing.assert_close(loaded[name], p, rtol=0, atol=0, msg=name)


def test_a_checkpoint_that_lacks_what_was_trained_is_named(tmp_path):
    with_adapters(tmp_path, seed=3).train()
    file = tmp_path / "checkpoint-2" / "adapter_model.safetensors"
    kept = load_file(file)
    spoilt = next(name for name in kept if "lora_B" in name)
    save_file({**kept, spoilt: torch.zeros_like(kept[spoilt])}, file)
    again = with_adapters(tmp_path, seed=3)
    with pytest.warns(UserWarning, match=r"does not hold 1 of the trained parameters as they were \(.*lora_B"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert again.state.global_step == 4


@pytest.mark.parametrize(("stated", "steps", "rate"), [(5e-5, 12, 1e-3), (5e-5, 600, 5e-4), (3e-5, 12, 3e-5)])
def test_where_no_rate_is_stated_it_goes_by_the_number_of_steps(tmp_path, stated, steps, rate):
    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):  # noqa: ARG002
            control.should_training_stop = True

    more = {"learning_rate": stated, "max_steps": steps, "lr_scheduler_type": "constant", "save_strategy": "no"}
    one = trainer(tmp_path, more=more, callbacks=[Stop()])
    one.train()
    assert one.optimizer.param_groups[0]["lr"] == pytest.approx(rate)
    assert bool(one.statement().automatic) == (rate != stated)
    assert all(f"{rate:.2g}, for {steps} steps" in said for said in one.statement().automatic)
