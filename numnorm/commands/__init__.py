"""The subcommands of ``python -m numnorm``, each imported only when it is called."""
