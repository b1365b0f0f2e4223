"""The memory of a device."""
