"""Writes a corpus of stories whose probability is known, drawn from a published model.

    python scripts/stories_corpus.py DATA OUT --tokens 100M --seed 0

DATA holds the weights and tokenizer.bin of the model (stories15m). OUT gets stories.jsonl, a story a
line with ln p of its tokens by the model that drew it, and stories.json: the rule by which stories
are kept, how many draws were not, the entropy of those that are, with intervals, and how far the law
that drew them is from the model in float32. `cdcd data prepare` reads it: --source OUT/stories.jsonl.

On a GPU each step is a CUDA graph, matrices are in bfloat16 and logits in float32. A CPU draws some
thousand tokens a minute.
"""

import argparse
import json
import lzma
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import torch

from cdcd.evaluation.report import as_json
from cdcd.files import file_hash
from cdcd.languages import story_sampling as sampling
from cdcd.languages.story_model import CONTEXT, StoryModel, load_stories, story_files
from cdcd.languages.story_tokenizer import StoryTokenizer
from cdcd.networks.capture import record_graph
from cdcd.networks.precision import choose_device, choose_dtype

HOPELESS = 10
"""Batches without a kept story after which no more are drawn."""
SUFFIXES = {"k": 10**3, "M": 10**6, "G": 10**9}
RULE = (
    f"Every token is drawn from the model's own distribution, at temperature 1, by inversion of the "
    f"distribution function. A draw is kept if it ends, by the token that begins the next story, "
    f"within {CONTEXT} tokens, if it is not white space alone, and if its tokens are the canonical ones of its text."
)


@dataclass
class Kept:
    """Numbers of the stories that have been kept."""

    log_probs: list[float] = field(default_factory=list)
    num_tokens: list[int] = field(default_factory=list)
    num_bytes: list[int] = field(default_factory=list)
    to_score: list[list[int]] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)


def number(text: str) -> int:
    """Reads a number such as 100M."""
    factor = SUFFIXES.get(text[-1:], 1)
    value = int(float(text[:-1] if factor > 1 else text) * factor)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    device = choose_device(options.device)
    dtype = choose_dtype(options.dtype, device)
    model, tokenizer = load_stories(options.data, device=device, dtype=dtype)
    options.batch_size = options.batch_size or (4096 if device.type == "cuda" else 64)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / ("stories.jsonl.xz" if options.xz else "stories.jsonl")
    start = time.perf_counter()
    kept = write_stories(model, tokenizer, path, options)
    seconds = time.perf_counter() - start
    if len(kept.log_probs) < 2:
        raise SystemExit("fewer than two stories were kept: raise --tokens")
    float32, _ = load_stories(options.data, device=device)
    described = describe(kept, float32, options.score_batch)
    settings = {k: v.name if isinstance(v, Path) else v for k, v in vars(options).items()}
    weights, vocabulary = story_files(options.data)
    record = {
        "rule": RULE,
        **described,
        "settings": settings | {"device": str(device), "dtype": str(dtype)},
        "sha256": {each.name: file_hash(each) for each in (weights, vocabulary, path)},
        "seconds": seconds,
        "tokens_per_second": described["num_tokens"] / seconds,
    }
    (options.out / "stories.json").write_text(as_json(record), encoding="utf-8")
    print(json.dumps(described, indent=1))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokens", type=number, default="100M", help="tokens of the kept stories")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--batch-size",
        type=number,
        help="draws at a time, a multiple of 64; default: 4096 on a GPU, else 64",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument(
        "--score", type=number, default="50k", help="kept stories scored in float32"
    )
    parser.add_argument("--score-batch", type=number, default=64, help="stories scored at a time")
    parser.add_argument("--xz", action="store_true", help="compress the corpus")
    return parser.parse_args(arguments)


def write_stories(
    model: StoryModel, tokenizer: StoryTokenizer, path: Path, options: argparse.Namespace
) -> Kept:
    """Writes kept stories until they have enough tokens; whole batches, so that no length is preferred."""
    kept, num_tokens = Kept(), 0
    with lzma.open(path, "wt", preset=1) if options.xz else path.open("w") as file:
        for draws in batches(model, options):
            for story in sampling.read_draws(draws, tokenizer):
                kept.outcomes[story.outcome] += 1
                if story.outcome != sampling.KEPT:
                    continue
                num_tokens += len(story.tokens)
                kept.log_probs.append(story.log_prob)
                kept.num_tokens.append(len(story.tokens))
                # Its end is a byte, as in an evaluation.
                kept.num_bytes.append(len(story.text.encode()) + 1)
                if len(kept.to_score) < options.score:
                    kept.to_score.append(story.tokens)
                line = {"text": story.text, "log_prob": round(story.log_prob, 4)}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
            if not kept.log_probs and kept.outcomes.total() >= HOPELESS * len(draws.tokens):
                raise SystemExit(
                    f"no story was kept of the first {kept.outcomes.total()} draws: "
                    f"{dict(kept.outcomes)}"
                )
            print(f"{num_tokens:,} tokens of {kept.outcomes.total():,} draws", flush=True)
            if num_tokens >= options.tokens:
                return kept
    raise AssertionError("the batches are endless")


def batches(model: StoryModel, options: argparse.Namespace) -> Iterator[sampling.Draws]:
    """Yields batches; a GPU draws the next one while the last is read."""
    record = record_graph if model.device.type == "cuda" else sampling.plain
    size = options.batch_size
    sampler = sampling.StorySampler(model, size, record=record)
    waiting = None
    for batch in count():
        drawn = sampler.draw(sampling.uniform_numbers(options.seed, batch * size, size))
        if waiting is not None:
            yield sampling.Draws(waiting.tokens.cpu(), waiting.log_probs.cpu())
        waiting = drawn


def describe(kept: Kept, float32: StoryModel, score_batch: int) -> dict[str, Any]:
    """Returns the numbers of a corpus, its entropy from the stories that are scored."""
    scores = sampling.score_stories(float32, kept.to_score, score_batch)
    first = slice(len(scores))
    entropy = sampling.story_entropy(
        kept.outcomes.total(),
        kept.outcomes[sampling.KEPT],
        torch.tensor(kept.log_probs[first], dtype=torch.float64),
        scores,
        torch.tensor(kept.num_tokens[first]),
        torch.tensor(kept.num_bytes[first]),
    )
    return {
        "num_stories": len(kept.log_probs),
        "num_tokens": sum(kept.num_tokens),
        "num_bytes": sum(kept.num_bytes),
        "num_scored": len(scores),
        "outcomes": dict(kept.outcomes),
        "entropy": asdict(entropy),
    }


if __name__ == "__main__":
    main()
