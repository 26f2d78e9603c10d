"""What ops cost on each kind of device."""
