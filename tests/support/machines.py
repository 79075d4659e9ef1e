"""Machines that are not there, for checks of the one that is."""

from collsyn.doctor.system import Answer, Ran, System

GIB = 1 << 30


class FakeSystem(System):
    """A sound host without GPUs; what a test names is different there.

    Files and folders are by path, commands by name (their output, or None if they cannot be started), probes by their
    words, versions by distribution.
    """

    def __init__(self, **different):
        super().__init__()
        self.files = {
            "/proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n",
            "/proc/self/cgroup": "0::/\n",
        }
        self.folders = {}
        self.spaces = {"/dev/shm": (16 * GIB, 16 * GIB)}
        self.commands = {
            "cc": Ran(0, "cc (GCC) 14.1\nmore", ""),
            "mpirun": Ran(0, "HYDRA build details: Version 4.3\n", ""),
        }
        self.variables = {"HOME": "/home/ada"}
        self.threads = (0, 1, 2, 3)
        self.limits = {"NOFILE": 4096, "NPROC": None, "MEMLOCK": 8 << 20}
        packages = "click highspy networkx numba numpy pulp pyyaml rich scipy mpi4py"
        self.versions = dict.fromkeys(packages.split(), "9.0")
        self.required = []
        self.in_job = False
        met = {"verified": True, "process_vm_errno": 0}
        library = {"mpi4py": "4.1", "library": "MPICH 4.3", "thread_level": "multiple", "cuda_aware": False}
        self.probes = {
            ("launch", "fork"): Answer(met),
            ("launch", "mpirun"): Answer(met),
            ("mpi",): Answer(library),
            ("native",): Answer({"works": True, "said": "", "is_kept": True}),
            ("solvers", "highs"): Answer({"version": "1.9", "right": True}),
            ("solvers", "pulp"): Answer({"version": "3.0 (PULP_CBC_CMD)", "right": True}),
            ("nvrtc",): Answer({"found": False}),
        }
        for name, value in different.items():
            old = getattr(self, name)
            setattr(self, name, {**old, **value} if isinstance(old, dict) else value)

    def read(self, path):
        return self.files.get(path)

    def entries(self, folder):
        return tuple(self.folders.get(folder, ()))

    def space(self, folder):
        return self.spaces.get(folder)

    def command(self, *names):
        return next((f"/usr/bin/{name}" for name in names if name in self.commands), None)

    def mpirun(self):
        return self.command("mpirun", "mpiexec")

    def is_rank(self):
        return self.in_job

    def variable(self, name):
        return self.variables.get(name)

    def cores(self):
        return self.threads

    def limit(self, name):
        return self.limits[name]

    def version(self, distribution):
        return self.versions.get(distribution)

    def requirements(self):
        return self.required

    def run(self, words, limit_s, environment=None):
        assert 0 < limit_s < 600
        return self.commands[words[0].rpartition("/")[2]]

    def probe(self, name, *arguments, limit_s):
        assert 0 < limit_s < 600
        return self.probes[(name, *arguments)]


def gpu_machine(count=2, **different):
    """A sound machine with NVIDIA GPUs, as far as checks can tell."""
    line = "NVIDIA H100, 580.65.06, Default, Disabled\n"
    devices = [{"name": "NVIDIA H100", "compute": "9.0", "memory_bytes": 80 * GIB}] * count
    pairs = [
        {"from": i, "to": j, "stores": "verified", "copies": "verified"}
        for i in range(count)
        for j in range(count)
        if i != j
    ]
    slots = [f"0000:{index:02x}:00.0" for index in range(count)]
    system = FakeSystem(
        folders={"/sys/bus/pci/devices": slots},
        files={
            "/proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun",
            **{f"/sys/bus/pci/devices/{slot}/vendor": "0x10de\n" for slot in slots},
            **{f"/sys/bus/pci/devices/{slot}/class": "0x030200\n" for slot in slots},
        },
        commands={"nvidia-smi": Ran(0, line * count, ""), "nvcc": Ran(0, "Cuda tools, release 13.0, V13.0.88", "")},
        versions={"cupy-cuda12x": "13.6.0"},
        probes={
            ("cuda",): Answer(
                {"cupy": "13.6.0", "runtime": 12090, "driver": 13000, "devices": devices, "pairs": pairs}
            ),
            ("ipc",): Answer({"devices": ["verified"] * count}),
            ("nvrtc",): Answer(
                {
                    "found": True,
                    "path": "libnvrtc.so.12",
                    "version": "12.9",
                    "architectures": [50, 90],
                    "compiles": True,
                }
            ),
        },
    )
    for name, value in different.items():
        getattr(system, name).update(value)
    return system
