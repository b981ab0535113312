"""`python -m generator`, and the console script `kernelswarm`."""

import sys

from generator import origin


def main() -> int:
    """Run the command line on `sys.argv`; returns the exit code."""
    stranger = origin.stranger()
    if stranger is not None:
        sys.stderr.write(f"error: {stranger}\n")
        return 2
    from generator import cli

    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
