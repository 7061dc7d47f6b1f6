"""Run the command line with ``python -m nmfscale``."""

try:
    from .cli import main

    code = main()
except KeyboardInterrupt:  # during the imports
    code = 130
raise SystemExit(code)
