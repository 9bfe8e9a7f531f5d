"""Mutation check: each deliberate fault must make at least one test fail.

    python tests/mutation_check.py            all faults, a few seconds each
    python tests/mutation_check.py heun sign  those whose names contain one of the words

The source is copied, one fault is put in, and the tests that should notice are run on the copy. The
exit code is 1 if a fault goes unnoticed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paths import ROOT


@dataclass(frozen=True)
class Mutant:
    """One fault: a text of a source file, what it becomes, and the tests that should fail."""

    name: str
    file: str
    right: str
    wrong: str
    tests: str
    keyword: str = ""

    def apply(self, source: Path) -> None:
        path = source / "cdcd" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.right) != 1:
            raise ValueError(f"{self.name}: the text to change is not there once in {self.file}")
        path.write_text(text.replace(self.right, self.wrong), encoding="utf-8")


MUTANTS = [
    Mutant("sign of the Euler step", "diffusion/solvers.py", "return Step(x + (t_next - t) * d, estimate)", "return Step(x - (t_next - t) * d, estimate)", "test_solvers.py", "enter_where"),
    Mutant("missing sqrt(d)", "diffusion/embedding.py", "return math.sqrt(x.shape[-1]) * F.normalize(x, dim=-1)", "return F.normalize(x, dim=-1)", "test_interpolation.py", "rows_have"),
    Mutant("raw table in training", "diffusion/embedding.py", "return normalise_rows(self.weight) if self.normalise else self.weight", "return self.weight", "test_objective.py", "reach_the_table"),
    Mutant("raw table in sampling", "inference/generation.py", "= model.embedding.table().detach()", "= model.embedding.weight.detach()", "test_text_model.py", "one_table"),
    Mutant("input scaling on c", "diffusion/estimator.py", "c = given.masked_fill(noisy, 0.0)", "c = scale_input(given, t).masked_fill(noisy, 0.0)", "test_objective.py", "scaled_and_masked"),
    Mutant("no input scaling", "diffusion/estimator.py", "x = scale_input(x, t).masked_fill(~noisy, 0.0)", "x = x.masked_fill(~noisy, 0.0)", "test_objective.py", "scaled_and_masked"),
    Mutant("c not zeroed at noisy positions", "diffusion/estimator.py", "c = given.masked_fill(noisy, 0.0)", "c = given", "test_network.py", "leak"),
    Mutant("dropped conditioning still visible", "diffusion/estimator.py", "c = c.masked_fill(is_dropped[:, None, None], 0.0)", "c = c.clone()", "test_network.py", "dropped_conditioning"),
    Mutant("x0 detached from the table", "diffusion/objective.py", "x0 = F.embedding(tokens, table)", "x0 = F.embedding(tokens, table.detach())", "test_objective.py", "naive_reference"),
    Mutant("importance weights dropped", "diffusion/warping.py", "return (self.importance_weights(t) * error.square()).mean()", "return error.square().mean()", "test_warping.py", "independent_of_where"),
    Mutant("F not normalised", "diffusion/warping.py", "return floored / floored.sum()", "return floored", "test_warping.py", "unnormalised_is_z"),
    Mutant("t and u swapped", "diffusion/warping.py", "return from_unit(self.cdf.inverse()(u).clamp(0.0, 1.0), self.process, self.bins)", "return from_unit(self.cdf(u).clamp(0.0, 1.0), self.process, self.bins)", "test_warping.py", "follow_the_density"),
    Mutant("temperature upside down", "diffusion/warping.py", "(log_out - log_in) / temperature", "(log_out - log_in) * temperature", "test_warping.py", "temperature_then"),
    Mutant("noise levels from the fitted logits", "diffusion/warping.py", "return self._schedule(self.average_in.detach(), self.average_out.detach())", "return self._schedule(self.logits_in.detach(), self.logits_out.detach())", "test_warping.py", "from_the_average"),
    Mutant("loss mask inverted", "diffusion/objective.py", "cross_entropy.masked_fill(~draws.is_noisy, 0.0)", "cross_entropy.masked_fill(draws.is_noisy, 0.0)", "test_objective.py", "naive_reference"),
    Mutant("words of a source split together", "data/subword_sampling.py", "mix(drawn[row] + place.astype(np.uint64))", "mix(drawn[row])", "test_pieces.py", "by_themselves"),
    Mutant("ways as likely as they are", "data/subword_sampling.py", "np.exp(alpha * (", "np.exp((", "test_pieces.py", "comes_as_often"),
    Mutant("pieces that do not fit", "data/subword_sampling.py", "size[row] > self.length,", "size[row] > self.length + 1,", "test_pieces.py", "would_not_fit"),
    Mutant("the same pieces in every epoch", "data/sequences.py", "mix(mix(positions.astype(np.uint64)) ^ key)", "mix(mix(indices.astype(np.uint64)) ^ key)", "test_pieces.py", "sources_vary"),
    Mutant("prefix mask inverted", "diffusion/masking.py", "return torch.arange(length, device=counts.device) >= counts", "return torch.arange(length, device=counts.device) < counts", "test_draws.py", "prefix_lengths"),
    Mutant("clean counts not paired", "diffusion/masking.py", "length - 1 - drawn.roll(2, 0)", "drawn.roll(2, 0)", "test_draws.py", "add_up"),
    Mutant("too little room for noisy positions", "diffusion/masking.py", "(len(rows) - partnered) * length", "(len(rows) - partnered) * (length - 1)", "test_draws.py", "room"),
    Mutant("parts compiled for other partners", "training/tasks.py", "range(first_row % 4, first_row + 1, 4)", "range(first_row + 1)", "test_draws.py", "same_room"),
    Mutant("selected rows learn too little", "diffusion/selection.py", "unflatten(0, (-1, ctx.length)).sum(1)", "unflatten(0, (-1, ctx.length)).mean(1)", "test_selection.py", "gradients"),
    Mutant("gradient of the target left out", "diffusion/cross_entropy.py", "(columns == targets[:, None])", "(columns != columns)", "test_cross_entropy.py", "values_and_gradients"),
    Mutant("probabilities left scaled", "diffusion/interpolation.py", ".to(table.dtype) / HALF_SCALE", ".to(table.dtype)", "test_interpolation.py", "of_bfloat16_logits"),
    Mutant("the head's bias learns a mean", "networks/diffusion_text.py", "else grad.sum(0)", "else grad.mean(0)", "test_network.py", "head_is_a_linear"),
    Mutant("the head's bias learns a mean in bfloat16", "networks/diffusion_text.py", "(ones @ grad)[0]", "(ones @ grad)[0] / len(grad)", "test_network.py", "head_is_a_linear"),
    Mutant("a captured step sees its first batch again", "training/captured.py", "        copy_into(self.places, (tokens, drawn))\n", "", "test_captured.py", "replayed"),
    Mutant("results of a captured step overwritten", "training/captured.py", "tuple(found.clone() for found in self.replay())", "self.replay()", "test_captured.py", "replayed"),
    Mutant("self-conditioning not detached", "diffusion/objective.py", "@torch.no_grad()\ndef _first_predictions", "def _first_predictions", "test_objective.py", "naive_reference or scaled_and_masked"),
    Mutant("wrong Heun weight", "diffusion/solvers.py", "(d + d_next) / 2", "(0.6 * d + 0.4 * d_next)", "test_solvers.py", "measured_order"),
    Mutant("Heun conditions on an old prediction", "diffusion/solvers.py", "t_next, estimate.state)", "t_next, state)", "test_solvers.py", "most_recent"),
    Mutant("guidance branches swapped", "diffusion/estimator.py", "torch.lerp(unconditional, conditional, self.guidance_scale)", "torch.lerp(conditional, unconditional, self.guidance_scale)", "test_solvers.py", "guidance_extrapolates"),
    Mutant("score temperature multiplies", "diffusion/solvers.py", "/ (t * self.score_temperature)", "/ t * self.score_temperature", "test_solvers.py", "enter_where"),
    Mutant("state is the shaped prediction", "diffusion/estimator.py", "Estimate(logits, x0_hat, plain if self.self_conditioning", "Estimate(logits, x0_hat, x0_hat if self.self_conditioning", "test_network.py", "plain_prediction"),
    Mutant("score without 1/t²", "diffusion/interpolation.py", "return (x0_hat - x) / t[:, None, None] ** 2", "return (x0_hat - x) / t[:, None, None]", "test_interpolation.py", "single_gaussian"),
    Mutant("nucleus loses the token that reaches the mass", "diffusion/interpolation.py", "mass_before = ordered.cumsum(-1) - ordered", "mass_before = ordered.cumsum(-1)", "test_interpolation.py", "nucleus"),
    Mutant("u in the order of the rows", "diffusion/draws.py", "order = torch.randperm(batch, generator=generator, device=generator.device)", "order = torch.arange(batch, device=generator.device)", "test_draws.py", "uniform_at_every_row"),
    Mutant("final prediction at t_max", "diffusion/sampling.py", "final = estimator(x, times[-1].expand(len(x)), state)", "final = estimator(x, times[0].expand(len(x)), state)", "test_solvers.py", "most_recent"),
    Mutant("optimiser not restored", "training/trainer.py", 'self.optimiser.restore(without_prefix("model", saved.optimiser))', "pass", "test_resume.py", "is_uninterrupted"),
    Mutant("the GPU's attention not rotated back", "networks/triton_attention.py", "tl.dot(grad_scores, k2), cos, -sin)", "tl.dot(grad_scores, k2), cos, sin)", "test_triton_attention.py", "interpreted"),
    Mutant("the GPU's attention sees padding", "networks/triton_attention.py", 'tl.where(is_key[None, :], scores, float("-inf"))', "scores", "test_triton_attention.py", "interpreted"),
    Mutant("a decoder that looks ahead", "networks/blocks.py", "attend(q, k, v, causal=self.causal, is_seen=is_seen)", "attend(q, k, v, is_seen=is_seen)", "test_autoregressive.py", "do_not_see"),
    Mutant("padding predicted", "networks/autoregressive_text.py", "return tokens != PAD", "return tokens >= PAD", "test_tasks.py", "padding"),
    Mutant("given tokens judged too", "evaluation/judge.py", "parts.append((nll * counts).sum(1))", "parts.append(nll.sum(1))", "test_judge.py", "equal_a_computation"),
    Mutant("a quarter given instead of half", "evaluation/texts.py", "given = torch.full((samples, 1), length // 2)", "given = torch.full((samples, 1), length // 4)", "test_texts.py", "half"),
    Mutant("every rank reads the same rows", "data/sequences.py", "first = step * self.batch_size + rank * share", "first = step * self.batch_size", "test_shards.py", "ranks_share"),
    Mutant("entropy of what is given too", "metrics/statistics.py", "counted = tokens[is_generated]", "counted = tokens.flatten()", "test_statistics.py", "does_not_count"),
    Mutant("MAUVE without its scaling", "metrics/mauve.py", "torch.exp(-scaling * divergences)", "torch.exp(-divergences)", "test_mauve.py", "integral"),
    Mutant("a replay overwrites what is kept", "networks/capture.py", "found.x0_hat.clone()", "found.x0_hat", "test_capture.py", "plain_calls_give"),
    Mutant("prompt of the first batch", "networks/capture.py", "place.copy_(tensor)", "pass", "test_capture.py", "plain_calls_give"),
    Mutant("state of the last batch", "networks/capture.py", "self.state.zero_() if state is None else self.state.copy_(state)", "self.state if state is None else self.state.copy_(state)", "test_capture.py", "plain_calls_give"),
    Mutant("early stopping keeps the last", "training/trainer.py", "self.world.on_main(lambda: self.run.set_aside_after(best_step))", "pass", "test_tasks.py", "best_is_what_loads"),
    Mutant("matches not clipped", "metrics/ngrams.py", "ngrams * (times.max(initial=0) + 1) + times", "ngrams * (times.max(initial=0) + 1)", "test_mbr.py", "that_of_sacrebleu"),
    Mutant("no brevity penalty", "metrics/ngrams.py", "100 * brevity * product", "100 * product", "test_mbr.py", "known_values"),
    Mutant("n-grams across hypotheses", "metrics/ngrams.py", "is_whole = first == last", "is_whole = first == first", "test_mbr.py", "that_of_sacrebleu"),
    Mutant("hypotheses as references of each other swapped", "metrics/ngrams.py", "totals[:, None], totals[None])", "totals[None], totals[:, None])", "test_mbr.py", "known_values"),
    Mutant("duplicates not weighted", "metrics/mbr.py", "weights = np.bincount(places) / len(places)", "weights = (np.bincount(places) > 0) / len(places)", "test_mbr.py", "weights or majority"),
    Mutant("bonuses of other hypotheses", "metrics/mbr.py", "+ added[:count]", "+ added[-count:]", "test_mbr.py", "bonuses"),
    Mutant("the first sample split anew too", "inference/translation.py", "[sample > 0 for _, _, sample in places]", "[sample >= 0 for _, _, sample in places]", "test_settled_models.py", "as_it_is or split_anew"),
    Mutant("ties by rounding", "metrics/mbr.py", "utilities.max() - TIE", "utilities.max()", "test_mbr.py", "ties"),
    Mutant("difference of a system with itself", "metrics/translation.py", "return corpus_bleu(second) - corpus_bleu(first)", "return corpus_bleu(second) - corpus_bleu(second)", "test_translation_scores.py", "paired"),
    Mutant("languages swapped", "metrics/words.py", "source, target = counts", "target, source = counts", "test_translation_scores.py", "told_apart"),
    Mutant("missing words counted once", "metrics/translation.py", "(Counter(wanted) - Counter(found)).total()", "len(set(wanted) - set(found))", "test_translation_scores.py", "its_number"),
    Mutant("padding of the source attended to", "networks/encoder_decoder.py", "is_seen=memory.is_real[:, None, None])", "is_seen=None)", "test_translation.py", "padding_of_the_source"),
    Mutant("a translator that looks ahead", "networks/autoregressive_translation.py", "DecoderBlock(network, None, causal=True)", "DecoderBlock(network, None)", "test_translation_baseline.py", "do_not_see"),
    Mutant("dropped sources keep their length", "networks/diffusion_translation.py", "lengths = lengths.masked_fill(is_dropped, 0)", "pass", "test_translation.py", "dropped_row"),
    Mutant("the first pass reads other sources", "networks/diffusion_translation.py", "self.source.take(self.rows)", "self.source.take(self.rows - 1)", "test_translation.py", "some_rows"),
    Mutant("beams keep another's cache", "inference/beam.py", "cache.reorder(rows.flatten())", "pass", "test_beam.py", "naive_one"),
    Mutant("penalty without the EOS", "inference/beam.py", "has_ended=True) / config.penalty(i + 1)", "has_ended=True) / config.penalty(i)", "test_beam.py", "wide_beam"),
    Mutant("a search that ends too early", "inference/beam.py", "torch.maximum(log_prob / first, log_prob / last)", "torch.minimum(log_prob / first, log_prob / last)", "test_beam.py", "wide_beam"),
    Mutant("targets before sources", "data/pairs.py", "torch.cat([self.sources.rows(indices), self.targets.rows(indices)], dim=1)", "torch.cat([self.targets.rows(indices), self.sources.rows(indices)], dim=1)", "test_pairs.py", "test_rows"),
    Mutant("sides filtered apart", "data/prepare.py", 'side.append(part, splits, fates == FATES.index("kept"))', "side.append(part, splits, part.lengths > 0)", "test_pairs.py", "left_out_is_counted"),
    Mutant("half an hour counted English", "languages/number_words.py", 'return f"{halves[minute]} {after}"', 'return f"{halves[minute]} {now}"', "test_numerals.py", "times_by_hand"),
    Mutant("tens before units in German", "languages/number_words.py", """return f"{_linked(UNITS['de'][units])}und{TENS['de'][tens]}\"""", """return f"{TENS['de'][tens]}und{_linked(UNITS['de'][units])}\"""", "test_numerals.py", "second_implementation"),
    Mutant("the least sure settles first", "inference/mask_predict.py", "argsort(dim=1, descending=True, stable=True)", "argsort(dim=1, stable=True)", "test_settling.py", "surest_token"),
    Mutant("settled tokens stay noisy", "inference/mask_predict.py", "is_noisy = is_noisy & ~is_new", "pass", "test_settling.py", "chain_rule or no_more_rounds"),
    Mutant("all tokens settle in the first round", "inference/mask_predict.py", "// rounds_left", "", "test_settling.py", "two_rounds"),
    Mutant("predictions not fed back while settling", "inference/mask_predict.py", "        state = estimate.state\n", "", "test_settling.py", "chain_rule"),
    Mutant("any token is settled", "inference/mask_predict.py", "if not never:", "if never:", "test_settling.py", "never_settled"),
    Mutant("drawn tokens of other places", "inference/mask_predict.py", "where.take(u)", "u.flatten()[: len(log_p)]", "test_settled_models.py", "asked_for_again"),
    Mutant("dropout that does not scale", "networks/blocks.py", "(2**16 / (2**16 - dropped))", "1.0", "test_network.py", "dropout"),
    Mutant("attention by products that is not scaled", "networks/blocks.py", "(q.shape[-1] ** -0.5 * q) @ k.mT", "q @ k.mT", "test_network.py", "attention_in_bfloat16"),
    Mutant("text after padding", "inference/translation.py", "p.cummax(1).values[:, 1:]", "p[:, 1:]", "test_settled_models.py", "where_padding_begins"),
    Mutant("lengths are drawn at no temperature", "inference/translation.py", "likely.log() / temperature", "likely.log()", "test_settled_models.py", "lengths_at_a_temperature"),
    Mutant("relative positions that the encoder is not told of", "networks/encoder_decoder.py", "block(h, self.rotary, is_real)", "block(h, None, is_real)", "test_translation_baseline.py", "equal_naive"),
    Mutant("relative positions that the decoder is not told of", "networks/diffusion_translation.py", "attended, self.rotary", "attended, None", "test_translation.py", "order_of_the_target"),
    Mutant("the least sure length is taken", "inference/translation.py", ".unflatten(0, (-1, tries)).max(1)", ".unflatten(0, (-1, tries)).min(1)", "test_settled_models.py", "surest or sureness"),
    Mutant("the dropped half of guidance swapped", "inference/translation.py", "is_dropped[len(source) // 2 :] = True", "is_dropped[: len(source) // 2] = True", "test_translator.py", "guidance_is"),
    Mutant("the source not hidden in training", "training/translation.py", "encoded = self.model.encode(source, is_dropped)", "encoded = self.model.encode(source)", "test_translator.py", "loss_of_a_diffusion"),
    Mutant("sources predicted", "training/translation.py", "    def targets(self, tokens: Int[Tensor, \"batch both\"]) -> Int[Tensor, \"batch seq\"]:\n        return tokens[:, self.config.data.source_length :]\n\n    def bind(", "    def targets(self, tokens: Int[Tensor, \"batch both\"]) -> Int[Tensor, \"batch seq\"]:\n        return tokens[:, : self.config.data.source_length]\n\n    def bind(", "test_translator.py", "loss_of_a_diffusion"),
    Mutant("dropout of the process, not of the step", "training/translation.py", "    torch.manual_seed(int(drawn))", "    assert drawn >= 0", "test_translator.py", "resumed or of_the_step"),
    Mutant("every rank drops the same units", "training/translation.py", "\"dropout\", step, world.rank)", "\"dropout\", step)", "test_translator.py", "of_the_step"),
    Mutant("dropout in validation", "training/trainer.py", "        self.model.eval()\n", "", "test_translator.py", "in_validation"),
    Mutant("all samples of a text alike", "inference/translator.py", "[(seed, i, j) for i in rows for j in columns]", "[(seed, i, 0) for i in rows for j in columns]", "test_translator.py", "text_and_place"),
    Mutant("samples given to other texts", "inference/translator.py", "            for i in rows:\n                for j in columns:\n", "            for j in columns:\n                for i in rows:\n", "test_translator.py", "text_and_place"),
    Mutant("a baseline trained without smoothing", "training/translation.py", "return losses.smoothed, losses.nll", "return losses.nll, losses.nll", "test_translator.py", "smoothed_labels"),
    Mutant("a rate that does not fall", "training/optimiser.py", "rate *= min(1.0, (config.warmup_steps / (step + 1)) ** 0.5)", "rate *= 1.0", "test_translator.py", "vaswani"),
    Mutant("reversed pairs not reversed", "training/run.py", "target_length=data.length, reverse=data.reverse", "target_length=data.length", "test_translator.py", "data_set"),
    Mutant("long lines cut", "cli/translate.py", "rest = [(n, piece) for n in too_long for piece in pieces[n][1:]]", "rest: list[tuple[int, str]] = []", "test_translate_command.py", "split_at"),
    Mutant("lines split at carriage returns too", "cli/translate.py", 'content.removeprefix(BYTE_ORDER_MARK).split(b"\\n")', "content.removeprefix(BYTE_ORDER_MARK).splitlines()", "test_translate_command.py", "one_for_one"),
    Mutant("ordinals end sentences", "data/sentences.py", "(INITIALS, ORDINAL, ABBREVIATION)", "(INITIALS, ABBREVIATION)", "test_sentences.py", "ends"),
]  # fmt: skip


def is_noticed(mutant: Mutant) -> bool:
    """Whether the tests named by a mutant fail on a faulty copy of the source."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "src", copy / "src", ignore=ignored)
        shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", copy)
        mutant.apply(copy / "src")
        command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider"]
        command += [str(next((copy / "tests").rglob(mutant.tests))), "-k", mutant.keyword]
        environment = os.environ | {"PYTHONPATH": str(copy / "src"), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{mutant.name}: pytest could not run\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in m.name for word in words)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        noticed = list(pool.map(is_noticed, chosen))
    for mutant, seen in zip(chosen, noticed, strict=True):
        print(f"{'noticed  ' if seen else 'UNNOTICED'}  {mutant.name}")
    print(f"{sum(noticed)} of {len(chosen)} faults noticed")
    return 0 if all(noticed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
