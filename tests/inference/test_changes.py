"""A sample that goes on from a step: unchanged it ends in the same text, changed only from there on."""

import json

import pytest
import torch
from tiny import cdcd_main

from cdcd.data.vocabulary import UNKNOWN
from cdcd.inference.changes import Change, as_json, read_change

STEPS = 9
WAYS = {
    "euler": {},
    "heun": {"solver": "heun"},
    "dpm++": {"solver": "dpm++"},
    "ancestral": {"solver": "ancestral", "eta": 0.7},
    "bridge": {"solver": "bridge"},
    "guided": {"guidance_scale": 2.0},
    "tempered": {"score_temperature": 0.6, "nucleus": 0.9},
}


def go(model, text="Mia [6] home. [*]", **options):
    """A sample, and the prediction and x of every step."""
    seen = []
    asked = {"num_steps": STEPS, "seed": 3, **options}
    [generated] = model.generate(model.infill_canvas(text), callback=seen.append, **asked)
    return generated, seen


def states(seen):
    return torch.stack([torch.cat([info.x0_hat, info.step.x], dim=-1) for info in seen])


@pytest.mark.parametrize("settings", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("step", [0, 1, 5, STEPS - 1])
def test_going_on_without_a_change_gives_the_identical_text(model, settings, step):
    plain, seen = go(model, **settings)
    again, seen_again = go(model, changes=[Change(step=step)], **settings)
    assert again == plain
    assert [info.index for info in seen_again] == list(range(STEPS))
    assert torch.equal(states(seen_again), states(seen))


def test_a_change_of_settings_changes_what_follows_alone(model):
    _, seen = go(model)
    _, changed = go(model, changes=[Change(step=4, settings={"score_temperature": 0.3})])
    _, whole = go(model, score_temperature=0.3)
    assert torch.equal(states(changed)[:4], states(seen)[:4])
    assert not torch.equal(states(changed)[4], states(seen)[4])
    assert not torch.equal(states(changed)[4], states(whole)[4])
    _, solver = go(model, changes=[Change(step=4, settings={"solver": "dpm++"})])
    assert not torch.equal(states(solver)[4], states(seen)[4])


def test_settings_of_all_steps_or_of_none(model):
    """A change at the first step is no change, but a setting."""
    for settings in ({"score_temperature": 0.5}, {"solver": "heun"}, {"guidance_scale": 3.0}):
        whole, _ = go(model, **settings)
        assert go(model, changes=[Change(step=0, settings=settings)])[0] == whole


def test_words_that_become_given_or_free(model):
    before = model.infill_canvas("Mia [6] home. [*]")
    [token] = model.tokenizer.encode("Tom")
    generated, _ = go(model, changes=[Change(step=3, tokens={2: "Tom", 0: None})])
    assert generated.tokens[2] == token
    assert generated.is_given[:3] == (False, False, True)
    by_number, _ = go(model, changes=[Change(step=3, tokens={2: token, 0: None})])
    assert by_number == generated
    assert before.tokens[0] is not None
    # Given from the start, it is as if the canvas had had it.
    from_start, _ = go(model, changes=[Change(step=0, tokens={1: "Tom"})])
    assert from_start == go(model, "Mia Tom [5] home. [*]")[0]


def test_a_text_of_several_words_takes_several_positions(model):
    generated, _ = go(model, changes=[Change(step=3, tokens={1: "was at the"})])
    assert list(generated.tokens[1:4]) == model.tokenizer.encode("was at the")


def test_another_seed_is_new_noise_around_the_last_prediction(model):
    _, seen = go(model)
    changed, after = go(model, changes=[Change(step=4, seed=8)])
    noise = model.sampler.draw([(8, 0)]).noise
    times = [info.t for info in seen]
    x = seen[3].x0_hat + times[4] * noise
    slope = (x - after[4].x0_hat) / times[4]
    torch.testing.assert_close(after[4].step.x, x + (times[5] - times[4]) * slope)
    assert torch.equal(states(after)[:4], states(seen)[:4])
    assert changed.seed == (3, 0)


def test_another_seed_at_the_first_step_is_another_sample(model):
    changed, _ = go(model, changes=[Change(step=0, seed=8)])
    other, _ = go(model, seed=8)
    assert (changed.text, changed.tokens) == (other.text, other.tokens)


def test_of_several_samples_each_has_its_own_noise(model, blank):
    asked = {"num_samples": 3, "num_steps": STEPS, "changes": [Change(step=4, seed=8)]}
    together = model.generate(blank, **asked)
    assert together == model.generate(blank, batch_size=1, **asked)
    assert len({each.tokens for each in together}) == 3


def test_changes_follow_one_another(model):
    changes = [
        Change(step=2, settings={"score_temperature": 0.5}),
        Change(step=5, tokens={2: "Tom"}),
    ]
    _, first = go(model, changes=changes[:1])
    both, seen = go(model, changes=changes)
    assert torch.equal(states(seen)[:5], states(first)[:5])
    assert "Tom" in both.text
    # The second keeps the temperature of the first.
    kept = [changes[0], Change(step=5, tokens={2: "Tom"}, settings={"score_temperature": 0.5})]
    again, seen_again = go(model, changes=kept)
    assert again == both
    assert torch.equal(states(seen_again), states(seen))


def test_guidance_that_begins_at_a_step_starts_without_fed_back_predictions(model):
    for settings, more in (
        ({}, {"guidance_scale": 2.0}),
        ({"guidance_scale": 2.0}, {"guidance_scale": 1.0}),
    ):
        generated, seen = go(model, changes=[Change(step=4, settings=more)], **settings)
        assert len(seen) == STEPS
        assert generated.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([Change(step=STEPS)], "the step of a change is 9, it must be from 0 to 8"),
        (
            [Change(step=4), Change(step=3)],
            "is 3, it must be from 4 to 8: .* not before an earlier",
        ),
        ([Change(step=1, settings={"num_steps": 5})], "num_steps belongs to all steps"),
        ([Change(step=1, settings={"score_temperature": 0})], "score_temperature is 0"),
        ([Change(step=1, settings={"scoretemp": 1})], "unknown setting scoretemp"),
        ([Change(step=1, tokens={24: None})], "position 24 is outside of the 24"),
        ([Change(step=1, tokens={0: 10**6})], "token 1000000 is outside"),
        ([Change(step=1, tokens={0: "Mai"})], "'Mai' is not in the model's vocabulary"),
        ([Change(step=1, tokens={0: ""})], "the text at position 0 has no tokens"),
    ],
)
def test_mistakes_are_explained(model, changes, message):
    with pytest.raises(ValueError, match=message):
        go(model, changes=changes)


def test_mask_predict_decoding_has_no_noise_to_go_on_from(model, blank):
    with pytest.raises(ValueError, match="for diffusion models with decoder ode"):
        model.generate(blank, decoder="mask-predict", changes=[Change(step=1)])


def test_changes_are_read_from_json_and_written():
    change = Change(step=4, tokens={2: "Tom", 3: None, 4: UNKNOWN}, seed=5, settings={"eta": 0.5})
    assert read_change(json.loads(json.dumps(as_json(change)))) == change
    assert as_json(Change(step=4)) == {"step": 4}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3, "a change is 3"),
        ({"seed": 3}, "a change is"),
        ({"step": -1}, "step of a change is -1, it must be at least 0"),
        ({"step": 1.5}, "step of a change: 1.5 is not a whole number"),
        ({"step": 1, "tokens": [1]}, "are objects"),
        ({"step": 1, "tokens": {"x": 1}}, "position of a change"),
        ({"step": 1, "tokens": {"1": 1.5}}, "a token of a change is 1.5"),
        ({"step": 1, "words": {}}, "unknown part of a change words"),
    ],
)
def test_odd_json_is_refused(values, message):
    with pytest.raises(ValueError, match=message):
        read_change(values)


def test_the_commands_take_changes(run, model, capsys):
    change = {"step": 2, "tokens": {"2": "Tom"}, "seed": 4}
    assert cdcd_main("infill", run, "Mia [6] home.", "--change", json.dumps(change)) == 0
    expected = model.infill("Mia [6] home.", changes=[read_change(change)])
    assert capsys.readouterr().out == f"{expected}\n"
    assert cdcd_main("sample", run, "--prompt", "Mia", "--change", '{"step": 9}') == 2
    assert "the step of a change is 9" in capsys.readouterr().err
    assert cdcd_main("sample", run, "--change", "{") == 2
    assert "--change" in capsys.readouterr().err


def test_a_gap_of_any_length_ends_the_text(model):
    assert model.infill_canvas("Mia was [*]") == model.prompt_canvas("Mia was")
    assert model.infill_canvas("[*]") == model.prompt_canvas("")
    tokens = model.infill_canvas("One [2] day [*]").tokens
    assert tokens == (
        *model.tokenizer.encode("One"),
        None,
        None,
        *model.tokenizer.encode("day"),
        *[None] * 20,
    )
    with pytest.raises(ValueError, match="can only be at the end"):
        model.infill_canvas("One [*] day")
    with pytest.raises(ValueError, match="has 24 tokens, the model's sequences 24"):
        model.infill_canvas("[24][*]")
    with pytest.raises(ValueError, match="is not in the model's vocabulary"):
        model.infill_canvas(r"One \[*] day [2]")
