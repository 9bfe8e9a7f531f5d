"""Every row of the paper's Tables 1 and 2, and its one-setting negative results, is a configuration."""

import pytest

from cdcd.presets import base
from cdcd.settings import override

TABLE_1 = [
    {},
    *[
        {"embedding.renormalise": renormalise, "embedding.clamp": clamp}
        for renormalise, clamp in ((True, False), (False, True), (True, True))
    ],
    *[{"embedding.dim": d, "process.t_min": 0.1} for d in (16, 32, 64, 128, 256, 512, 1024)],
    *[{"embedding.init_scale": scale} for scale in (0.0001, 0.001, 0.01, 0.1, 1.0)],
    {"objective.masking": "prefix", "objective.prefix_length": 32},
    {"objective.masking": "prefix"},
    {"objective.masking": "random"},
    *[{"objective.masking": "mixed", "objective.prefix_share": s} for s in (0.2, 0.5, 0.8)],
    {"objective.self_conditioning": False},
    {"objective.self_conditioning": True, "sampling.self_conditioning": False},
    {"warp.train": False, "sampling.warp": False},
    {"warp.train": True, "sampling.warp": False},
    *[{"warp.temperature": t} for t in (0.5, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 5.0, 10.0, 100.0)],
    *[{"warp.uniformity": mu} for mu in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)],
    *[{"warp.beta_a": a, "warp.beta_b": b} for a in (0.5, 1.0, 2.0) for b in (0.5, 1.0, 2.0)],
]
TEMPERATURES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 1.0)
TABLE_2 = [
    *[{"sampling.num_steps": n} for n in (10, 20, 50, 100, 200, 500)],
    *[{"sampling.solver": "heun", "sampling.num_steps": n} for n in (5, 10, 25, 50, 100, 250)],
    *[{"sampling.score_temperature": t} for t in TEMPERATURES],
    *[{"sampling.softmax_temperature": t} for t in TEMPERATURES],
    *[{"sampling.initial_noise_scale": s} for s in TEMPERATURES],
    *[{"sampling.nucleus": p} for p in TEMPERATURES],
    *[{"sampling.warp": False, "sampling.rho": rho} for rho in (1.0, 2.0, 4.0, 8.0)],
    *[{"sampling.warp": True, "sampling.rho": rho} for rho in (1.0, 2.0, 4.0, 8.0)],
    *[{"sampling.warp_temperature": t} for t in (0.5, 0.8, 0.9, 1.2, 1.5, 2.0, 5.0, 10.0, 100.0)],
    *[{"sampling.warp_uniformity": mu} for mu in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)],
    *[{"sampling.guidance_scale": g} for g in (1.0, 2.0, 4.0, 8.0, 16.0)],
    *[{"sampling.final_prediction": f} for f in ("network", "nearest")],
]
NEGATIVE = [
    {"network.time_input": False},
    {"embedding.normalise": False, "embedding.l2_penalty": 1.0},
    {"objective.loss": "score_matching"},
    {"objective.masking": "none", "sampling.replacement": True},
    {"objective.self_conditioning": False, "sampling.renormalise": True, "sampling.clamp": True},
]


@pytest.mark.parametrize("row", TABLE_1 + TABLE_2 + NEGATIVE, ids=str)
def test_row_is_a_valid_change_of_the_base_model(row):
    changed = override(base(), row)
    for name, value in row.items():
        section, field = name.split(".")
        assert getattr(getattr(changed, section), field) == value


def test_equal_evaluations_of_the_two_solvers():
    """Table 2 halves Heun's steps so that the number of network calls stays the same."""
    for steps in (10, 20, 50):
        euler = override(base(), {"sampling.num_steps": steps}).sampling
        heun = override(
            base(), {"sampling.num_steps": steps // 2, "sampling.solver": "heun"}
        ).sampling
        assert euler.num_evaluations == heun.num_evaluations
