"""Parts of the commands: the guard around them, their argument parser, and options that several have."""
