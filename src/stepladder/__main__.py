"""`python -m stepladder`."""

import sys

from stepladder.cli.main import main

sys.exit(main())
