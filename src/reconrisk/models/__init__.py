"""The architectures the papers attack; nothing else depends on a particular one."""
