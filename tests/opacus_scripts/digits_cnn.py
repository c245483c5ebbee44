"""A training script for Opacus: pictures, a fixed model, memory in parts, schedulers, a checkpoint."""

import torch
from opacus import PrivacyEngine
from opacus.schedulers import ExponentialNoise, StepGradClip
from opacus.utils.batch_memory_manager import BatchMemoryManager
from opacus.validators import ModuleValidator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DELTA, EPOCHS = 1e-5, 3

images, labels = load_digits(return_X_y=True)
pictures = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
train = TensorDataset(pictures[:1500], torch.tensor(labels[:1500]))
test = TensorDataset(pictures[1500:], torch.tensor(labels[1500:]))
train_loader = DataLoader(train, batch_size=128, shuffle=True)
test_loader = DataLoader(test, batch_size=256)

model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)
)
if not ModuleValidator.is_valid(model):
    model = ModuleValidator.fix(model)
ModuleValidator.validate(model, strict=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
criterion = nn.CrossEntropyLoss()

privacy_engine = PrivacyEngine(accountant="prv")
model, optimizer, train_loader = privacy_engine.make_private(
    module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=0.8, max_grad_norm=1.2
)
noise = ExponentialNoise(optimizer, gamma=0.9)
clip = StepGradClip(optimizer, step_size=2, gamma=0.5)

for _ in range(EPOCHS):
    model.train()
    with BatchMemoryManager(data_loader=train_loader, max_physical_batch_size=64, optimizer=optimizer) as in_parts:
        for x, y in in_parts:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
    noise.step()
    clip.step()
    privacy_engine.save_checkpoint(path="digits.pt", module=model, optimizer=optimizer, noise_scheduler=noise)

privacy_engine.load_checkpoint(path="digits.pt", module=model, optimizer=optimizer, noise_scheduler=noise)
model.eval()
with torch.no_grad():
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in test_loader)
accuracy = right / len(test)
epsilon = privacy_engine.get_epsilon(DELTA)
history = privacy_engine.accountant.history
