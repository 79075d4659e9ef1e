"""Plans on NVIDIA GPUs: one persistent kernel a call, whose source also runs on threads of the host (docs/cuda.md)."""
