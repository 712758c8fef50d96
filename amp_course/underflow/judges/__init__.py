"""How the exercises of chapter 02 are judged."""
