"""The process above the training: starts the script, passes signals on, tells its end."""
