"""`cdcd serve`: the playground."""

from typing import Any

from cdcd.cli.messages import one_line, say


def serve(options: Any) -> None:
    try:
        from cdcd.serving import server
    except ModuleNotFoundError as error:
        raise ValueError(
            f"the playground needs {error.name}: pip install 'cdcd[serve]' (from a clone: "
            f"pip install -c constraints.txt -e '.[serve]')"
        ) from None
    from cdcd.serving.limits import Limits
    from cdcd.serving.models import load_models

    limits = Limits(queue=options.queue)
    models = load_models(options.runs, limits, options.device)
    server.serve(
        models,
        host=options.host,
        port=options.port,
        limits=limits,
        say=lambda line: say(one_line(line)),
    )
