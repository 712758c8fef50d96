"""Run a verb of `amp_course.authoring`."""

from amp_course.authoring import main

raise SystemExit(main())
