"""What each op costs on each kind of device."""
