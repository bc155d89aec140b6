"""The operating system and the terminal: files, memory, signals, console output. Imports no torch at package level."""
