"""`python -m clipwise`, and `torchrun -m clipwise`: the command line."""

from clipwise.cli import main

if __name__ == "__main__":
    main()
