"""How the answers of chapter 06 are judged, one module for each kind of task."""
