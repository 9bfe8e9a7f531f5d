"""Evaluations of the network recorded once and replayed at every step of the sampler.

An evaluation is hundreds of small kernels, and at small batches launching them takes longer than
running them. A CUDA graph launches all of them at once, but only ever on the same memory: so inputs
are copied to fixed places, and what a caller keeps is copied from them.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from cdcd.diffusion.estimator import Estimate, Estimator

T = TypeVar("T")

MODES = ("auto", "on", "graphs", "off")
"""`graphs`: compiled and captured; `on`: compiled only; `auto`: captured only, on a GPU, else off."""
Bind = Callable[..., Estimator]
"""Makes an estimator from the tensors of its conditioning, by operations on tensors alone."""
Work = Callable[[], Estimate]
Record = Callable[[Work], Work]
"""Turns work on tensors at fixed places into a faster way to do it again."""

WARMUP = 2
"""Evaluations before a capture, in which libraries set up what they must not set up in it."""
KEPT = 2
"""Recordings kept: those of whole batches and of the last, smaller one."""


def record_graph(work: Work) -> Work:
    """Do the work a few times, then capture it as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    return capture(work)


def capture(work: Callable[[], T]) -> Callable[[], T]:
    """Capture work that has been done before, without doing it; replays overwrite its results."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        found = work()

    def replay() -> T:
        graph.replay()
        return found

    return replay


def record_nothing(work: Work) -> Work:
    """Do the work again each time."""
    return work


def evaluate(
    bind: Bind, conditioning: Sequence[Tensor], x: Tensor, t: Tensor, state: Tensor | None
) -> Estimate:
    """One evaluation from its tensors alone: what is compiled."""
    return bind(*conditioning)(x, t, state)


class Captured:
    """An estimator that is recorded at its first call and replayed from then on.

    The shapes stay those of the first call; the conditioning can be changed. The state may be None
    at any call, which is the same as zeros.
    """

    def __init__(
        self,
        bind: Bind,
        conditioning: Sequence[Tensor],
        *,
        record: Record,
        evaluate: Callable[..., Estimate] = evaluate,
    ) -> None:
        self.bind, self.record, self.evaluate = bind, record, evaluate
        self.conditioning = [_place_of(tensor) for tensor in conditioning]
        self.x = self.t = self.state = None
        self.replay: Work | None = None

    def condition(self, conditioning: Sequence[Tensor]) -> None:
        """Exchange what is given."""
        for place, tensor in zip(self.conditioning, conditioning, strict=True):
            place.copy_(tensor)

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any
    ) -> Estimate:
        if self.replay is None:
            self.replay = self._start(x, t)
        assert self.x is not None
        assert self.t is not None
        self.x.copy_(x)
        self.t.copy_(t)
        if self.state is not None:
            self.state.zero_() if state is None else self.state.copy_(state)
        found = self.replay()
        return Estimate(found.logits, found.x0_hat.clone(), _copied(found.state))

    def _start(self, x: Tensor, t: Tensor) -> Work:
        """Make the places of the inputs, and record what is done with them."""
        self.x, self.t = _place_of(x), _place_of(t)
        # A first evaluation tells whether there is a state, and of which shape.
        first = evaluate(self.bind, self.conditioning, self.x, self.t, None).state
        self.state = None if first is None else torch.zeros_like(first)
        return self.record(
            lambda: self.evaluate(self.bind, self.conditioning, self.x, self.t, self.state)
        )


def _place_of(tensor: Tensor) -> Tensor:
    """Room for tensors of this shape, of which no two elements share their memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


def _copied(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.clone()


class Recorder:
    """The last recordings, by what they are of."""

    def __init__(self, record: Record, evaluate: Callable[..., Estimate] = evaluate) -> None:
        self.record, self.evaluate = record, evaluate
        self.kept: OrderedDict[Hashable, Captured] = OrderedDict()

    def __call__(self, settings: Hashable, bind: Bind, conditioning: Sequence[Tensor]) -> Estimator:
        """The estimator that `bind` makes; equal settings and shapes mean equal recordings."""
        key = (settings, *(tensor.shape for tensor in conditioning))
        if key in self.kept:
            self.kept[key].condition(conditioning)
            self.kept.move_to_end(key)
            return self.kept[key]
        # The oldest is freed before the new one takes its memory.
        while len(self.kept) >= KEPT:
            self.kept.popitem(last=False)
        made = Captured(bind, conditioning, record=self.record, evaluate=self.evaluate)
        self.kept[key] = made
        return made

    def forget(self) -> None:
        """Free what is kept."""
        self.kept.clear()


def make_recorder(mode: str, device: torch.device) -> Recorder | None:
    """The recorder of a mode; None where nothing is recorded."""
    if mode not in MODES:
        raise ValueError(f"compile is {mode!r}, it must be one of {', '.join(MODES)}")
    is_cuda = device.type == "cuda"
    if mode == "graphs" and not is_cuda:
        raise ValueError(
            f"compile graphs captures CUDA graphs, but the model is on the {device.type}: "
            f"choose on or off"
        )
    if mode == "off" or (mode == "auto" and not is_cuda):
        return None
    compiled = evaluate if mode == "auto" else torch.compile(evaluate, dynamic=False)
    return Recorder(record_nothing if mode == "on" else record_graph, compiled)
