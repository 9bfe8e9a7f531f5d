"""§2–3, §4.1 and App. A of the paper, on tensors: knows nothing of text, files or Transformers.

`examples/your_own_network.py` trains and samples with these names and a network of its own.
"""

from cdcd.diffusion.draws import draw_for_step
from cdcd.diffusion.embedding import Embedding, EmbeddingConfig
from cdcd.diffusion.estimator import Estimate, Estimator, Guided, NetworkEstimator
from cdcd.diffusion.objective import Draws, ObjectiveConfig, training_loss
from cdcd.diffusion.process import ProcessConfig
from cdcd.diffusion.sampling import SamplingConfig, sample, time_grid
from cdcd.diffusion.step_noise import step_noise
from cdcd.diffusion.warping import NoiseSchedule, TimeWarp, WarpConfig

__all__ = [
    "Draws",
    "Embedding",
    "EmbeddingConfig",
    "Estimate",
    "Estimator",
    "Guided",
    "NetworkEstimator",
    "NoiseSchedule",
    "ObjectiveConfig",
    "ProcessConfig",
    "SamplingConfig",
    "TimeWarp",
    "WarpConfig",
    "draw_for_step",
    "sample",
    "step_noise",
    "time_grid",
    "training_loss",
]
