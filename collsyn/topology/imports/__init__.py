"""What other programs (nvidia-smi, rocm-smi, amd-smi, NCCL, benchmarks) say of a machine, from files and pastes."""
