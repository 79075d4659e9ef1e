"""The command line: one file a subcommand, and the only place that prints."""
