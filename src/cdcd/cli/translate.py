"""`cdcd translate`: lines in, lines out, one for one."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cdcd.cli.display import SamplingProgress
from cdcd.cli.messages import for_terminal, one_line, say
from cdcd.cli.model_options import chosen_settings, load_options
from cdcd.data.sentences import Pieces, split_long
from cdcd.data.vocabulary import UNKNOWN
from cdcd.files import write_atomically
from cdcd.inference.load import load_translator
from cdcd.inference.names import find_run
from cdcd.inference.translator import Translator

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def translate(options: Any) -> None:
    check_out(options.out)
    # Before stdin is waited for.
    run = find_run(options.run)
    lines = read_lines(options.source)
    translator = load_translator(run, **load_options(options))
    settings = chosen_settings(options)
    translator.settings(settings, options.num_samples)
    pieces, warnings = arrange(lines, translator, options.long)
    for warning in (*warnings, *unknown_words(lines, translator)):
        say(f"{options.parser.prog}: warning: {one_line(warning)}")
    with SamplingProgress("translating") as progress:
        translated = translator.translate(
            pieces.texts,
            num_samples=options.num_samples,
            utility=options.utility,
            score_weight=options.score_weight,
            seed=options.seed,
            batch_size=options.batch_size,
            callback=progress,
            **settings,
        )
    lines_out = [" ".join(text.splitlines()) for text in translated]
    translations = [" ".join(parts) for parts in pieces.by_text(lines_out)]
    output = "".join(f"{text}\n" for text in translations)
    if options.json:
        pairs = zip(lines, translations, strict=True)
        rows = [{"source": source, "translation": text} for source, text in pairs]
        output = json.dumps({"settings": settings, "translations": rows}, ensure_ascii=False) + "\n"
    write(output, options.out)


# Files


def check_out(out: Path | None, option: str = "--out") -> None:
    """Raises now an error that would otherwise come at the end."""
    if out is None:
        return
    if not out.parent.is_dir():
        raise ValueError(f"{option} is {out}, but there is no folder {out.parent}; make it first")
    if out.exists() and not out.is_file():
        raise ValueError(f"{option} is {out}, which is no file; choose another")


def write(text: str, out: Path | None) -> None:
    if out is None:
        sys.stdout.write(for_terminal(text))
    else:
        write_atomically(out, text.encode())


def read_lines(source: str) -> list[str]:
    r"""Reads the lines of a file or of stdin. They end at \n or \r\n alone: Unicode has other line ends."""
    if source == "-":
        if sys.stdin.isatty():
            say("write a sentence a line, then Ctrl-D")
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


def arrange(lines: Sequence[str], translator: Translator, long: str) -> tuple[Pieces, list[str]]:
    """Returns the lines, those that are too long in pieces or empty, and warnings of these."""
    limit = translator.config.data.source_length
    pieces = split_long(lines, translator.fits)
    reason = f"{_named(pieces.too_long)}: longer than the {limit} tokens that this model reads"
    if pieces.too_long and long == "refuse":
        raise ValueError(reason)
    if pieces.too_long and long == "skip":
        kept = [line if translator.fits(line) else "" for line in lines]
        return split_long(kept, translator.fits), [f"{reason}; left empty"]
    if pieces.unread:
        raise ValueError(
            f"{_named(pieces.unread)}: a sentence is longer than the {limit} tokens that this model "
            f"reads; break it up"
        )
    return pieces, [
        f"line {n + 1} has {translator.num_tokens(lines[n])} tokens, this model reads at most "
        f"{limit}: translated in {pieces.owners.count(n)} pieces"
        for n in pieces.too_long
    ]


def _named(numbers: Sequence[int]) -> str:
    """Returns lines by their numbers, which people count from 1."""
    names = ", ".join(str(n + 1) for n in numbers)
    return f"line {names}" if len(numbers) == 1 else f"lines {names}"


def unknown_words(lines: Sequence[str], translator: Translator) -> list[str]:
    """Returns a warning of words that the tokenizer does not know."""
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
