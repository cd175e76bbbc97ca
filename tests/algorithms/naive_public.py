"""FedFR written the plain way: one module per client with a branch of its own, torch's optimizer, loops."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field

import torch
from naive import Setting
from torch import Tensor, nn
from torch.nn import functional as F

from fedra.core.random import shuffles


@dataclass
class Everybody:
    """The start and the settings: all rows of the head, the public images, and the strengths of the terms."""

    net: nn.Module
    public_rows: Tensor
    public: tuple[Tensor, Tensor]
    branch_rows: Tensor
    scale: float
    margin: float
    threshold: float
    contrast: float
    branch: float
    chosen: list[int] = field(default_factory=list)


class Branched(nn.Module):
    """What a client trains: the body, its rows, the public rows, and its branch."""

    def __init__(self, net: nn.Module, rows: Tensor, bias: Tensor, public: Tensor, branch: Tensor) -> None:
        super().__init__()
        self.body = deepcopy(net.body)
        self.rows = nn.Parameter(torch.cat([rows, public]).detach().clone())
        self.bias = nn.Parameter(bias.detach().clone())  # not in use, but it decays
        width = rows.shape[1]
        self.converter = nn.Linear(width, width).to(rows.dtype)
        nn.init.eye_(self.converter.weight)
        nn.init.zeros_(self.converter.bias)
        self.own = nn.Parameter(branch.detach().clone())
        self.own_bias = nn.Parameter(torch.zeros(len(branch), dtype=rows.dtype))


def loss(model: Branched, received: nn.Module, past: nn.Module, x: Tensor, y: Tensor, all_: Everybody) -> Tensor:
    found = model.body(x)
    cosines = F.normalize(found, dim=1) @ F.normalize(model.rows, dim=1).T
    total = F.cross_entropy(all_.scale * (cosines - all_.margin * F.one_hot(y, len(model.rows))), y)
    with torch.no_grad():
        toward, away = received(x), past(x)
    pair = torch.stack([F.cosine_similarity(found, toward), F.cosine_similarity(found, away)], dim=1) / 0.5
    total = total + all_.contrast * F.cross_entropy(pair, torch.zeros(len(x), dtype=torch.long))
    mine = F.normalize(model.converter(found), dim=1) @ F.normalize(model.own, dim=1).T
    personal = found.new_zeros(())
    for i in range(len(x)):
        for j in range(len(model.own)):
            spread = 2 * ((mine[i, j] + 1) / 2) ** 3 - 1
            if int(y[i]) == j:
                personal = personal + 0.7 * F.softplus(-(30 * (spread - 0.4) + model.own_bias[j])) / 30
            else:
                personal = personal + 0.3 * F.softplus(30 * (spread + 0.4) + model.own_bias[j]) / 30
    return total + all_.branch * personal / len(x)


def train_fedfr(all_: Everybody, cohorts: tuple[tuple[int, ...], ...], setting: Setting) -> dict[int, Branched]:
    """Rounds in place: `all_.net` and `all_.public_rows` become the server's last; the clients' models come back."""
    held = [sorted(set(targets.tolist())) for _, targets in setting.data]
    last: dict[int, Branched] = {}
    for number, cohort in enumerate(cohorts):
        trained: list[tuple[int, int, Branched]] = []
        for client in cohort:
            x, y = local_images(all_, *setting.data[client], held[client])
            head = all_.net.head
            branch = all_.branch_rows[held[client]]
            model = Branched(all_.net, head.weight[held[client]], head.bias[held[client]], all_.public_rows, branch)  # type: ignore[index, union-attr]
            if client in last:
                model.converter, model.own = deepcopy(last[client].converter), deepcopy(last[client].own)
                model.own_bias = deepcopy(last[client].own_bias)
            past = last[client].body if client in last else all_.net.body
            received = deepcopy(all_.net.body)
            lr = setting.lr * setting.decay**number
            optimizer = torch.optim.SGD(model.parameters(), lr, setting.momentum, weight_decay=setting.weight_decay)
            for order in torch.from_numpy(shuffles(setting.seed, number, [client], [len(y)], setting.epochs)):
                for rows in torch.split(order, setting.batch):
                    optimizer.zero_grad()
                    loss(model, received, past, x[rows], y[rows], all_).backward()
                    model.bias.grad = torch.zeros_like(model.bias)
                    optimizer.step()
            trained.append((client, len(y), model))
            all_.chosen.append(len(y) - len(setting.data[client][1]))
        serve(all_, trained, held)
        last |= {client: model for client, _, model in trained}
    return last


@torch.no_grad()
def local_images(all_: Everybody, x: Tensor, y: Tensor, held: list[int]) -> tuple[Tensor, Tensor]:
    """A client's own images under labels of its own counting, and the public ones that look like any of them."""
    mine, theirs = all_.net.body(x), all_.net.body(all_.public[0])  # type: ignore[operator]
    near = [max(float(F.cosine_similarity(one, other, dim=0)) for other in mine) > all_.threshold for one in theirs]
    kept = torch.tensor(near)
    labels = torch.tensor([held.index(label) for label in y.tolist()])
    return torch.cat([x, all_.public[0][kept]]), torch.cat([labels, len(held) + all_.public[1][kept]])


@torch.no_grad()
def serve(all_: Everybody, trained: list[tuple[int, int, Branched]], held: list[list[int]]) -> None:
    """The body and the public rows: means by the number of images, public ones included; own rows: plain means."""
    total = sum(size for _, size, _ in trained)
    for name, value in all_.net.body.named_parameters():  # type: ignore[operator]
        value.copy_(sum(size / total * dict(m.body.named_parameters())[name] for _, size, m in trained))  # type: ignore[operator]
    public = [(size, model.rows[len(held[client]) :]) for client, size, model in trained]
    all_.public_rows = torch.stack([size / total * rows for size, rows in public]).sum(dim=0)
    for label in range(len(all_.net.head.weight)):  # type: ignore[arg-type, union-attr]
        own = [(held[client].index(label), model) for client, _, model in trained if label in held[client]]
        if own:
            all_.net.head.weight[label] = torch.stack([m.rows[row] for row, m in own]).mean(dim=0)  # type: ignore[index, operator, union-attr]
            all_.net.head.bias[label] = torch.stack([m.bias[row] for row, m in own]).mean(dim=0)  # type: ignore[index, operator, union-attr]
