"""How the answers of chapter 04 are judged, one module for each kind of task."""
