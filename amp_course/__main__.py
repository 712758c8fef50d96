"""`python -m amp_course` is the command `amp-course`, wherever its script is not on the path."""

import sys

from amp_course.cli import main

sys.exit(main())
