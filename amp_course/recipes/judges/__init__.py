"""How the exercises of chapter 08 are judged: by what weights, dtypes and diagnoses come out, on cases drawn anew."""
