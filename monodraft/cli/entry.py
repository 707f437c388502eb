"""Entry point of the `monodraft` script: Ctrl-C while the command's imports run leaves no traceback."""

from __future__ import annotations

import sys


def main() -> None:
    """Import the command and run it; exit codes are those of `app.main`."""
    try:
        from monodraft.cli import app
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    app.main()


if __name__ == "__main__":
    main()
