"""The controls of the page: for each setting its range, and what it does in plain language."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdcd.config import RunConfig


@dataclass(frozen=True)
class Control:
    """A slider, or a choice where there are choices."""

    name: str
    label: str
    help: str
    least: float = 0.0
    most: float = 1.0
    step: float = 0.01
    choices: tuple[str, ...] = ()
    needs: str = ""
    """A setting's values under which this one has an effect, as name=value|value."""
    at_a_step: bool = True
    """It can change in the course of sampling."""


STEPS = Control(
    "num_steps",
    "Steps",
    "In how many steps noise becomes text. More steps are slower and follow the model more exactly.",
    *(2, 400, 1),
    at_a_step=False,
)
NUCLEUS = Control(
    "nucleus",
    "Nucleus",
    "Only the most likely words are considered, up to this share of the probability. 1 considers all.",
    *(0.05, 1.0, 0.05),
)
TEMPERATURE = Control(
    "temperature",
    "Temperature",
    "How boldly words are drawn. At 0 the most likely word is always taken; at 1 as the model has learnt.",
    *(0.0, 2.0, 0.05),
)
DIFFUSION = (
    Control(
        "score_temperature",
        "Score temperature",
        "How boldly the text is chosen. Below 1 it is safer and more ordinary, above 1 more surprising.",
        *(0.3, 1.5, 0.05),
    ),
    STEPS,
    Control(
        "guidance_scale",
        "Guidance",
        "How strongly the given words pull on the others. 1 is off; at 2 to 4 the text clings to them.",
        *(1.0, 6.0, 0.25),
    ),
    NUCLEUS,
    Control(
        "solver",
        "Solver",
        "The rule of a step. Euler is the simplest; Heun looks twice; DPM++ needs few steps; "
        "ancestral and bridge put noise back as they go.",
        choices=("euler", "heun", "dpm++", "ancestral", "bridge"),
    ),
    Control(
        "eta",
        "Noise put back (η)",
        "How much noise each step puts back. 0 puts back none, 1 as much as the reversed process.",
        *(0.0, 3.0, 0.1),
        needs="solver=ancestral|bridge",
    ),
)
MASKED = (
    STEPS,
    TEMPERATURE,
    NUCLEUS,
    Control(
        "order",
        "Order",
        "Which words come first: at random, or those that the model is surest of.",
        choices=("random", "confidence"),
    ),
)
AUTOREGRESSIVE = (
    TEMPERATURE,
    NUCLEUS,
    Control(
        "top_k",
        "Top k",
        "Only so many of the likeliest words are considered. 0 considers all.",
        *(0, 100, 1),
    ),
)
BY_MODEL = {"diffusion": DIFFUSION, "masked": MASKED, "autoregressive": AUTOREGRESSIVE}
OF_MASK_PREDICT = (
    Control("num_rounds", "Rounds", "The largest number of network calls.", *(1, 100, 1)),
    TEMPERATURE,
)


def controls_of(run: RunConfig, defaults: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the controls of a run's model, with the values that hold at first."""
    controls = OF_MASK_PREDICT if "num_rounds" in defaults else BY_MODEL[run.model]
    can_guide = run.objective.conditioning_dropout > 0
    return [
        asdict(control) | {"value": defaults[control.name]}
        for control in controls
        if control.name in defaults and (control.name != "guidance_scale" or can_guide)
    ]
