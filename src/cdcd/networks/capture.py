"""Evaluations of the network recorded once and replayed at every step of the sampler.

An evaluation is hundreds of small kernels, and at small batches launching them takes longer than
running them. A CUDA graph launches all of them at once, but only ever on the same memory: so inputs
are copied to fixed buffers, and results are copied from them. Logits alone are not: with a large
vocabulary they are larger than everything else together. They last until the next evaluation.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from cdcd.diffusion.estimator import Estimate, Estimator

T = TypeVar("T")

MODES = ("auto", "on", "graphs", "off")
"""`graphs`: compiled and captured; `on`: compiled only; `auto`: captured only, on a GPU, else off."""
Work = Callable[[], Estimate]
Record = Callable[[Work], Work]
"""Turns work on tensors in fixed buffers into a faster way to do it again."""

WARMUP = 2
"""Evaluations before a capture, in which libraries set up what they must not set up in it."""
KEPT = 2
"""Recordings kept: those of whole batches and of the last, smaller one."""


def record_graph(work: Work) -> Work:
    """Does the work a few times, then captures it as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARMUP):
            work()
    torch.cuda.current_stream().wait_stream(side)
    return capture(work)


def capture(work: Callable[[], T]) -> Callable[[], T]:
    """Captures work that has been done before, without doing it; replays overwrite its results."""
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work()

    def replay() -> T:
        graph.replay()
        return result

    return replay


def record_nothing(work: Work) -> Work:
    """Does the work again each time."""
    return work


def evaluate(estimator: Estimator, x: Tensor, t: Tensor, state: Tensor | None) -> Estimate:
    """Returns one estimate: the function that is compiled."""
    return estimator(x, t, state)


def tensors_of(value: Any) -> list[Tensor]:
    """Lists the tensors in lists, tuples and dataclasses, such as an estimator, in order."""
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if not isinstance(value, list | tuple):
        return []
    return [tensor for part in value for tensor in tensors_of(part)]


def settings_of(value: Any) -> Hashable:
    """Returns everything but the contents of its tensors: what a recording is made of."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    if not is_dataclass(value):
        return value
    return type(value), *(settings_of(getattr(value, field.name)) for field in fields(value))


def with_tensors(value: Any, tensors: Iterator[Tensor]) -> Any:
    """Returns an estimator with other tensors, in the order of `tensors_of`."""
    if isinstance(value, Tensor):
        return next(tensors)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changed = {f.name: with_tensors(getattr(value, f.name), tensors) for f in fields(value)}
    return replace(value, **changed)


class Captured:
    """An estimator that is recorded at its first call and replayed from then on.

    The shapes stay those of the first call; the conditioning can be changed. The state may be None
    at any call, which is the same as zeros.
    """

    def __init__(
        self,
        estimator: Estimator,
        *,
        record: Record,
        evaluate: Callable[..., Estimate] = evaluate,
    ) -> None:
        self.record, self.evaluate = record, evaluate
        self.conditioning = [_buffer(tensor) for tensor in tensors_of(estimator)]
        self.estimator: Estimator = with_tensors(estimator, iter(self.conditioning))
        self.inputs: list[Tensor] = []
        self.replay: Work | None = None

    def condition(self, conditioning: Sequence[Tensor]) -> None:
        """Changes the conditioning: the tensors of another estimator of these shapes."""
        for buffer, tensor in zip(self.conditioning, conditioning, strict=True):
            buffer.copy_(tensor)

    def __call__(
        self, x: Float[Tensor, "batch seq embed"], t: Float[Tensor, " batch"], state: Any
    ) -> Estimate:
        if self.replay is None:
            self.replay = self._start(x, t)
        for buffer, value in zip(self.inputs, (x, t, state), strict=False):
            buffer.zero_() if value is None else buffer.copy_(value)
        estimate = self.replay()
        state = None if estimate.state is None else estimate.state.clone()
        return Estimate(estimate.logits, estimate.x0_hat.clone(), state)

    def _start(self, x: Tensor, t: Tensor) -> Work:
        """Makes the buffers of x, t and, if the estimator has one, the state; records the work on them."""
        x, t = _buffer(x), _buffer(t)
        # A first evaluation shows whether there is a state, and its shape.
        first = self.estimator(x, t, None).state
        state = None if first is None else torch.zeros_like(first)
        self.inputs = [x, t] if state is None else [x, t, state]
        return self.record(lambda: self.evaluate(self.estimator, x, t, state))


def _buffer(tensor: Tensor) -> Tensor:
    """Returns a copy of which no two elements share their memory."""
    return tensor.clone(memory_format=torch.contiguous_format)


class Recorder:
    """The last recordings, by their settings and shapes."""

    def __init__(self, record: Record, evaluate: Callable[..., Estimate] = evaluate) -> None:
        self.record, self.evaluate = record, evaluate
        self.kept: OrderedDict[Hashable, Captured] = OrderedDict()

    def __call__(self, estimator: Estimator) -> Estimator:
        """Returns a recording with the estimator's conditioning; the last of its kind is no longer valid."""
        key = settings_of(estimator)
        if key in self.kept:
            self.kept[key].condition(tensors_of(estimator))
            self.kept.move_to_end(key)
            return self.kept[key]
        # The oldest is freed before the new one takes its memory.
        while len(self.kept) >= KEPT:
            self.kept.popitem(last=False)
        self.kept[key] = Captured(estimator, record=self.record, evaluate=self.evaluate)
        return self.kept[key]


def make_recorder(mode: str, device: torch.device) -> Recorder | None:
    """Returns the recorder of a mode; None where nothing is recorded."""
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
