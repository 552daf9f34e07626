"""What the compiler's command is made of."""
