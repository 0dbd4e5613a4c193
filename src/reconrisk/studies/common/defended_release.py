"""Measures of a defended gradient without an attack: one-step utility, and information about the record.

:func:`is_known_smooth` checks if the gradient of a loss is known to be a continuous function of the record, which
bounds on the error assume.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reconrisk.bounds.mse.bayesian import bayesian_mse_lower_bound, box_prior_information
from reconrisk.core.defense import Defense
from reconrisk.core.guarantee import Estimate
from reconrisk.core.observation import ForwardMap
from reconrisk.defenses.chain import Chain
from reconrisk.defenses.clipping import Clip
from reconrisk.defenses.deferred import MomentsDefense
from reconrisk.defenses.noise import GaussianNoise, LaplaceNoise
from reconrisk.defenses.pruning import MaskedRelease, RandomPruning
from reconrisk.defenses.refreshed import RefreshedDefense
from reconrisk.releases.model_state import LossFunction
from reconrisk.releases.observe import resolve_defense
from reconrisk.releases.release import ForwardRelease, Release
from reconrisk.releases.sensitivity.fisher import fisher_trace

_SMOOTH_LAYERS = (
    nn.Identity,
    nn.Flatten,
    nn.Unflatten,
    nn.Linear,
    nn.Bilinear,
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.AvgPool1d,
    nn.AvgPool2d,
    nn.AvgPool3d,
    nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d,
    nn.AdaptiveAvgPool3d,
    nn.Tanh,
    nn.Sigmoid,
    nn.LogSigmoid,
    nn.Softplus,
    nn.SiLU,
    nn.GELU,
    nn.Mish,
    nn.ELU,
    nn.CELU,
    nn.Softmax,
    nn.LogSoftmax,
    nn.Dropout,
    nn.ZeroPad2d,
    nn.RNN,
    nn.RNNCell,
    nn.LSTM,
    nn.LSTMCell,
    nn.GRU,
    nn.GRUCell,
)
"""Layers that are smooth for some settings; the operations of a forward pass decide."""

_SMOOTH_OPERATIONS = frozenset(
    name
    for names in (
        "add sub rsub neg mul addmm mm bmm baddbmm addbmm addmv mv dot outer matmul linear convolution sum mean var",
        "cumsum exp tanh sigmoid log_sigmoid_forward softplus silu gelu mish celu sin cos erf square logsumexp",
        "_softmax _log_softmax nll_loss_forward nll_loss2d_forward mse_loss binary_cross_entropy_with_logits",
        "avg_pool2d avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d native_batch_norm _native_batch_norm_legit",
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update native_layer_norm",
        "native_group_norm view _unsafe_view reshape _reshape_alias expand permute transpose t unsqueeze squeeze slice",
        "select index_select cat stack split split_with_sizes unbind clone detach alias contiguous copy _to_copy",
        "lift_fresh as_strided constant_pad_nd zeros ones zeros_like ones_like new_zeros full empty empty_like",
        "new_empty scalar_tensor fill zero arange",
    )
    for name in names.split()
)
"""Operations, by name, whose derivatives are continuous for all settings."""


def is_known_smooth(model: nn.Module, loss_fn: LossFunction, inputs: Tensor, labels: Tensor) -> bool:
    """Return True if every layer and operation of the model and its loss is known to be continuously differentiable.

    ReLU and max-pooling are not: the gradient jumps as the record moves.

    Args:
        model: Network to examine.
        loss_fn: Loss of outputs and labels.
        inputs: Records of one forward pass.
        labels: Their labels.

    Returns:
        True if the loss is known to be smooth.

    Guarantee: False if anything is unknown: a layer or function that is not listed, a comparison, a custom gradient,
    or a pass that raises.

    >>> inputs, labels = torch.rand(2, 3), torch.tensor([0, 1])
    >>> [
    ...     is_known_smooth(nn.Sequential(nn.Linear(3, 2), layer), nn.functional.cross_entropy, inputs, labels)
    ...     for layer in (nn.Tanh(), nn.ReLU(), nn.ELU(1.0), nn.ELU(0.5))
    ... ]
    [True, False, True, False]
    """
    leaves = (layer for layer in model.modules() if not any(layer.children()))
    if not all(isinstance(layer, _SMOOTH_LAYERS) or layer is model for layer in leaves):
        return False
    scan, working = _SmoothnessScan(), copy.deepcopy(model)  # a copy: a pass changes running statistics
    records = inputs.detach().clone().requires_grad_(inputs.is_floating_point())
    try:
        with torch.enable_grad(), scan:  # without gradients, some layers use fused operations that hide their parts
            loss = loss_fn(working(records), labels)
    except Exception:  # a module of the user may raise anything; code that needs the pass reports the error
        return False
    return scan.is_smooth and not _has_custom_gradient(loss)


class _SmoothnessScan(TorchDispatchMode):
    """Context that examines every operation that is run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no type here
        self.is_smooth = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the operation and record if it is smooth."""
        self.is_smooth = self.is_smooth and _is_smooth(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))


def _is_smooth(operation: str, args: tuple[Any, ...]) -> bool:
    """Return True if an operation has continuous derivatives for these arguments."""
    name = operation.removesuffix("_")  # the underscore marks the in-place variant
    if name in _SMOOTH_OPERATIONS:
        return True
    if name == "elu":  # scale * (x if x > 0 else alpha * (exp(input_scale * x) - 1))
        alpha, _, input_scale = [*args[1:], 1.0, 1.0, 1.0][:3]
        return math.isclose(alpha * input_scale, 1.0)  # only then the slopes agree at zero
    if name == "div":  # by a constant; a denominator that depends on the record may be zero
        return not isinstance(args[1], Tensor) or (args[1].dim() == 0 and not args[1].requires_grad)
    # Fractional and negative exponents are not smooth at zero.
    return name == "pow" and isinstance(args[1], (int, float)) and args[1] >= 0 and float(args[1]).is_integer()


def _has_custom_gradient(loss: Tensor) -> bool:
    """Return True if the graph holds a custom autograd function, whose gradient need not be a derivative."""
    waiting: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, torch.autograd.function.BackwardCFunction):  # the node of a custom Function
            return True
        seen.add(node)
        waiting += [each for each, _ in node.next_functions]
    return False


PRIOR_DRAWS = 64
"""Draws from the prior over which the information is averaged."""

PRIOR_ERROR = 0.5
"""Relative standard error of the trace at each draw; the mean over all draws is more accurate."""

_DRAWS = 64  # of a defense whose moments are unknown
_RELATIVE_ERROR = 0.2  # default standard error of a trace
_CONFIDENCE = 0.95  # of the lower end of an estimated bound
_GRID = 100_001  # points of the inverse distribution function: steps of 1e-5 of the range
_NOISES = (GaussianNoise, LaplaceNoise)


@dataclass(frozen=True, eq=False)
class _BeforeNoise:
    """Map from records to the mean of the values that the first noise is added to."""

    undefended: ForwardMap
    parts: tuple[Defense, ...]

    def __call__(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the release after every part that precedes the noise."""
        sent: Mapping[str, Tensor] = self.undefended(inputs, labels)
        for part in self.parts:
            sent = part.replay(sent)
            if isinstance(part, MaskedRelease):  # replay does not apply the mask, which the adversary need not know
                mask = part.support_mask()
                sent = {name: value * mask[name] for name, value in sent.items()}
        return dict(sent)


def one_step_utilities(
    gradient: Mapping[str, Tensor], defense: Defense | None, *, rng: torch.Generator
) -> tuple[float, float]:
    r"""Return the one-step utilities of a defended gradient: the share that remains, and minus the variance along it.

    .. math:: U_1 = \frac{E\langle g, y\rangle}{|g|^2}, \qquad U_2 = -\mathrm{Var}\langle g, y\rangle

    Notation: g is the gradient, y the defended gradient that the client sends.

    Args:
        gradient: Gradient by parameter name.
        defense: Defense of the gradient; None for none.
        rng: Source of the draws of defenses without known moments.

    Returns:
        :math:`U_1` and :math:`U_2`.

    Guarantee: exact for sequences of clipping, masks and independent noise of known variance; for any other defense
    the mean and variance of 64 draws.
    Edge cases: (1, 0) without a defense and for a gradient of zeros without noise.
    Reference: Section 3.2, chen2025.

    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> one_step_utilities({"w": torch.tensor([3.0, 4.0])}, gaussian_noise(0.5), rng=torch.Generator())
    (1.0, -6.25)
    """
    if defense is None:
        return 1.0, 0.0
    norm = _inner_product(gradient, gradient)
    known = _moments(gradient, defense)
    if known is not None:
        mean, variance = known
        squares = {name: value.double().square() for name, value in gradient.items()}
        return (_inner_product(gradient, mean) / norm if norm > 0 else 1.0), 0.0 - _inner_product(squares, variance)
    products = torch.tensor(
        [_inner_product(gradient, defense(gradient, rng=rng)) for _ in range(_DRAWS)], dtype=torch.float64
    )
    return (float(products.mean()) / norm if norm > 0 else 1.0), 0.0 - float(products.var())


def information_trace(
    release: Release, defense: Any, *, relative_error: float = _RELATIVE_ERROR, rng: torch.Generator
) -> Tensor:
    r"""Estimate the trace of the Fisher information that a defended release carries about each record.

    .. math:: \mathrm{tr}\,I_i = \mathrm{tr}(J_i^T \Sigma^{-1} J_i), \qquad
              \Sigma_{kk} = s_k^2 \text{ (Gaussian)}, \quad s_k^2/2 \text{ (Laplacian)}

    Here :math:`J_i` is the derivative of the release with respect to record i, and :math:`s_k` the standard deviation
    of the noise on value k.

    Args:
        release: Undefended release of the records.
        defense: Defense of the release; None for none.
        relative_error: Requested standard error of each trace, relative to the trace.
        rng: Source of the random probes.

    Returns:
        One trace for each record, for an adversary who knows the other records.

    Assumes: J is the derivative of the values that the first noise is added to; later parts of the defense cannot add
    information.
    Guarantee: unbiased, with a standard error of ``relative_error`` of the trace for each record.
    Edge cases: infinite without noise; if values before the noise are selected by their size, rounded, or treated in
    an unknown way, because the release is then not continuous in the record; and if the records themselves chose the
    defense.
    Reference: Section 3.1, chen2025; equation 5, guo2022.

    >>> from reconrisk.defenses.noise import gaussian_noise
    >>> release = ForwardRelease(lambda inputs, labels: {"y": 3 * inputs[0]}, torch.ones(1, 1), torch.zeros(1))
    >>> bool(information_trace(release, None, rng=torch.Generator()).isinf())
    True
    """
    stage = None if defense is None else _noise_stage(defense, release)
    if stage is None:
        return torch.full((len(release.inputs),), math.inf)
    before, noise = stage
    mean = ForwardRelease(_BeforeNoise(release.forward, (*before, noise)), release.inputs, release.labels)
    template = release.template()
    stds: Mapping[str, Tensor] | None = noise.noise_std(template)
    if stds is None:
        return torch.full((len(release.inputs),), math.inf)
    # Laplacian noise of standard deviation s has the information 2 / s^2 about its mean, Gaussian noise 1 / s^2.
    divisor = math.sqrt(2) if isinstance(noise, LaplaceNoise) else 1.0
    scaled = {name: std / divisor for name, std in stds.items()}
    return fisher_trace(mean, noise_std=scaled, relative_error=relative_error, rng=rng).values


def mse_bound_from_traces(traces: Tensor, *, dimension: int, data_range: tuple[float, float]) -> Estimate:
    r"""Estimate the lower bound on the mean squared error for the smoothest prior on the range of the data.

    .. math:: E|\hat x - x|^2/d \ge \frac{d}{E\,\mathrm{tr}\,I(x) + \mathrm{tr}\,I_0}

    Here x is a record of d values, :math:`\hat x` any estimate, I(x) the Fisher information of the release, and
    :math:`I_0` that of the prior.

    Args:
        traces: Traces of the Fisher information at records drawn from that prior.
        dimension: Number of values of a record.
        data_range: Smallest and largest value of a record.

    Returns:
        ``value`` is the bound at the mean trace. ``low`` is the bound at the larger of Student's upper limit of the
        mean and the largest trace.

    Assumes: for ``low``, that more than :math:`1 - 0.05^{1/n}` of the prior's records have a larger trace than the mean
    (5 % for 64 draws). No number of draws excludes rare records with more information than all others together.
    Guarantee: none, because the expected trace is estimated. Under the assumption, ``low`` is at most the bound with
    a confidence of 95 %.
    Edge cases: the trivial bound 0 if the information is infinite; ``low`` is 0 for a single draw.
    Reference: Theorem 3.2, chen2025, corrected.

    >>> mse_bound_from_traces(torch.zeros(4), dimension=2, data_range=(0.0, 1.0)).low.__round__(4)
    0.0253
    """
    prior = float(box_prior_information(data_range[1] - data_range[0]))

    def bound(trace: float) -> float:
        if not math.isfinite(trace):
            return 0.0
        return bayesian_mse_lower_bound(trace=trace, dimension=dimension, prior_information=prior).value

    count, drawn = len(traces), traces.double()
    spread = float(drawn.std()) / math.sqrt(count) if count > 1 else math.inf  # standard error of the mean
    mean, most = float(drawn.mean()), bound(0.0)  # without information the prior alone bounds the error
    limit = mean + float(stats.t.ppf(_CONFIDENCE, max(count - 1, 1))) * spread if math.isfinite(mean) else math.inf
    low = bound(max(limit, float(drawn.max())))
    return Estimate(bound(mean), low, most, _CONFIDENCE, count, "estimated bound, no proof")


def draw_from_box(like: Tensor, data_range: tuple[float, float], *, rng: torch.Generator) -> Tensor:
    """Draw records of the smoothest prior on the data range: every value has the density 2 sin^2(pi u), u in [0, 1].

    Args:
        like: Tensor whose shape, type and device the records get.
        data_range: Smallest and largest value of a record.
        rng: Source of the draws.

    Returns:
        Independent draws, scaled from [0, 1] to the range.

    >>> drawn = draw_from_box(torch.zeros(1000, 2), (-1.0, 3.0), rng=torch.Generator().manual_seed(0))
    >>> bool((drawn >= -1).all() and (drawn <= 3).all()), round(float(drawn.mean()))
    (True, 1)
    """
    grid = np.linspace(0.0, 1.0, _GRID)
    uniform = torch.rand(like.shape, generator=rng, dtype=torch.float64).numpy()
    # Inverse of the distribution function u - sin(2 pi u) / (2 pi), by interpolation.
    found = np.interp(uniform, grid - np.sin(2 * np.pi * grid) / (2 * np.pi), grid)
    low, high = data_range
    return torch.as_tensor(low + (high - low) * found).to(like).clamp(low, high)


def _parts(defense: Any) -> Sequence[Any]:
    return defense.parts if isinstance(defense, Chain) else (defense,)


def _noise_stage(defense: Any, release: Release) -> tuple[tuple[Any, ...], Any] | None:
    """Return the parts before the first noise, and the noise; None without noise or if a part may be discontinuous."""
    by_private = [part for part in _parts(defense) if hasattr(part, "for_release")]
    if not all(isinstance(part, (RefreshedDefense, MomentsDefense, RandomPruning)) for part in by_private):
        return None
    parts = _parts(resolve_defense(defense, release))
    for place, part in enumerate(parts):
        if isinstance(part, _NOISES):
            return None if getattr(part, "is_local", False) else (tuple(parts[:place]), part)
        if not isinstance(part, (Clip, MaskedRelease)) or getattr(part, "is_local", False):
            return None
    return None


def _moments(gradient: Mapping[str, Tensor], defense: Defense) -> tuple[dict[str, Tensor], dict[str, Tensor]] | None:
    """Return the mean and variance of every defended value; None if they are unknown."""
    mean = {name: value.double() for name, value in gradient.items()}
    variance = {name: torch.zeros_like(value) for name, value in mean.items()}
    noisy = False
    for part in _parts(defense):
        if isinstance(part, _NOISES):
            stds = part.noise_std(mean)
            # A part that clips noisy values changes their mean and variance in an unknown way.
            if stds is None or (noisy and getattr(part, "clip_norm", None) is not None):
                return None
            mean, noisy = part.replay(mean), True
            variance = {name: value + stds[name].double().square() for name, value in variance.items()}
        elif isinstance(part, Clip) and not noisy:
            mean = part.replay(mean)
        elif isinstance(part, MaskedRelease) and part.borderline is None:
            mean = {name: value * part.mask[name] for name, value in mean.items()}
            variance = {name: value * part.mask[name] for name, value in variance.items()}
        else:
            return None
    return mean, variance


def _inner_product(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return sum(float((first[name].double() * second[name].double()).sum()) for name in first)
