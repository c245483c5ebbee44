"""`python -m clipwise.cli`, for where the script is not on the path."""

from clipwise.cli import main

main()
