"""What timm imports, and small nets do not use."""
