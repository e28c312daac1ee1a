"""`fedveil vertical generate`: the parties of a language model continue a text."""

from __future__ import annotations

import codecs
from typing import Annotated

import typer

from fedveil.base.plain_text import document, remark, say
from fedveil.cli.vertical import arguments
from fedveil.cli.vertical.machines import look


def generate(
    run: arguments.RunPath,
    prompt: Annotated[str, typer.Option(help="The text to continue. Default: none.")] = "",
    tokens: Annotated[
        int,
        typer.Option(
            min=1, help="Maximum number of tokens (words or pieces of words) to generate."
        ),
    ] = 100,
    temperature: Annotated[
        float,
        typer.Option(min=0, help="Sampling temperature. 0: always take the most likely token."),
    ] = 0.8,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed. Default: a new one each time.")
    ] = None,
    listen: arguments.Listen = None,
    tls: arguments.Tls = None,
    insecure: arguments.Insecure = False,
    patience: arguments.Patience = arguments.PATIENCE_S,
) -> object:
    """Continue a text with a language model whose layers are divided among the parties.

    The run's job must have `task: pangu`. If the parties are on several machines, give --listen at
    the leader (the party with the text), and run `fedveil vertical follower --serve` at the others.
    """
    from fedveil.language import generation
    from fedveil.language.text_account import figures
    from fedveil.record.run_folder import job_of

    # A character may span several tokens.
    characters = codecs.getincrementaldecoder("utf-8")("replace")

    def tell(piece: bytes, last: bool = False) -> None:
        document(characters.decode(piece, last) + "\n" * last)

    request = generation.Request.seeded(prompt.encode(), tokens, temperature, seed)
    if listen is None:
        job_of(run)  # raises an error before the prompt is printed
        document(prompt)
        found, split = generation.generate(run, request, tell, remark)
    else:
        own = generation.leading(request)
        session = look(generation.GENERATE, run, listen, tls, insecure, patience, own)
        found, split = session.result, session.run.setting.split
        document(prompt)
        tell(found.text)
    tell(b"", last=True)
    if found.stopped:
        remark(found.stopped)
    accounts = list(figures(split, found.sent))
    for figure in accounts:
        say(str(figure))
    text = prompt + found.text.decode(errors="replace")
    return {"text": text, "accounts": [str(figure) for figure in accounts]}
