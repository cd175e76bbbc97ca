"""`python -m fedra` is the command `fedra`."""

from fedra.cli import main

if __name__ == "__main__":
    main()
