"""How the answers of chapter 03 are judged, one module for each kind of task."""
