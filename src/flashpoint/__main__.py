"""``flashpoint`` and ``python -m flashpoint``: the command line, which is the lab's."""

import sys

from flashpoint.errors import how_to_install


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from flashpoint.lab.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "flashpoint":
            raise  # ours, not something that is left to install
        print(  # noqa: T201 - what prints otherwise is not installed either
            f"error: the command line needs the extra 'lab' ({error.name} is not installed). "
            f"Run: {how_to_install('lab')}.",
            file=sys.stderr,
        )
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
