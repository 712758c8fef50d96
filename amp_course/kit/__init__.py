"""What every chapter uses: hardware, measuring, data, models, figures, widgets."""
