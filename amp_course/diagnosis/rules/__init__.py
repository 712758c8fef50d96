"""The judgements, records → findings. A cause is named only if no sound one is left."""
