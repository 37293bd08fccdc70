"""``python -m flashpoint`` is the command line."""

from flashpoint.cli.main import main

if __name__ == "__main__":
    main()
