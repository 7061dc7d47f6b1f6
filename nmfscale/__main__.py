"""Run the command line with ``python -m nmfscale``."""

try:
    from .cli import main

    code = main()
except KeyboardInterrupt:  # while they were imported
    code = 130
raise SystemExit(code)
