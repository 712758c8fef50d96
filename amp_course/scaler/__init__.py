"""Chapter 05: how a loss scale keeps fp16 gradients alive, and finds itself."""
