import sys

from cdcd.cli import main

sys.exit(main())
