"""A card's end of what it and the CPU, which has some layers' experts, do in turns."""
