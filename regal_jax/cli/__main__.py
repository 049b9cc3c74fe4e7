"""``python -m regal_jax.cli``."""

import sys

from regal_jax.cli.main import main

sys.exit(main())
