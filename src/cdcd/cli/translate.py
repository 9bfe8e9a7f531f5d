"""`cdcd translate`: lines in, lines out, one for one."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdcd.cli.model_options import chosen_settings, load_options, run_options, setting_options

if TYPE_CHECKING:
    from cdcd.inference.translator import Translator

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def translate_options(parser: argparse.ArgumentParser) -> None:
    from cdcd.metrics.bleu import UTILITIES

    run_options(parser, "run directory of a translator")
    parser.add_argument(
        "--source", metavar="FILE|-", required=True, help="text with a sentence a line; -: stdin"
    )
    parser.add_argument("--out", metavar="FILE", type=Path, help="output file (default: stdout)")
    parser.add_argument(
        "--num-samples",
        metavar="INT",
        type=int,
        default=1,
        help="samples of each line; of several, the one most like the others is taken",
    )
    parser.add_argument(
        "--utility", choices=UTILITIES, default="bleu", help="measure of how alike samples are"
    )
    parser.add_argument(
        "--long",
        choices=("split", "refuse", "skip"),
        default="split",
        help="lines that are longer than the model reads: split at the ends of sentences, refuse, or "
        "leave empty",
    )
    setting_options(parser, beam=True)


def translate(options: Any) -> None:
    from cdcd.cli.display import SamplingProgress
    from cdcd.inference.load import load_translator

    check_out(options.out)
    lines = read_lines(options.source)
    translator = load_translator(options.run, **load_options(options))
    settings = chosen_settings(options)
    translator.settings(settings, options.num_samples)
    texts = arrange(lines, translator, options.long)
    for warning in (*texts.warnings, *unknown_words(lines, translator)):
        print(f"{options.parser.prog}: warning: {warning}", file=sys.stderr)
    with SamplingProgress(1, "translating") as progress:
        translated = translator.translate(
            texts.pieces,
            num_samples=options.num_samples,
            utility=options.utility,
            seed=options.seed,
            batch_size=options.batch_size,
            callback=progress,
            **settings,
        )
    translations = texts.join(translated)
    output = "".join(f"{text}\n" for text in translations)
    if options.json:
        pairs = zip(lines, translations, strict=True)
        rows = [{"source": source, "translation": text} for source, text in pairs]
        output = json.dumps({"settings": settings, "translations": rows}, ensure_ascii=False) + "\n"
    write(output, options.out)


# Files


def check_out(out: Path | None) -> None:
    """Raises now an error that would otherwise come at the end."""
    if out is None:
        return
    if not out.parent.is_dir():
        raise ValueError(f"--out is {out}, but there is no folder {out.parent}; make it first")
    if out.exists() and not out.is_file():
        raise ValueError(f"--out is {out}, which is no file; choose another")


def write(text: str, out: Path | None) -> None:
    from cdcd.files import write_atomically

    if out is None:
        sys.stdout.write(text)
    else:
        write_atomically(out, text.encode())


def read_lines(source: str) -> list[str]:
    r"""Reads the lines of a file or of stdin. They end at \n or \r\n alone: Unicode has other line ends."""
    if source == "-":
        if sys.stdin.isatty():
            print("write a sentence a line, then Ctrl-D", file=sys.stderr)
        name, content = "stdin", sys.stdin.buffer.read()
    else:
        name, content = source, Path(source).read_bytes()
    rows = content.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    if not rows[-1]:
        rows.pop()
    return [_decoded(row, f"{name}, line {number}") for number, row in enumerate(rows, start=1)]


def _decoded(row: bytes, name: str) -> str:
    if b"\0" in row:
        raise ValueError(f"{name} holds a zero byte: it is no text in UTF-8")
    try:
        return row.removesuffix(b"\r").decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte {error.start + 1} is 0x{row[error.start]:02x}"
        raise ValueError(f"{name} is not UTF-8 text ({byte}); convert the file") from None


# Lines that are too long, and words that are not known


@dataclass(frozen=True)
class Texts:
    """The texts to translate for some lines: each line, or its first piece, and behind them the others.

    So a line has the same number, and the same samples, whatever the lines before it are.
    """

    pieces: list[str]
    owners: list[int]
    """The line of each piece."""
    warnings: list[str]

    def join(self, translations: Sequence[str]) -> list[str]:
        """Returns the translation of each line, on one line."""
        parts: dict[int, list[str]] = {}
        for owner, text in zip(self.owners, translations, strict=True):
            parts.setdefault(owner, []).append(" ".join(text.splitlines()))
        return [" ".join(parts[owner]) for owner in sorted(parts)]


def arrange(lines: Sequence[str], translator: "Translator", long: str) -> Texts:
    """Splits lines that are too long for the model into pieces; never within a sentence."""
    from cdcd.data.sentences import pack_sentences

    room = translator.config.data.source_length
    too_long = [n for n, line in enumerate(lines) if not _fits(line, translator)]
    if too_long and long == "refuse":
        raise ValueError(f"{_named(too_long)}: longer than the {room} tokens that this model reads")
    if too_long and long == "skip":
        warning = (
            f"{_named(too_long)}: longer than the {room} tokens that this model reads; left empty"
        )
        kept = [line if _fits(line, translator) else "" for line in lines]
        return Texts(kept, list(range(len(lines))), [warning])
    pieces = {n: pack_sentences(lines[n], lambda text: _fits(text, translator)) for n in too_long}
    if cut := [n for n in too_long if not all(_fits(piece, translator) for piece in pieces[n])]:
        raise ValueError(
            f"{_named(cut)}: a sentence is longer than the {room} tokens that this model reads; "
            f"break it up"
        )
    rest = [(n, piece) for n in too_long for piece in pieces[n][1:]]
    return Texts(
        [*(pieces[n][0] if n in pieces else line for n, line in enumerate(lines)),
         *(piece for _, piece in rest)],
        [*range(len(lines)), *(n for n, _ in rest)],
        [
            f"line {n + 1} has {translator.num_tokens(lines[n])} tokens, this model reads at most "
            f"{room}: translated in {len(pieces[n])} pieces"
            for n in too_long
        ],
    )  # fmt: skip


def _fits(text: str, translator: "Translator") -> bool:
    return translator.num_tokens(text) <= translator.config.data.source_length


def _named(numbers: Sequence[int]) -> str:
    """Returns lines by their numbers, which people count from 1."""
    names = ", ".join(str(n + 1) for n in numbers)
    return f"line {names}" if len(numbers) == 1 else f"lines {names}"


def unknown_words(lines: Sequence[str], translator: "Translator") -> list[str]:
    """Returns a warning of words that the tokenizer does not know."""
    from cdcd.data.vocabulary import UNKNOWN

    encode = translator.tokenizer.encode
    affected = [number for number, line in enumerate(lines) if UNKNOWN in encode(line)]
    if not affected:
        return []
    what = "there are words that are not in the model's vocabulary"
    try:
        encode(lines[affected[0]], strict=True)
    except ValueError as error:
        what = str(error)
    more = f" (and so in {len(affected) - 1:,} other lines)" if len(affected) > 1 else ""
    return [f"line {affected[0] + 1}: {what}; the model reads an unknown word{more}"]
