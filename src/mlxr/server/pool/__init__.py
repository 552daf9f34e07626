"""Models that the server has: loaded when they are asked for, unloaded when memory is needed or nobody asks."""
