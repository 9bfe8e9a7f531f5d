"""Training of SentencePiece in a process of its own, since nothing can interrupt it in this one.

The parent sends the text, keeps the pipe open, and reads the model or the error. It kills the process
where it is interrupted itself; where it dies, the end of the pipe ends the process.
"""

import io
import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

COMMAND = ("-P", "-m", "cdcd.data.learning_process")


def train_in_a_process(stretches: list[str], options: dict[str, Any]) -> bytes:
    """Returns the SentencePiece model of these stretches of text, or raises the error of its training."""
    # A session of its own: Ctrl-C reaches the parent alone.
    process = subprocess.Popen(
        [sys.executable, *COMMAND],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        pickle.dump((stretches, options), process.stdin)
        process.stdin.flush()
        answer = process.stdout.read()
    except BrokenPipeError:
        answer = b""
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):  # What was not sent yet has no reader.
            process.stdin.close()
    try:
        model = pickle.loads(answer)
    except (EOFError, pickle.UnpicklingError):
        raise ValueError(
            "the process that learnt the vocabulary died, perhaps for want of memory; lower "
            "tokenizer_bytes or vocab_size"
        ) from None
    if isinstance(model, Exception):
        raise model
    return model


def train(stretches: list[str], options: dict[str, Any]) -> bytes:
    """Returns the SentencePiece model of these stretches of text."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
        sentence_iterator=iter(stretches), model_writer=model, **options
    )
    return model.getvalue()


def main() -> None:
    """Reads the text and the options from the parent, and writes the model or the error."""
    try:
        stretches, options = pickle.load(sys.stdin.buffer)
    except (EOFError, pickle.UnpicklingError):
        return  # The parent was interrupted.
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer: bytes | Exception = train(stretches, options)
    except Exception as error:
        answer = error
    pickle.dump(answer, sys.stdout.buffer)
    sys.stdout.buffer.flush()


def _end_with_parent() -> None:
    """Ends this process when the parent closes the pipe; SentencePiece runs beside this thread."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    main()
