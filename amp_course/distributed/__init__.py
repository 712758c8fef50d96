"""Chapter 10, distributed: what changes when many processes train one model."""
