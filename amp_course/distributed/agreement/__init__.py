"""Ranks that skip together: a GradScaler that agrees on found_inf,
and what happens to ranks that do not.
"""

from amp_course.distributed.agreement.agreed import AgreedGradScaler

__all__ = ["AgreedGradScaler"]
