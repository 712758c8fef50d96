"""How the exercises of chapter 07 are judged: by what loops do, beside fp32 gradients and unbroken runs."""
