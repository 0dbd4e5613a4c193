"""``python -m benchmarks [NAME ...]``."""

import sys

from benchmarks.frame import main

sys.exit(main(sys.argv[1:]))
