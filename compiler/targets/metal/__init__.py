"""Target metal: GPU kernels in Metal."""
