"""`python -m prefork_q` is `prefork-q`."""

from prefork_q.cli.main import main

if __name__ == "__main__":
    main()
