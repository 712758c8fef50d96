"""Chapter 05: how a loss scale keeps fp16 gradients alive, and finds itself."""

from amp_course.scaler.dynamic import DynamicScaler

__all__ = ["DynamicScaler"]
