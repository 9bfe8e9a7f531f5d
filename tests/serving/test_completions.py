"""Completions in the form of OpenAI's interface."""

import json

import pytest


def completed(client, **body):
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_a_prompt_is_continued_as_by_the_library(client, model):
    body = {"model": "stories", "prompt": "Mia was", "n": 2, "seed": 4, "temperature": 0.7}
    answer = completed(client, **body)
    texts = model.complete("Mia was", num_samples=2, seed=4, score_temperature=0.7)
    assert ["Mia was" + choice["text"] for choice in answer["choices"]] == texts
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert (answer["object"], answer["model"]) == ("text_completion", "stories")
    assert answer["usage"]["prompt_tokens"] == 2
    echoed = completed(client, **body, echo=True)
    assert [choice["text"] for choice in echoed["choices"]] == texts


def test_a_suffix_is_a_gap(client, model):
    answer = completed(client, prompt="Mia was", suffix="home.", max_tokens=3, seed=1)
    [choice] = answer["choices"]
    assert f"Mia was{choice['text']} home." == model.infill("Mia was [3] home.", seed=1)
    assert choice["finish_reason"] == "stop"
    # What looks like a gap in a prompt is text, which this model does not know.
    refused = client.post("/v1/completions", json={"prompt": "Mia [2]", "suffix": "home."})
    assert "'[' is not in the model's vocabulary" in refused.json()["error"]["message"]


def test_several_prompts(client, model):
    answer = completed(client, prompt=["Mia", "Tom was"], n=2)
    canvases = [model.prompt_canvas(prompt) for prompt in ("Mia", "Tom was")]
    texts = [each.text for each in model.generate(canvases, num_samples=2)]
    starts = ["Mia", "Mia", "Tom was", "Tom was"]
    made = [start + choice["text"] for start, choice in zip(starts, answer["choices"], strict=True)]
    assert made == texts


def test_the_length_and_the_end(client, model):
    texts = (
        (seed, completed(client, prompt="Mia", seed=seed)["choices"][0]["text"])
        for seed in range(99)
    )
    seed, whole = next((seed, text) for seed, text in texts if len(text.split()) > 4)
    [choice] = completed(client, prompt="Mia", seed=seed, max_tokens=3)["choices"]
    assert len(model.tokenizer.encode(choice["text"])) == 3
    assert whole.startswith(choice["text"])
    assert choice["finish_reason"] == "length"
    word = whole.split()[2]
    [choice] = completed(client, prompt="Mia", seed=seed, stop=["", word])["choices"]
    assert choice["text"] == whole[: whole.index(word)]
    assert choice["finish_reason"] == "stop"


@pytest.mark.parametrize("name", ["baseline", "masked"])
def test_other_models(client, models, name):
    model = models.by_name[name].model
    body = {"model": name, "prompt": "Mia", "temperature": 0.8, "top_p": 0.9, "seed": 3}
    [choice] = completed(client, **body)["choices"]
    assert "Mia" + choice["text"] == model.complete("Mia", temperature=0.8, nucleus=0.9, seed=3)[0]


def test_a_stream_has_the_whole_answer(client):
    body = {"prompt": "Mia", "seed": 2}
    answer = client.post("/v1/completions", json={**body, "stream": True})
    parts = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert json.loads(parts[0])["choices"] == completed(client, **body)["choices"]
    assert parts[1:] == ["[DONE]"]


def test_what_is_besides_is_ignored(client):
    body = {"prompt": "Mia", "logit_bias": {}, "user": "x", "presence_penalty": 0}
    assert completed(client, **body)["choices"]
