"""`python -m monodraft`: the `monodraft` command."""

from monodraft.cli.entry import main

if __name__ == "__main__":
    main()
