"""What every chapter stands on: hardware, measuring, data, models, figures, widgets."""
