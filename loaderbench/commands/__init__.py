"""The command line, one file a command: parse → study → show. Nothing heavy is imported before a command runs."""
