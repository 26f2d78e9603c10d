"""The subcommands of ``placeto``, a file each."""
