"""The judgements: each looks at what was seen and yields findings. A cause is named only if the evidence leaves no sound one."""
