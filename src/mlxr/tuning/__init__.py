"""Times single launches on this machine's GPU: for `mlxr inspect --measure`, and to choose geometry in `mlxr tune`."""
