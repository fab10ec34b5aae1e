"""The command line: `radixgen COMMAND`, `python -m radixgen COMMAND`."""

import sys
from typing import NoReturn

import typer

from radixgen.cli import bench, cache, common, configfile, grammar
from radixgen.cli.chat import chat
from radixgen.cli.complete import complete
from radixgen.cli.demo import demo
from radixgen.cli.environment import collect_env, version
from radixgen.cli.generate import generate
from radixgen.cli.run import run
from radixgen.cli.run_batch import run_batch
from radixgen.cli.serve import serve

app = typer.Typer(
    name="radixgen",
    help="A structured-generation engine with a radix prefix cache.\n\nBegin with `radixgen demo`.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
HERE, SERVER = "Run a model here", "With a server"
LOOK = "Measure and look into"

app.command(rich_help_panel=HERE)(demo)
app.command(rich_help_panel=HERE)(generate)
app.command(rich_help_panel=HERE)(chat)
app.command(rich_help_panel=HERE)(run)
app.command("run-batch", rich_help_panel=HERE)(run_batch)
app.command(rich_help_panel=SERVER, context_settings={"auto_envvar_prefix": configfile.PREFIX})(
    serve
)
app.command(rich_help_panel=SERVER)(complete)
app.add_typer(cache.app, name="cache", rich_help_panel=SERVER)
app.add_typer(bench.app, name="bench", rich_help_panel=LOOK)
app.add_typer(grammar.app, name="grammar", rich_help_panel=LOOK)
app.command("collect-env", rich_help_panel=LOOK)(collect_env)
app.command(rich_help_panel=LOOK)(version)


def main() -> NoReturn:
    """Run a command and leave: 0 done, 1 failed, 2 wrong usage, 130 interrupted."""
    sys.exit(common.run(lambda: app(prog_name="radixgen")))


if __name__ == "__main__":
    main()
