"""Set up the test run: the reader's copies and progress are not the tests' to touch."""

import atexit
import os
import shutil
import tempfile

# Set here, not in a fixture: kernels and commands that tests start inherit it, whenever they start.
_scratch = tempfile.mkdtemp(prefix="amp_course_work_")
atexit.register(shutil.rmtree, _scratch, ignore_errors=True)
os.environ["AMP_COURSE_WORK"] = os.path.join(_scratch, "my_work")
