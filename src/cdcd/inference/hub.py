"""Models on the Hugging Face hub: downloaded into its local cache, uploaded with their cards.

Only config.json, model.safetensors and the tokenizer's file are ever downloaded, after their sizes: those
of the weights must be what the configuration says. Without a network a model in the cache is used.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cdcd.data.tokenizers import LOADERS
from cdcd.files import JSON_LIMIT, VOCABULARY_LIMIT, warn
from cdcd.training.build import meta_weights
from cdcd.training.packed_model import PACKED, PackedModel, model_tensors, pack

T = TypeVar("T")
REPOSITORY = re.compile(r"([\w-][\w.-]*/[\w-][\w.-]*)(?:@([\w./-]+))?")
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def download(name: str) -> Path:
    """Returns the local folder of the model owner/name, or owner/name@revision."""
    repository, revision = parsed(name)
    hub = _library()
    try:
        info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    except Exception as error:
        if _is_refusal(error):
            raise ValueError(f"could not read hf:{name}: {_first_line(error)}") from None
        return _cached(hub, repository, revision, error)
    sizes = {str(file.rfilename): file.size or 0 for file in info.siblings or ()}
    _check_files(name, sizes)
    # By its name, not by its commit: without a network the cache is asked for the name again.
    fetch = _fetcher(hub, repository, revision)
    folder = fetch("config.json").parent
    vocabulary = next(file for file in sizes if _is_vocabulary(file))
    _check_size(name, vocabulary, sizes[vocabulary], VOCABULARY_LIMIT)
    _check_size(name, PACKED, sizes[PACKED], _weights_limit(PackedModel(folder)))
    fetch(vocabulary)
    fetch(PACKED)
    return folder


def upload(folder: Path, name: str) -> str:
    """Uploads a packed model with its card, and returns the address of the repository."""
    repository, revision = parsed(name)
    api = _library().HfApi()
    allowed = ["README.md", "config.json", PACKED, "tokenizer/*"]
    try:
        address = api.create_repo(repository, exist_ok=True)
        api.upload_folder(
            repo_id=repository,
            folder_path=folder,
            allow_patterns=allowed,
            revision=revision,
            commit_message=f"Upload {folder.name}",
        )
    except Exception as error:
        raise ValueError(f"could not push to hf:{name}: {_first_line(error)}") from None
    return str(address)


# Parts


def parsed(name: str) -> tuple[str, str | None]:
    """Returns the repository and the revision of owner/name@revision."""
    match = REPOSITORY.fullmatch(name)
    if match is None:
        raise ValueError(f"hf:{name} is not of the form hf:OWNER/NAME or hf:OWNER/NAME@REVISION")
    return match[1], match[2]


def _library() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            "models of the hub need the package huggingface_hub: pip install 'cdcd[hub]'"
        ) from None
    return huggingface_hub


def _fetcher(hub: Any, repository: str, revision: str | None) -> Callable[[str], Path]:
    def fetch(file: str) -> Path:
        try:
            return Path(hub.hf_hub_download(repository, file, revision=revision))
        except Exception as error:
            raise ValueError(
                f"could not download {file} of hf:{repository}: {_first_line(error)}"
            ) from None

    return fetch


def _cached(hub: Any, repository: str, revision: str | None, error: Exception) -> Path:
    """Returns the folder of a model in the cache, where the hub cannot be reached."""
    try:
        folder = Path(hub.snapshot_download(repository, revision=revision, local_files_only=True))
        if (folder / PACKED).exists():
            warn(f"the hub cannot be reached: hf:{repository} is taken from the cache")
            return folder
    except Exception:
        pass
    raise ValueError(
        f"the hub cannot be reached and hf:{repository} is not in the local cache "
        f"({_first_line(error)}); check the network"
    ) from None


def _is_refusal(error: Exception) -> bool:
    """Returns whether the hub has answered, unlike where it cannot be reached."""
    response = getattr(error, "response", None)
    return response is not None and response.status_code < 500


def _check_files(name: str, sizes: dict[str, int]) -> None:
    """Refuses a repository that holds no model of cdcd."""
    pickles = sorted(file for file in sizes if file.endswith(PICKLES))
    if not any(file.endswith(".safetensors") for file in sizes) and pickles:
        raise ValueError(
            f"hf:{name} holds its weights in pickles only ({pickles[0]}), which can run code when they "
            f"are read: cdcd reads safetensors alone"
        )
    for file in ("config.json", PACKED):
        if file not in sizes:
            raise ValueError(f"hf:{name} has no {file}: it is no model of cdcd")
    if not any(map(_is_vocabulary, sizes)):
        raise ValueError(f"hf:{name} has no tokenizer: it is no model of cdcd")
    _check_size(name, "config.json", sizes["config.json"], JSON_LIMIT)


def _check_size(name: str, file: str, size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(
            f"hf:{name} has a {file} of {size:,} bytes, at most {limit:,} fit: it is not downloaded"
        )


def _weights_limit(model: PackedModel) -> int:
    """Returns the bytes that the weights of a configuration take, with their header."""
    expected = model_tensors(meta_weights(model.config, model.vocab_size))
    packed = pack(expected, model.described()["weights"])
    return JSON_LIMIT + sum(tensor.nbytes for tensor in packed.values())


def _is_vocabulary(file: str) -> bool:
    return file.removeprefix("tokenizer/") in LOADERS and file.startswith("tokenizer/")


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]:.200}" if lines else type(error).__name__
