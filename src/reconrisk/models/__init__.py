"""The architectures the papers attack; nothing else depends on a particular one.

Each is a function of the record's shape (channels, height, width) and the number of classes that returns a plain
``nn.Module`` from a batch of records to logits. None works in place or branches on data, so all go through
``torch.func``. With ``rng`` the weights are reproducible and the global generator stays as it was.
"""

from reconrisk.models.balle2022 import balle2022_cnn, balle2022_mlp
from reconrisk.models.chen2025 import chen2025_cifar10, chen2025_mnist
from reconrisk.models.guo2022 import guo2022_cifar10, guo2022_mnist
from reconrisk.models.layers import group_norm, parameter_count
from reconrisk.models.lenet import judge_lenet, lenet, lenet5
from reconrisk.models.linear import linear, logistic, mlp
from reconrisk.models.meng2025 import meng2025_cnn, meng2025_mlp
from reconrisk.models.resnet import resnet18, resnet101
from reconrisk.models.vgg import vgg16
from reconrisk.models.weights import load_weights

__all__ = [
    "balle2022_cnn",
    "balle2022_mlp",
    "chen2025_cifar10",
    "chen2025_mnist",
    "group_norm",
    "guo2022_cifar10",
    "guo2022_mnist",
    "judge_lenet",
    "lenet",
    "lenet5",
    "linear",
    "load_weights",
    "logistic",
    "meng2025_cnn",
    "meng2025_mlp",
    "mlp",
    "parameter_count",
    "resnet18",
    "resnet101",
    "vgg16",
]
