"""Run the command line with ``python -m nmfscale``."""

from .cli import main

raise SystemExit(main())
