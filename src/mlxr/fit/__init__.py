"""What a model would take here or on another machine, by its headers alone: memory, context, sequences, speed."""
