"""A margin loss in an ordinary PyTorch loop: python examples/margin_loss.py [EPOCHS]."""

import sys

import torch
from torch import nn

import fedra

torch.manual_seed(0)
data = fedra.data.load("digits")
images, labels = data.train.inputs.float() / 255, data.train.targets
net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
head = fedra.losses.MarginHead(fedra.losses.ArcFace(scale=16, margin=0.3), classes=10, features=32)
optimizer = torch.optim.Adam([*net.parameters(), *head.parameters()], lr=0.003)

for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 10):
    for rows in torch.randperm(len(labels)).split(64):
        loss = head(net(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

right = head.logits(net(data.test.inputs.float() / 255)).argmax(dim=1) == data.test.targets
print(f"{right.float().mean():.2%} of the test digits are recognized, training loss {loss:.3f}")
