"""How the answers of chapter 01 are judged, one module for each exercise."""
