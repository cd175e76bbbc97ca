"""Commands about privacy: budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fedra.cli.app import INSPECT, ConfigArgument, Overrides, app, examples, print_line, wide_console

if TYPE_CHECKING:
    from rich.table import Table

    from fedra.experiment.privacy_budget import Budget

EXAMPLE_SIZE = 1_000_000
"""Parameters of the model for which the signal-to-noise ratio is shown."""


@app.command(
    rich_help_panel=INSPECT,
    epilog=examples(
        "fedra budget private.toml",
        "fedra budget private.toml privacy.epsilon=4 rounds=200",
        "fedra budget examples.toml --examples 600",
    ),
)
def budget(
    config: ConfigArgument,
    overrides: Overrides = None,
    examples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Examples of a client, for privacy.level = 'example'.", metavar="N", show_default="none"
        ),
    ] = None,
) -> None:
    """Show what the privacy of a configuration costs, before any data are read."""
    from fedra.config import reading as configuration
    from fedra.experiment.privacy_budget import plan_budget
    from fedra.privacy.statement import UNIT

    console = wide_console()
    found = plan_budget(configuration.read(config, overrides or ()), examples)
    console.print(_table(found))
    what = "client" if found.unit == UNIT else "example"
    sampled = (
        f"each {what} is sampled with probability {found.rate:g}" if found.rate < 1 else "no amplification by sampling"
    )
    print_line(console, f"delta {found.delta:g}; unit: {found.unit}; {sampled}")
    if found.target is not None:
        print_line(console, f"budget {found.target[0]:g}: noise {found.chosen:g} lasts for {found.target[1]} rounds")
    if found.turns is not None:
        apart, error = found.turns
        correlated = (
            f"; correlated noise leaves {error:.0%} of the error that independent noise of the same epsilon leaves in "
            "the sum of the rounds"
        )
        print_line(
            console, f"a client takes part at most once in {apart} rounds{correlated if error is not None else ''}"
        )
    if found.honest is not None:
        share, worse = found.honest
        print_line(
            console,
            f"clients add the noise: this holds if at least {share:.0%} of a round's clients add theirs; if only "
            f"{share / 2:.0%} do, epsilon is {worse:.2f} after all rounds",
        )
    ratio = found.noise_ratio(EXAMPLE_SIZE)
    if ratio is not None:
        print_line(
            console,
            f"with a million parameters and {found.clients:g} clients per round, the noise on the mean is {ratio:.3g} "
            "times the clip norm",
        )


def _table(found: Budget) -> Table:
    from rich.table import Table

    table = Table(header_style="bold")
    table.add_column("noise", justify="right")
    for count in found.rounds:
        table.add_column(f"epsilon after {count:,}", justify="right")
    for noise, row in found.epsilons.items():
        style = "bold" if noise == found.chosen else None
        table.add_row(f"{noise:g}", *(f"{value:.2f}" for value in row), style=style)
    return table
