"""``python -m legroom``: the command line, where the ``legroom`` script is not on the path."""

from legroom.cli.main import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
