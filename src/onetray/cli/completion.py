"""`onetray completion`: print click's completion script for a shell."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Print a shell completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script with which SHELL completes commands and options.

    \b
    bash: onetray completion bash >> ~/.bashrc
    zsh:  onetray completion zsh >> ~/.zshrc
    fish: onetray completion fish > ~/.config/fish/completions/onetray.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "onetray", "_ONETRAY_COMPLETE").source())
