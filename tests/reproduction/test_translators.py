"""Table 4: its rows at every scale, their corpora, the numbers of known translations, and a small run."""

import json
import lzma
from dataclasses import replace

import pytest
from rich.console import Console
from sacrebleu import corpus_bleu
from tiny import TINY_TRANSLATION, cdcd_main

from cdcd.config import RunConfig
from cdcd.data.pairs import PreparedPairs
from cdcd.evaluation.held_out_pairs import held_out_pairs
from cdcd.presets import preset
from cdcd.reproduction import pictures, report, work
from cdcd.reproduction.corpora import corpora
from cdcd.reproduction.measuring_translations import measure_translations
from cdcd.reproduction.plan import Plan
from cdcd.reproduction.rows import ROWS, Row, rows_of
from cdcd.reproduction.scales import SCALES
from cdcd.settings import override

QUIET = Console(quiet=True)
PARTS = ("process.", "warp.", "embedding.")
MICRO = replace(
    SCALES["tiny"],
    translators=replace(
        SCALES["tiny"].translators,
        num_sentences=4,
        batch_size=8,
        diffusion=TINY_TRANSLATION,
        autoregressive={n: v for n, v in TINY_TRANSLATION.items() if not n.startswith(PARTS)},
    ),
    seeds=1,
)
ROWS_RUN = ["table4/base-autoregressive/de-en", "table4/base-n=10/de-en"]


# Rows


def test_at_the_papers_scale_the_translators_are_the_papers():
    """The paper names guidance, beam and direction; all else is in the presets."""
    scale = SCALES["paper"]
    for size in ("base", "big"):
        row = ROWS[f"table4/{size}-n=100/de-en"]
        there = {"data.source": "en-de", "data.reverse": True}
        assert scale.config(row, 0) == override(preset(f"wmt-{size}"), there)
        assert row.sampling == {
            "num_samples": "100",
            "score_temperature": "0.8",
            "guidance_scale": "4.0",
        }
        chinese = ROWS[f"table4/{size}-n=1/zh-en"]
        assert scale.config(chinese, 0).data.direction == ("zh", "en")
        assert chinese.sampling["guidance_scale"] == "8.0"
        beam = ROWS[f"table4/{size}-autoregressive/zh-en"].sampling
        assert beam == {"beam_size": "6", "length_penalty": "0.6"}


def test_at_the_small_scale_only_ours_has_masks():
    scale = SCALES["small"]
    paper, ours = (scale.config(ROWS[f"table4/base-{n}/en-de"], 0) for n in ("n=1", "masks-n=1"))
    assert (paper.objective.masking, ours.objective.masking) == ("none", "random")
    assert (paper.warp.uniformity, paper.sampling.warp_uniformity) == (0.0, 0.0)
    assert not paper.seq2seq.relative_positions
    preset_of_ours = override(preset("multi30k"), {"data.source": "en-de"})
    for part in ("data", "seq2seq", "warp", "objective", "embedding", "process"):
        assert getattr(ours, part) == getattr(preset_of_ours, part)


def test_rows_of_one_model_share_its_training(tmp_path):
    rows = [row for row in rows_of(["table4"]) if row.name.endswith("/en-de")]
    plan = Plan(SCALES["tiny"], rows, {"numerals": "numerals"}, tmp_path)
    names = {plan.training(row, 0)[0] for row in rows if plan.scale.has(row)}
    assert names == {f"base-en-de,{n}.0" for n in ("baseline,base", "base", "masking=random")}
    sampled = {row.name for job in plan.jobs() for row, seed in job.rows if seed == 0}
    assert sampled == {row.name for row in rows if "/base-" in row.name}


# Numbers


class Known:
    """A translator whose samples are known: the references, and in between something else."""

    def __init__(self, samples):
        self.config: RunConfig = preset("numerals")
        self.kept = samples

    def fits(self, text):
        return True

    def samples(self, texts, *, num_samples, **_):
        return [each[:num_samples] for each in self.kept]


@pytest.mark.parametrize("num_samples", [1, 3])
def test_known_translations_have_their_known_numbers(num_samples):
    """Of three samples, two of which agree, minimum Bayes risk chooses one of the two."""
    corpus = held_out_pairs(preset("numerals"), num_sentences=20).corpus
    wrong = ["Das ist falsch.", *corpus.references[1:]]
    translator = Known([[w, r, r] for w, r in zip(wrong, corpus.references, strict=True)])
    row = Row("table4/base-n/en-de", {"num_samples": str(num_samples)}, {})
    numbers = measure_translations(row, {"num_sentences": 20}, translator=translator, batch_size=8)
    expected = wrong if num_samples == 1 else list(corpus.references)
    known = corpus_bleu(expected, [list(corpus.references)], tokenize="intl").score
    assert numbers["bleu"] == pytest.approx(known)
    assert numbers["right_share"] == (0.95 if num_samples == 1 else 1.0)
    assert numbers["distinct_share"] == pytest.approx(1 if num_samples == 1 else (2 + 19) / 60)
    assert "tok:intl" in numbers["signatures"]["bleu"]
    first = {"source": corpus.sources[0], "reference": corpus.references[0]}
    assert numbers["examples"][0] == first | {"translation": expected[0]}


# The command


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Two rows, run once."""
    rows = [*(ROWS[name] for name in ROWS_RUN), ROWS["table4/big-n=1/zh-en"]]
    out = tmp_path_factory.mktemp("translators")
    plan = Plan(MICRO, rows, {"numerals": "numerals"}, out)
    plan.check_protocol()
    assert work.perform(plan, workers=1, console=QUIET) == []
    return plan


def test_translators_are_trained_and_measured_without_a_judge(finished):
    values = report.read_values(finished)
    assert set(values) == set(ROWS_RUN)
    for numbers in values.values():
        assert 0 <= numbers[0]["bleu"] <= 100
        assert 0 <= numbers[0]["right_share"] <= 1
    result = finished.result(ROWS[ROWS_RUN[1]], 0)
    assert (result["num_sentences"], len(result["examples"])) == (4, 4)
    assert {path.name for path in (finished.out / "runs").iterdir()} == {
        *("base-de-en,baseline,base.0", "base-de-en,base.0"),
    }
    assert finished.jobs() == []


def test_the_table_names_what_the_scale_lacks(finished):
    written = {path.name: path.read_text() for path in report.write(finished)}
    assert set(written) == {"table4.md", "verdicts.md"}
    lines = {line.split(" | ")[0]: line for line in written["table4.md"].splitlines()}
    ours = report.read_values(finished)
    less = ours[ROWS_RUN[1]][0]["bleu"] - ours[ROWS_RUN[0]][0]["bleu"]
    assert lines["| base-n=10/de-en"].startswith("| base-n=10/de-en | 25.40 | ")
    assert f"| -4.80 | {less:+.2f} |" in lines["| base-n=10/de-en"]
    assert lines["| big-n=1/zh-en"] == "| big-n=1/zh-en | 24.00 | not at this scale | -3.10 |  |"
    table = json.loads((finished.out / "table4.json").read_text())
    assert [row["states"] for row in table["rows"]] == [["done"], ["done"], ["not at this scale"]]
    assert [path.name for path in pictures.draw(finished)] == ["table4.png"]


def test_what_the_paper_lacks_has_a_dash(finished, tmp_path):
    row = ROWS["table4/base-mask-predict-n=1/en-de"]
    plan = replace(finished, rows=[row], out=tmp_path)
    text = report.as_markdown(report.table(plan, "table4", {row.name: {0: {"bleu": 12.345}}}))
    assert text.splitlines()[-1] == "| base-mask-predict-n=1/en-de | - | 12.35 (1) | - |  |"


def test_claims_about_rows_that_a_scale_lacks_decide_nothing():
    values = {
        row.name: {seed: {"bleu": row.paper["bleu"] + seed} for seed in range(3)}
        for row in rows_of(["table4"])
        if SCALES["tiny"].has(row) and row.paper
    }
    verdicts = {each["finding"]: each for each in report.verdicts(values, SCALES["tiny"])}
    assert verdicts["minimum-bayes-risk"]["verdict"] == "reproduced"
    assert verdicts["translation"]["verdict"] == "reproduced"
    assert verdicts["translation-size"]["verdict"] == "not at this scale"
    judged = [claim["verdict"] for claim in verdicts["translation"]["claims"]]
    assert judged.count("holds") == 2
    assert judged.count("not at this scale") == 4


def test_a_training_that_stopped_early_is_finished(finished, tmp_path):
    """The patience of the paper's translators ends a run before its last step."""
    name, config = finished.training(ROWS[ROWS_RUN[1]], 0)
    longer = override(config, {"training.steps": 1000})
    assert finished.is_trained(name, longer)
    record = finished.run(name) / "record.json"
    record.rename(tmp_path / "record.json")
    assert not finished.is_trained(name, longer)
    (tmp_path / "record.json").rename(record)


def test_other_rows_may_need_other_corpora(finished):
    """Their names are added to the protocol; the same name must stay the same corpus."""
    more = replace(finished, corpora={"numerals": "numerals", "text": "tales"})
    more.check_protocol()
    finished.check_protocol()
    noted = json.loads((finished.out / "protocol.json").read_text())
    assert (noted["corpus"], noted["pairs numerals"]) == ("tales", "numerals")
    assert "translators" in noted
    assert "translators" not in MICRO.protocol({"text": "tales"})
    with pytest.raises(ValueError, match="corpus is tales, not markov"):
        replace(finished, corpora={"text": "markov"}).check_protocol()


# Corpora


def write_raw(folder):
    """Writes files of the published names, a few pairs in each."""
    pairs = [(f"house {n}", f"Haus {n}") for n in range(30)]
    captions, table = folder / "multi30k", folder / "tatoeba_en-zh"
    captions.mkdir(parents=True)
    table.mkdir()
    for part in ("train", "val", "test_2016_flickr"):
        for language, side in zip(("en", "de"), zip(*pairs, strict=True), strict=True):
            content = lzma.compress("\n".join(side).encode())
            (captions / f"{part}.{language}.txt.xz").write_bytes(content)
    lines = "".join(f"{english}\t{other}\n" for english, other in pairs)
    for part in ("train", "valid", "test"):
        (table / f"{part}.tsv.xz").write_bytes(lzma.compress(lines.encode()))
    return folder


def test_pairs_are_prepared_once_from_their_files(tmp_path):
    data, out = write_raw(tmp_path / "raw"), tmp_path / "out"
    scale = replace(
        SCALES["small"],
        raw={
            name: replace(raw, settings={**raw.settings, "tokenizer": "bytes", "workers": 1})
            for name, raw in SCALES["small"].raw.items()
        },
    )
    rows = [row for row in rows_of(["table4"]) if scale.has(row)]
    made = corpora(scale, rows, str(data), out)
    assert made == {name: str(out / "pairs" / name) for name in ("en-de", "zh-en")}
    assert corpora(scale, rows, str(data), out) == made
    assert PreparedPairs(made["en-de"]).texts("test", 0) == ("house 0", "Haus 0")
    # The second column of the table is Chinese.
    assert PreparedPairs(made["zh-en"]).texts("test", 0) == ("Haus 0", "house 0")
    # A folder of prepared pairs serves as well.
    assert corpora(SCALES["paper"], rows, str(out / "pairs"), tmp_path) == made


def test_rows_that_a_scale_lacks_are_listed(capfd):
    assert cdcd_main("reproduce", "table4", "--list") == 0
    shown = capfd.readouterr().out.splitlines()
    assert "to do    table4/base-n=100/de-en seed 2" in shown
    assert "not at this scale: table4/base-n=100/zh-en" in shown
    assert not any("table1" in line for line in shown)


def test_costs_of_the_papers_translators(capfd):
    only = "table4/base-n=100/zh-en,table4/big-autoregressive/en-de"
    assert cdcd_main("reproduce", "--only", only, "--scale", "paper", "--dry-run") == 0
    shown = capfd.readouterr().out
    assert "base-zh-en,base.0: 2,000,000 steps" in shown
    assert "base-zh-en,baseline,base.0: 100,000 steps" in shown, "what it is compared with"
    assert "big-en-de,baseline,base.0: 300,000 steps" in shown
