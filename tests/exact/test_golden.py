"""Short runs give the losses that commit 428b84c gave them; a refactoring must not change them.

The last number of each curve is the validation loss, at fixed noise levels.
"""

import json

import pytest
from tiny import train_tiny

TRANSLATION = {"task": "translation"}
BASELINE = {"model": "autoregressive"}
RUNS = {
    "diffusion_text": {},
    "diffusion_text_muon": {"training.optimiser": "muon"},
    "diffusion_text_clamped": {
        "embedding.clamp": True,
        "objective.masking": "random",
        "objective.self_conditioned_share": 0.5,
        "objective.low_discrepancy": False,
        "warp.beta_a": 0.5,
        "training.accumulate": 2,
    },
    "autoregressive_text": BASELINE,
    "masked_text": {"model": "masked"},
    "diffusion_translation": TRANSLATION,
    "diffusion_translation_masked": {
        **TRANSLATION,
        "objective.masking": "random",
        "seq2seq.relative_positions": True,
        "training.optimiser": "muon",
    },
    "autoregressive_translation": {**TRANSLATION, **BASELINE, "training.label_smoothing": 0.1},
}
GOLDEN = {
    "diffusion_text": "5.5334 5.4047 5.2723 4.8991 4.5715 4.9331 4.7657 4.1132 5.0789",
    "diffusion_text_muon": "5.5334 5.4047 5.3172 5.0339 4.7454 4.9857 4.7835 4.2011 5.0112",
    "diffusion_text_clamped": "5.5334 5.4135 5.2667 4.9920 4.7662 4.8703 4.7910 4.1860 5.1608",
    "autoregressive_text": "5.5334 5.4491 5.2939 5.0946 4.8654 4.8883 4.8353 4.7798 4.7395",
    "masked_text": "5.5334 5.4057 5.2670 4.8287 4.2633 4.9606 4.8229 4.1898 5.5722",
    "diffusion_translation": "5.9506 5.8157 5.5951 5.2836 4.9621 4.6802 4.4772 3.8887 5.1342",
    "diffusion_translation_masked": "5.9506 5.8188 5.6232 5.3602 5.0688 4.7544 4.6326 4.0450 5.2303",
    "autoregressive_translation": "6.6554 6.3755 6.2418 5.9900 5.7908 5.8087 5.5953 5.6447 5.7001",
}


@pytest.mark.parametrize("name", RUNS)
def test_loss_curve(name, tmp_path):
    changes = {"training.steps": 8, "training.learning_rate": 1e-2, **RUNS[name]}
    run = train_tiny(tmp_path / "run", changes)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    curve = [row[n] for n in ("loss", "valid_loss") for row in rows if n in row]
    assert curve == pytest.approx([float(x) for x in GOLDEN[name].split()], rel=5e-4)
