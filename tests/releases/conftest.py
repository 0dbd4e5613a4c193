import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Tied(nn.Module):
    """One weight used by two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.second(torch.tanh(self.first(inputs.flatten(1))))[:, :3]


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, inputs):
        return self.layer(torch.tanh(self.layer(inputs.flatten(1))))[:, :3]


class Bare(nn.Module):
    """A parameter outside any layer, and a layer whose weight is used without calling it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.layer = nn.Linear(16, 3)

    def forward(self, inputs):
        return nn.functional.linear(self.scale * inputs.flatten(1), self.layer.weight, self.layer.bias).tanh()


class Unseen(nn.Module):
    """A layer whose weight is used without calling it, beside its call."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.layer(flat).tanh() + nn.functional.linear(flat.square(), self.layer.weight)


class Branching(nn.Module):
    """Control flow that depends on the data."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    def forward(self, inputs):
        flat = inputs.flatten(1)
        return self.layer(flat) if flat.detach().sum() > 0 else self.layer(-flat)


class Tokens(nn.Module):
    """Positions as in a sequence: more products than parameters, or fewer."""

    def __init__(self, width):
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 3)

    def forward(self, inputs):
        return self.head(self.norm(torch.tanh(self.embed(inputs.reshape(-1, 4, 4)))).mean(1))


class Scaled(nn.Module):
    """A layer norm beside a parameter without a rule: vectorising its derivative is silently wrong in torch 2.13."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.first, self.norm, self.last = nn.Linear(16, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, inputs):
        return self.last(torch.tanh(self.norm(self.first(self.scale * inputs.flatten(1)))))


class Attentive(nn.Module):
    """Attention, whose fused form has no second derivative, and a parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, inputs):
        return self.scale * self.layer(inputs.reshape(-1, 4, 4)).mean(1)[:, :3]


class Recurrent(nn.Module):
    """Layers that cannot be vectorised."""

    def __init__(self):
        super().__init__()
        self.layer = nn.GRU(4, 3, batch_first=True)

    def forward(self, inputs):
        return self.layer(inputs.reshape(-1, 4, 4))[0][:, -1]


def _convolutional():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 6, 2, groups=2, bias=False),
        nn.BatchNorm2d(6),
        nn.Tanh(),
        nn.Conv2d(6, 3, 1, padding="same"),
        nn.Flatten(),
    ).eval()


MODULES = {
    "perceptron": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, 3)),
    "convolutional": _convolutional,
    "padded": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(48, 3)
    ),
    "flat batch norm": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval(),
    "attentive": Attentive,
    "recurrent": Recurrent,
    "tied": Tied,
    "twice": Twice,
    "bare": Bare,
    "scaled": Scaled,
    "unseen": Unseen,
    "branching": Branching,
    "tokens": lambda: Tokens(8),
    "narrow tokens": lambda: Tokens(2),
}
RULED = {"perceptron", "convolutional", "twice", "tokens", "narrow tokens", "flat batch norm"}


@pytest.fixture(params=MODULES)
def named_module(request):
    """Modules of every kind, in double precision, with fixed weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return request.param, MODULES[request.param]().double()


@pytest.fixture
def records():
    """Five records of 4 x 4 pixels with labels."""
    rng = torch.Generator().manual_seed(1)
    return torch.rand(5, 1, 4, 4, dtype=torch.float64, generator=rng), torch.tensor([0, 1, 2, 1, 0])


def single_gradients(model, inputs, labels, clip=None):
    """Slow oracle: the flat gradient of every record on its own, differentiable, by plain autograd."""
    rows = []
    for record, label in zip(inputs, labels, strict=True):
        with sdpa_kernel(SDPBackend.MATH):
            loss = nn.functional.cross_entropy(model(record[None]), label[None])
        gradient = torch.autograd.grad(loss, list(model.parameters()), create_graph=True, materialize_grads=True)
        flat = torch.cat([value.flatten() for value in gradient])
        rows.append(flat if clip is None else flat * clip.factor(flat.norm()))
    return torch.stack(rows)


def single_jacobians(model, inputs, labels, clip=None):
    """Slow oracle: Jacobian of every record's gradient, records x parameters x coordinates."""

    def about(index):
        def gradient(record):
            return single_gradients(model, record[None], labels[index : index + 1], clip)[0]

        return torch.autograd.functional.jacobian(gradient, inputs[index], vectorize=False).flatten(1)

    return torch.stack([about(index) for index in range(len(inputs))])
