"""An embedder of your own by the field's protocols: python examples/evaluate_own_embedder.py."""

import torch
from torch import nn

import fedra

torch.manual_seed(0)
embedder = nn.Sequential(  # any module or function from images (N, 3, H, W) in -1..1 to embeddings (N, d)
    nn.Conv2d(3, 16, 5, stride=2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(4),
    nn.Flatten(),
)
people = "synthetic-faces:identities=2,images=6,test_identities=20,size=48"  # or "lfw", "cfp_fp.bin", a folder
report = fedra.evaluate(embedder, on=people, protocols=["verification", "identification"])

print(f"{report.metrics['verification']['accuracy']:.1%} of the pairs of unseen people are classified correctly")
print(f"{report.metrics['identification']['rank_1']:.1%} of the probes are identified")
report.print()
