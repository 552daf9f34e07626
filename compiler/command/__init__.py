"""Parts of the commands: the guard around them, their argument parser, and the options that they share."""
