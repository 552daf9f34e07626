"""What the compiler knows of GPUs: how fast they are, and which launch geometry suits them. Data, one file a family."""
