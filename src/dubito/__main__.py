"""`python -m dubito`, for where the `dubito` script is not on the path."""

from dubito.cli import main

if __name__ == "__main__":
    main()
