"""What the compiler knows about GPUs: their speed and the launch geometry that suits them. One data file per family."""
