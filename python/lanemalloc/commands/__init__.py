"""The subcommands, a module each: NAME.py defines the click command NAME."""
