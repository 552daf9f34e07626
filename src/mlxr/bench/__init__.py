"""What `mlxr bench` measures, and how."""
