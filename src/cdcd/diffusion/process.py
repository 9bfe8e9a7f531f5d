"""The forward process (§2.1): x = x0 + t·eps, variance exploding, with t the noise's standard deviation."""

from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from cdcd.settings import Bounds, Settings

NoiseLevel = Annotated[float, Bounds(1e-6, 1e6)]


@dataclass(frozen=True, kw_only=True)
class ProcessConfig(Settings, section="process"):
    """The range of noise levels."""

    t_min: NoiseLevel = 1.0
    """Lowest noise level. At 1 and d = 256 every token is still recognisable; lower it for smaller d."""
    t_max: NoiseLevel = 300.0
    """Highest noise level, where sampling starts."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.t_min < self.t_max:
            raise ValueError(
                f"process.t_min ({self.t_min}) must be below process.t_max ({self.t_max})"
            )


def add_noise(
    x0: Float[Tensor, "batch seq embed"],
    t: Float[Tensor, " batch"],
    eps: Float[Tensor, "batch seq embed"],
) -> Float[Tensor, "batch seq embed"]:
    """Corrupts `x0` to noise level `t` (§2.1)."""
    return x0 + t[:, None, None] * eps


def scale_input(
    x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"]
) -> Float[Tensor, "batch seq embed"]:
    """Brings the components of `x` back to unit variance (§6.1), before any cast to low precision."""
    return x / (t[:, None, None] ** 2 + 1).sqrt()
