"""Optimisers, the learning-rate schedule, the moving average of the weights, and their state as tensors."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from cdcd.config import TrainingConfig
from cdcd.training.parallel import part_of, whole
from cdcd.training.tensor_files import Tensors

STATE = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "muon": {"average"}}
"""The state that an optimiser keeps of each parameter, once there is any."""


class Optimiser:
    """One or more torch optimisers over named parameters, with their state as named tensors."""

    def __init__(
        self,
        parts: Mapping[str, Optimizer],
        names: Mapping[nn.Parameter, str],
        weight_decay: float = 0.0,
        decayed: Sequence[nn.Parameter] = (),
    ) -> None:
        self.parts = parts
        self.names: dict[Tensor, str] = {**names}
        self.weight_decay, self.decayed = weight_decay, decayed if weight_decay else ()

    def set_rate(self, learning_rate: float) -> None:
        """Sets the learning rate; on a GPU it is a tensor, for steps that are captured."""
        for part in self.parts.values():
            rate = part.param_groups[0]["lr"]
            if isinstance(rate, Tensor):
                rate.fill_(learning_rate)
            else:
                part.param_groups[0]["lr"] = learning_rate

    def step(self) -> None:
        self._decay()
        for part in self.parts.values():
            part.step()
            part.zero_grad()

    @torch.no_grad()
    def _decay(self) -> None:
        """Shrinks weights by learning rate × weight decay, apart from their updates (Loshchilov & Hutter, 2019)."""
        if self.decayed:
            kept = 1 - self.weight_decay * self.parts["adam"].param_groups[0]["lr"]
            for parameter in self.decayed:
                parameter.mul_(kept)

    def tensors(self) -> Tensors:
        """Returns the state of every parameter that has one."""
        return {
            f"{name}.{key}.{self.names[parameter]}": value
            for name, part in self.parts.items()
            for parameter, state in part.state.items()
            for key, value in state.items()
        }

    def restore(self, tensors: Tensors) -> None:
        """Restores saved state; a run saved before its first step has none."""
        expected = {
            f"{part}.{key}.{self.names[parameter]}": (part, key, parameter)
            for part, optimiser in self.parts.items()
            for group in optimiser.param_groups
            for parameter in group["params"]
            for key in STATE[part]
        }
        for name, value in tensors.items():
            if name not in expected:
                raise ValueError(f"it has a tensor {name} that this model's optimiser has not")
            part, key, parameter = expected[name]
            if value.shape not in (parameter.shape, ()) or value.dtype != torch.float32:
                raise ValueError(f"its tensor {name} is of another shape or type")
            is_like = value.shape == parameter.shape
            state = part_of(value, parameter) if is_like else value.to(parameter.device)
            self.parts[part].state[parameter][key] = state
        for part, optimiser in self.parts.items():
            for parameter, state in optimiser.state.items():
                if state and set(state) != STATE[part]:
                    raise ValueError(f"it has not the whole state of {self.names[parameter]}")


def make_optimiser(
    module: nn.Module,
    betas: tuple[float, float],
    momentum: float | None = None,
    weight_decay: float = 0.0,
) -> Optimiser:
    """Makes Adam; with a momentum, Muon for the weight matrices of blocks and Adam for everything else.

    Muon's updates are scaled to the size of Adam's, so that one learning rate serves both. Weight decay
    is the same with both.
    """
    names = {parameter: name for name, parameter in module.named_parameters()}
    matrices, others, parts = [], [], {}
    for parameter, name in names.items():
        is_matrix = momentum is not None and parameter.ndim == 2 and "blocks." in name
        (matrices if is_matrix else others).append(parameter)
    if momentum is not None:
        parts["muon"] = Muon(matrices, momentum)
    is_cuda = others[0].is_cuda
    parts["adam"] = Adam(others, _rate_for(others), betas=betas, fused=True, capturable=is_cuda)
    return Optimiser(parts, names, weight_decay, decayed_weights(module))


def decayed_weights(module: nn.Module) -> list[nn.Parameter]:
    """Lists what weight decay shrinks: the matrices of linear layers.

    Not embeddings, biases, norms and gates, nor the layers that make norms and gates depend on the time.
    """
    matrices = {
        f"{name}.weight"
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and not name.endswith("modulation")
    }
    return [parameter for name, parameter in module.named_parameters() if name in matrices]


def _rate_for(parameters: list[nn.Parameter]) -> float | Tensor:
    """Returns a learning rate that a CUDA graph can read anew at every step."""
    device = parameters[0].device
    return torch.tensor(1e-3, device=device) if device.type == "cuda" else 1e-3


def learning_rate_at(step: int, config: TrainingConfig) -> float:
    """Returns the rate after a linear warm-up, which is constant or falls, and decays over the last steps."""
    rate = config.learning_rate
    if config.warmup_steps:
        rate *= min(1.0, (step + 1) / config.warmup_steps)
    if config.schedule == "inverse_sqrt":
        rate *= min(1.0, (config.warmup_steps / (step + 1)) ** 0.5)
    if config.decay_steps:
        rate *= min(1.0, (config.steps - step) / config.decay_steps)
    return rate


class Muon(Optimizer):
    """Momentum whose matrix updates are made orthogonal (Jordan et al., 2024).

    torch.optim.Muon does the same one matrix at a time and in bfloat16, which is slow on CPUs and
    crashes some; this one stacks matrices of one shape and stays in float32 there.
    """

    def __init__(self, matrices: list[nn.Parameter], momentum: float) -> None:
        super().__init__(matrices, {"lr": _rate_for(matrices), "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        group = self.param_groups[0]
        shapes: dict[torch.Size, list[Tensor]] = {}
        for matrix in group["params"]:
            shapes.setdefault(matrix.shape, []).append(matrix)
        for shape, matrices in shapes.items():
            updates = self._momentum(matrices, group["momentum"])
            # The root mean square of an orthogonal matrix, brought to that of a typical Adam update.
            changes = orthogonalise(updates) * (-0.2 * max(shape) ** 0.5 * group["lr"])
            for matrix, change in zip(matrices, changes, strict=True):
                matrix.add_(part_of(change, matrix))

    def _momentum(self, matrices: list[Tensor], momentum: float) -> Tensor:
        """Updates the average gradients, and returns Nesterov's momentum of all matrices."""
        grads = [matrix.grad for matrix in matrices if matrix.grad is not None]
        assert len(grads) == len(matrices)
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["average"] = torch.zeros_like(matrix)
        averages = [self.state[matrix]["average"] for matrix in matrices]
        get_ema_multi_avg_fn(momentum)(averages, grads, 0)
        gradient, average = (
            torch.stack([whole(t) for t in tensors]) for tensors in (grads, averages)
        )
        return gradient.lerp(average, momentum)


def orthogonalise(
    matrices: Float[Tensor, "count rows columns"], steps: int = 5
) -> Float[Tensor, "count rows columns"]:
    """Returns roughly the nearest orthogonal matrices: singular values between about 0.7 and 1.2.

    A quintic Newton–Schulz iteration with Jordan et al.'s coefficients.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    wide = x.shape[-2] < x.shape[-1]
    x = x.mT if wide else x
    for _ in range(steps):
        gram = x.mT @ x
        x = torch.baddbmm(x, x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), beta=a)
    return (x.mT if wide else x).to(matrices.dtype)


class MovingAverage:
    """An exponential moving average of a model's parameters; it starts fast, then slows to `decay`.

    With a decay of 0 there is none.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        named = model.named_parameters() if decay else ()
        self.current = {name: parameter.detach() for name, parameter in named}
        self.tensors = {name: parameter.clone() for name, parameter in self.current.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        if self.tensors:
            decay = min(self.decay, (1 + step) / (10 + step))
            average, current = [*self.tensors.values()], [*self.current.values()]
            get_ema_multi_avg_fn(decay)(average, current, step)

    def swap(self) -> None:
        """Exchanges the model's weights with their average."""
        for name, current in self.current.items():
            held = current.clone()
            current.copy_(self.tensors[name])
            self.tensors[name].copy_(held)
